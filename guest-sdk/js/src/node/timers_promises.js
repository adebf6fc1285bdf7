// `node:timers/promises`.

export const setTimeout = (delay, value, { signal } = {}) =>
  new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const id = globalThis.setTimeout(() => resolve(value), delay);
    const aborted = () => {
      globalThis.clearTimeout(id);
      reject(signal.reason);
    };
    signal?.addEventListener('abort', aborted, { once: true });
  });

export const setImmediate = (value, options) => setTimeout(0, value, options);

export async function* setInterval(delay, value, options) {
  for (;;) yield await setTimeout(delay, value, options);
}

export const scheduler = { wait: (delay, options) => setTimeout(delay, undefined, options), yield: () => setTimeout(0) };
export default { scheduler, setImmediate, setInterval, setTimeout };
