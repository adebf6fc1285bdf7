// `node:console`.

export default globalThis.console;
