import pLimit from 'p-limit';
export default async () => {
  const limit = pLimit(2);
  let running = 0;
  let most = 0;
  const work = (value) => limit(async () => {
    most = Math.max(most, (running += 1));
    await new Promise((resolve) => setTimeout(resolve, 5));
    running -= 1;
    return value * 2;
  });
  return [await Promise.all([1, 2, 3, 4].map(work)), most];
};
