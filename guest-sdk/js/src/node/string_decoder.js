// `node:string_decoder`, for UTF-8.

import { TextDecoder } from '../runtime/text.js';

export class StringDecoder {
  #decoder = new TextDecoder('utf-8', { ignoreBOM: true });

  constructor(encoding = 'utf8') {
    if (!/^utf-?8$/i.test(encoding)) throw new RangeError(`the encoding '${encoding}' is not in a component, which has utf8`);
    this.encoding = 'utf8';
  }

  write(bytes) {
    return typeof bytes === 'string' ? bytes : this.#decoder.decode(bytes, { stream: true });
  }

  end(bytes) {
    return (bytes === undefined ? '' : this.write(bytes)) + this.#decoder.decode();
  }
}

export default { StringDecoder };
