// `node:buffer`: `Buffer` over `Uint8Array`, with the encodings utf8, hex, base64, base64url, latin1 and ascii.

import { TextDecoder, TextEncoder } from '../runtime/text.js';
import { Blob, File } from '../web/fetch.js';

const ENCODINGS = {
  utf8: { read: (text) => new TextEncoder().encode(text), write: (bytes) => new TextDecoder('utf-8', { ignoreBOM: true }).decode(bytes) },
  hex: {
    read: (text) => {
      const pairs = /^([0-9a-f]{2})*/i.exec(text)[0].match(/../g) ?? [];
      return Uint8Array.from(pairs, (pair) => parseInt(pair, 16));
    },
    write: (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join(''),
  },
  latin1: {
    read: (text) => Uint8Array.from(text, (character) => character.charCodeAt(0)),
    write: (bytes) => binary(bytes),
  },
  ascii: {
    read: (text) => Uint8Array.from(text, (character) => character.charCodeAt(0)),
    write: (bytes) => binary(bytes.map((byte) => byte & 0x7f)),
  },
  base64: {
    read: (text) => {
      const plain = text.replaceAll('-', '+').replaceAll('_', '/').replace(/[^A-Za-z0-9+/]/g, '');
      return Uint8Array.from(atob(plain.length % 4 === 1 ? plain.slice(0, -1) : plain.padEnd(Math.ceil(plain.length / 4) * 4, '=')), (character) => character.charCodeAt(0));
    },
    write: (bytes) => btoa(binary(bytes)),
  },
  utf16le: {
    read: (text) => Uint8Array.from({ length: text.length * 2 }, (_, index) => (text.charCodeAt(index >> 1) >> (index % 2 === 0 ? 0 : 8)) & 0xff),
    write: (bytes) => {
      let text = '';
      for (let at = 0; at + 1 < bytes.length; at += 2) text += String.fromCharCode(bytes[at] | (bytes[at + 1] << 8));
      return text;
    },
  },
};
ENCODINGS.base64url = {
  read: ENCODINGS.base64.read,
  write: (bytes) => ENCODINGS.base64.write(bytes).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', ''),
};
const ALIASES = { 'utf-8': 'utf8', binary: 'latin1', ucs2: 'utf16le', 'ucs-2': 'utf16le', 'utf-16le': 'utf16le' };

function binary(bytes) {
  let text = '';
  for (let at = 0; at < bytes.length; at += 0x2000) text += String.fromCharCode.apply(null, bytes.subarray(at, at + 0x2000));
  return text;
}

function encoding(name = 'utf8') {
  const key = String(name).toLowerCase();
  const found = ENCODINGS[ALIASES[key] ?? key];
  if (found === undefined) throw Object.assign(new TypeError(`Unknown encoding: ${name}`), { code: 'ERR_UNKNOWN_ENCODING' });
  return found;
}

const NUMBERS = {
  UInt8: ['Uint8', 1], Int8: ['Int8', 1], UInt16: ['Uint16', 2], Int16: ['Int16', 2], UInt32: ['Uint32', 4], Int32: ['Int32', 4],
  Float: ['Float32', 4], Double: ['Float64', 8], BigUInt64: ['BigUint64', 8], BigInt64: ['BigInt64', 8],
};

export class Buffer extends Uint8Array {
  static poolSize = 8192;

  static from(value, first, second) {
    if (typeof value === 'string') return wrap(encoding(first).read(value));
    if (value instanceof ArrayBuffer) return new Buffer(value, first, second);
    if (ArrayBuffer.isView(value)) return wrap(Uint8Array.from(value));
    if (value?.type === 'Buffer' && Array.isArray(value.data)) return wrap(Uint8Array.from(value.data));
    if (value !== null && typeof value === 'object') {
      const inner = value.valueOf();
      if (inner !== value && inner !== null && inner !== undefined) return Buffer.from(inner, first, second);
      return wrap(Uint8Array.from(value.length === undefined && !(Symbol.iterator in value) ? [] : value));
    }
    throw new TypeError(`a Buffer is made from text, bytes or a list, not from ${typeof value}`);
  }

  static alloc(size, fill, fillEncoding) {
    const buffer = new Buffer(size);
    return fill === undefined ? buffer : buffer.fill(fill, 0, size, fillEncoding);
  }

  static allocUnsafe(size) {
    return new Buffer(size);
  }

  static allocUnsafeSlow(size) {
    return new Buffer(size);
  }

  static isBuffer(value) {
    return value instanceof Buffer;
  }

  static isEncoding(name) {
    const key = String(name).toLowerCase();
    return (ALIASES[key] ?? key) in ENCODINGS;
  }

  static byteLength(value, name) {
    return typeof value === 'string' ? encoding(name).read(value).length : value.byteLength;
  }

  static concat(list, length = list.reduce((sum, each) => sum + each.length, 0)) {
    const buffer = new Buffer(length);
    let at = 0;
    for (const each of list) {
      buffer.set(each.subarray(0, length - at), at);
      at += each.length;
      if (at >= length) break;
    }
    return buffer;
  }

  static compare(a, b) {
    for (let at = 0; at < Math.min(a.length, b.length); at += 1) if (a[at] !== b[at]) return a[at] < b[at] ? -1 : 1;
    return Math.sign(a.length - b.length);
  }

  get parent() {
    return this.buffer;
  }

  toString(name, start = 0, end = this.length) {
    return encoding(name).write(new Uint8Array(this.buffer, this.byteOffset, this.length).subarray(start, end));
  }

  toLocaleString(...args) {
    return this.toString(...args);
  }

  toJSON() {
    return { type: 'Buffer', data: [...this] };
  }

  equals(other) {
    return Buffer.compare(this, other) === 0;
  }

  compare(other, start = 0, end = other.length, ownStart = 0, ownEnd = this.length) {
    return Buffer.compare(this.subarray(ownStart, ownEnd), other.subarray(start, end));
  }

  slice(start, end) {
    return this.subarray(start, end);
  }

  copy(target, at = 0, start = 0, end = this.length) {
    const part = this.subarray(start, Math.min(end, start + target.length - at));
    target.set(part, at);
    return part.length;
  }

  write(text, ...rest) {
    const name = typeof rest.at(-1) === 'string' ? rest.pop() : undefined;
    const [at = 0, length = this.length - at] = rest;
    const bytes = encoding(name).read(text).subarray(0, Math.min(length, this.length - at));
    this.set(bytes, at);
    return bytes.length;
  }

  fill(value, start = 0, end = this.length, name) {
    if (typeof start === 'string') return this.fill(value, 0, this.length, start);
    if (typeof value === 'number') return super.fill(value & 255, start, end);
    const bytes = typeof value === 'string' ? encoding(name).read(value) : value;
    if (bytes.length === 0) return super.fill(0, start, end);
    for (let at = start; at < end; at += 1) this[at] = bytes[(at - start) % bytes.length];
    return this;
  }

  indexOf(value, from = 0, name) {
    if (typeof value === 'number') return super.indexOf(value & 255, from);
    const bytes = typeof value === 'string' ? encoding(name).read(value) : value;
    for (let at = Math.max(0, from < 0 ? this.length + from : from); at + bytes.length <= this.length; at += 1) {
      if (bytes.every((byte, index) => this[at + index] === byte)) return at;
    }
    return -1;
  }

  includes(value, from, name) {
    return this.indexOf(value, from, name) >= 0;
  }

  readUIntBE(at, length) {
    return this.subarray(at, at + length).reduce((sum, byte) => sum * 256 + byte, 0);
  }

  readUIntLE(at, length) {
    return this.subarray(at, at + length).reduceRight((sum, byte) => sum * 256 + byte, 0);
  }
}

function wrap(bytes) {
  return new Buffer(bytes.buffer, bytes.byteOffset, bytes.length);
}

for (const [name, [of, size]] of Object.entries(NUMBERS)) {
  for (const end of size === 1 ? [''] : ['LE', 'BE']) {
    const view = (buffer) => new DataView(buffer.buffer, buffer.byteOffset, buffer.length);
    const read = function read(at = 0) {
      return view(this)[`get${of}`](at, end === 'LE');
    };
    const write = function write(value, at = 0) {
      view(this)[`set${of}`](at, value, end === 'LE');
      return at + size;
    };
    for (const spelled of [name, name.replace('UInt', 'Uint')]) {
      Object.defineProperty(Buffer.prototype, `read${spelled}${end}`, { value: read, writable: true, configurable: true });
      Object.defineProperty(Buffer.prototype, `write${spelled}${end}`, { value: write, writable: true, configurable: true });
    }
  }
}

export { Blob, File };
export const constants = { MAX_LENGTH: 2 ** 31 - 1, MAX_STRING_LENGTH: 2 ** 30 - 1 };
export const kMaxLength = constants.MAX_LENGTH;
export const SlowBuffer = Buffer;
export const isUtf8 = (bytes) => {
  try {
    new TextDecoder('utf-8', { fatal: true }).decode(bytes);
    return true;
  } catch {
    return false;
  }
};
const [decode64, encode64] = [globalThis.atob, globalThis.btoa];
export { decode64 as atob, encode64 as btoa };
export default { Blob, Buffer, File, SlowBuffer, atob: decode64, btoa: encode64, constants, isUtf8, kMaxLength };
