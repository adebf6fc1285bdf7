// Text encodings, and values as `console` shows them.

export class TextEncoder {
  get encoding() {
    return 'utf-8';
  }

  encode(text = '') {
    const encoded = unescape(encodeURIComponent(String(text).toWellFormed()));
    return Uint8Array.from(encoded, (character) => character.charCodeAt(0));
  }

  encodeInto(text, target) {
    let read = 0;
    let written = 0;
    for (const character of text) {
      const bytes = this.encode(character);
      if (written + bytes.length > target.length) break;
      target.set(bytes, written);
      written += bytes.length;
      read += character.length;
    }
    return { read, written };
  }
}

const REPLACEMENT = '\ufffd';

/** Returns the length of the sequence with this first byte, and the least and greatest second byte. */
function sequence(first) {
  if (first < 0xc2 || first > 0xf4) return undefined;
  if (first < 0xe0) return { length: 2, low: 0x80, high: 0xbf };
  if (first < 0xf0) return { length: 3, low: first === 0xe0 ? 0xa0 : 0x80, high: first === 0xed ? 0x9f : 0xbf };
  return { length: 4, low: first === 0xf0 ? 0x90 : 0x80, high: first === 0xf4 ? 0x8f : 0xbf };
}

export class TextDecoder {
  #fatal;
  #ignoreBom;
  #rest = [];

  constructor(label = 'utf-8', options = {}) {
    const name = String(label).trim().toLowerCase();
    if (!['utf-8', 'utf8', 'unicode-1-1-utf-8'].includes(name)) {
      throw new RangeError(`the encoding '${label}' is not in a component, which has utf-8`);
    }
    this.#fatal = Boolean(options.fatal);
    this.#ignoreBom = Boolean(options.ignoreBOM);
  }

  get encoding() {
    return 'utf-8';
  }

  get fatal() {
    return this.#fatal;
  }

  get ignoreBOM() {
    return this.#ignoreBom;
  }

  decode(input, options = {}) {
    const given = input === undefined ? new Uint8Array() : bytesOf(input);
    const bytes = this.#rest.length === 0 ? given : Uint8Array.from([...this.#rest, ...given]);
    this.#rest = [];
    const parts = [];
    let at = 0;
    while (at < bytes.length) {
      if (bytes[at] < 0x80) {
        const start = at;
        while (at < bytes.length && bytes[at] < 0x80 && at - start < 0x4000) at += 1;
        parts.push(String.fromCharCode.apply(null, bytes.subarray(start, at)));
        continue;
      }
      const expected = sequence(bytes[at]);
      let length = 1;
      while (expected && length < expected.length && at + length < bytes.length) {
        const byte = bytes[at + length];
        const low = length === 1 ? expected.low : 0x80;
        const high = length === 1 ? expected.high : 0xbf;
        if (byte < low || byte > high) break;
        length += 1;
      }
      if (expected && length === expected.length) {
        parts.push(String.fromCodePoint(codePoint(bytes, at, length)));
      } else if (expected && at + length === bytes.length && options.stream) {
        this.#rest = [...bytes.subarray(at)];
      } else if (this.#fatal) {
        throw new TypeError('the bytes are not UTF-8');
      } else {
        parts.push(REPLACEMENT);
      }
      at += length;
    }
    const text = parts.join('');
    return !this.#ignoreBom && text.startsWith('\ufeff') ? text.slice(1) : text;
  }
}

function bytesOf(input) {
  if (ArrayBuffer.isView(input)) return new Uint8Array(input.buffer, input.byteOffset, input.byteLength);
  return new Uint8Array(input);
}

function codePoint(bytes, at, length) {
  let code = bytes[at] & (0x7f >> length);
  for (let more = 1; more < length; more += 1) code = (code << 6) | (bytes[at + more] & 0x3f);
  return code;
}

/** Number of levels of objects that `show` writes. */
const DEPTH_MAX = 4;

/** Returns a value as `console.log` writes it. */
export function show(value, depth = 0, within = []) {
  if (typeof value === 'string') return depth === 0 ? value : JSON.stringify(value);
  if (typeof value === 'bigint') return `${value}n`;
  if (typeof value === 'function') return `[function ${value.name || 'without a name'}]`;
  if (typeof value === 'symbol' || value === null || typeof value !== 'object') return String(value);
  if (value instanceof Error) return value.stack ? `${value.name}: ${value.message}\n${value.stack}`.trimEnd() : String(value);
  if (value instanceof Date || value instanceof RegExp) return String(value);
  if (within.includes(value)) return '[circular]';
  if (depth >= DEPTH_MAX) return Array.isArray(value) ? '[…]' : '{…}';
  const inner = (each) => show(each, depth + 1, [...within, value]);
  if (Array.isArray(value) || ArrayBuffer.isView(value)) return `[${Array.from(value, inner).join(', ')}]`;
  if (value instanceof Set) return `Set {${Array.from(value, inner).join(', ')}}`;
  if (value instanceof Map) {
    return `Map {${Array.from(value, ([key, each]) => `${inner(key)} => ${inner(each)}`).join(', ')}}`;
  }
  const fields = Object.entries(value).map(([name, each]) => `${name}: ${inner(each)}`);
  const name = value.constructor?.name;
  return `${name && name !== 'Object' ? `${name} ` : ''}{${fields.join(', ')}}`;
}
