import pRetry, { AbortError } from 'p-retry';
export default async () => {
  let attempts = 0;
  const found = await pRetry(() => {
    attempts += 1;
    if (attempts < 3) throw new Error('again');
    return attempts;
  }, { minTimeout: 1 });
  const stopped = await pRetry(() => { throw new AbortError('stop'); }, { minTimeout: 1 }).catch((error) => error.message);
  return [found, stopped];
};
