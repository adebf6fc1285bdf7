// `node:crypto`: hashes, authentication codes, and random numbers of the rollout.

import { getRandomValues, random, randomUUID as uuid } from '../runtime/random.js';
import { subtle } from '../web/subtle.js';
import { Buffer } from './buffer.js';
import { digest, hashNames, hmac } from './hash.js';

function bytesOf(data, encoding) {
  return typeof data === 'string' ? Buffer.from(data, encoding) : new Uint8Array(data.buffer ?? data, data.byteOffset ?? 0, data.byteLength);
}

class Hash {
  #parts = [];
  #finish;

  constructor(finish) {
    this.#finish = finish;
  }

  update(data, encoding) {
    this.#parts.push(bytesOf(data, encoding).slice());
    return this;
  }

  digest(encoding) {
    const bytes = Buffer.from(this.#finish(Buffer.concat(this.#parts)));
    return encoding === undefined || encoding === 'buffer' ? bytes : bytes.toString(encoding);
  }

  copy() {
    const copy = new Hash(this.#finish);
    copy.#parts = [...this.#parts];
    return copy;
  }
}

export function createHash(name) {
  digest(name, new Uint8Array());
  return new Hash((bytes) => digest(name, bytes));
}

export function createHmac(name, key) {
  digest(name, new Uint8Array());
  const secret = bytesOf(key);
  return new Hash((bytes) => hmac(name, secret, bytes));
}

export const hash = (name, data, encoding = 'hex') => createHash(name).update(data).digest(encoding);
export const getHashes = () => hashNames;
export const randomUUID = () => uuid();

export function randomBytes(size, callback) {
  const bytes = getRandomValues(Buffer.alloc(size));
  if (callback === undefined) return bytes;
  queueMicrotask(() => callback(null, bytes));
  return undefined;
}

export const randomFillSync = (array) => getRandomValues(array);

export function randomInt(first, second, callback) {
  const [low, high] = typeof second === 'number' ? [first, second] : [0, first];
  const value = low + Math.floor(random() * (high - low));
  const done = callback ?? (typeof second === 'function' ? second : undefined);
  if (done === undefined) return value;
  queueMicrotask(() => done(null, value));
  return undefined;
}

export function timingSafeEqual(a, b) {
  if (a.byteLength !== b.byteLength) throw new RangeError('the two values have to have the same length');
  const [left, right] = [bytesOf(a), bytesOf(b)];
  return left.reduce((different, byte, index) => different | (byte ^ right[index]), 0) === 0;
}

const INSTEAD = 'is not in a component, which has createHash, createHmac and random numbers';
const absent = (name) => () => {
  throw new Error(`crypto.${name} ${INSTEAD}`);
};
export const createCipheriv = absent('createCipheriv');
export const createDecipheriv = absent('createDecipheriv');
export const createPrivateKey = absent('createPrivateKey');
export const createPublicKey = absent('createPublicKey');
export const createSecretKey = absent('createSecretKey');
export const createSign = absent('createSign');
export const createVerify = absent('createVerify');
export const generateKeyPairSync = absent('generateKeyPairSync');
export const pbkdf2 = absent('pbkdf2');
export const pbkdf2Sync = absent('pbkdf2Sync');
export const scrypt = absent('scrypt');
export const scryptSync = absent('scryptSync');
export const sign = absent('sign');
export const verify = absent('verify');
export const constants = {};
export { getRandomValues, subtle };
export const webcrypto = { getRandomValues, randomUUID, subtle };

export default {
  constants, createCipheriv, createDecipheriv, createHash, createHmac, createPrivateKey, createPublicKey, createSecretKey,
  createSign, createVerify, generateKeyPairSync, getHashes, getRandomValues, hash, pbkdf2, pbkdf2Sync, randomBytes,
  randomFillSync, randomInt, randomUUID, scrypt, scryptSync, sign, subtle, timingSafeEqual, verify, webcrypto,
};
