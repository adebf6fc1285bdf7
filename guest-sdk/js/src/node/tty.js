// `node:tty`.

export const isatty = () => false;
export class ReadStream {}
export class WriteStream {}
export default { isatty, ReadStream, WriteStream };
