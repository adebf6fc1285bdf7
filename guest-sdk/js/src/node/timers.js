// `node:timers`.

export const setTimeout = (...args) => globalThis.setTimeout(...args);
export const setInterval = (...args) => globalThis.setInterval(...args);
export const setImmediate = (...args) => globalThis.setImmediate(...args);
export const clearTimeout = (id) => globalThis.clearTimeout(id);
export const clearInterval = (id) => globalThis.clearInterval(id);
export const clearImmediate = (id) => globalThis.clearImmediate(id);
export default { clearImmediate, clearInterval, clearTimeout, setImmediate, setInterval, setTimeout };
