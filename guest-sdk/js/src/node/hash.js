// Hash functions: MD5, SHA-1, SHA-256 and SHA-512.

const PRIMES = (() => {
  const found = [];
  for (let n = 2; found.length < 80; n += 1) if (found.every((prime) => n % prime !== 0)) found.push(n);
  return found;
})();

/** Returns the first 64 bits of the fractional part of a prime's root of this degree. */
function fraction(prime, degree) {
  const scaled = BigInt(prime) << BigInt(64 * degree);
  let [low, high] = [0n, 1n << 72n];
  while (low < high) {
    const middle = (low + high + 1n) >> 1n;
    if (middle ** BigInt(degree) <= scaled) low = middle;
    else high = middle - 1n;
  }
  return low & 0xffffffffffffffffn;
}

let tables;
function constants() {
  tables ??= {
    square: PRIMES.slice(0, 8).map((prime) => fraction(prime, 2)),
    cube: PRIMES.map((prime) => fraction(prime, 3)),
  };
  return tables;
}

/** Returns a message with a one bit, zeros and its length in bits, in blocks. */
function padded(bytes, block, lengthBytes, littleEndian) {
  const length = Math.ceil((bytes.length + 1 + lengthBytes) / block) * block;
  const out = new Uint8Array(length);
  out.set(bytes);
  out[bytes.length] = 0x80;
  const view = new DataView(out.buffer);
  if (littleEndian) view.setBigUint64(length - 8, BigInt(bytes.length) * 8n, true);
  else view.setBigUint64(length - 8, BigInt(bytes.length) * 8n);
  return view;
}

const right = (value, count) => (value >>> count) | (value << (32 - count));
const left = (value, count) => (value << count) | (value >>> (32 - count));

function words(state, littleEndian) {
  const out = new DataView(new ArrayBuffer(state.length * 4));
  state.forEach((word, index) => out.setUint32(index * 4, word, littleEndian));
  return new Uint8Array(out.buffer);
}

function sha256(bytes) {
  const high = (value) => Number(value >> 32n) | 0;
  const table = constants().cube.slice(0, 64).map(high);
  const state = constants().square.map(high);
  const view = padded(bytes, 64, 8);
  const w = new Int32Array(64);
  for (let at = 0; at < view.byteLength; at += 64) {
    for (let i = 0; i < 16; i += 1) w[i] = view.getInt32(at + i * 4);
    for (let i = 16; i < 64; i += 1) {
      const [a, b] = [w[i - 15], w[i - 2]];
      w[i] = w[i - 16] + (right(a, 7) ^ right(a, 18) ^ (a >>> 3)) + w[i - 7] + (right(b, 17) ^ right(b, 19) ^ (b >>> 10));
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let i = 0; i < 64; i += 1) {
      const one = (h + (right(e, 6) ^ right(e, 11) ^ right(e, 25)) + ((e & f) ^ (~e & g)) + table[i] + w[i]) | 0;
      const two = ((right(a, 2) ^ right(a, 13) ^ right(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + one) | 0, c, b, a, (one + two) | 0];
    }
    [a, b, c, d, e, f, g, h].forEach((value, index) => {
      state[index] = (state[index] + value) | 0;
    });
  }
  return words(state, false);
}

function sha512(bytes) {
  const mask = 0xffffffffffffffffn;
  const rotate = (value, count) => ((value >> count) | (value << (64n - count))) & mask;
  const table = constants().cube;
  const state = [...constants().square];
  const view = padded(bytes, 128, 16);
  const w = new Array(80);
  for (let at = 0; at < view.byteLength; at += 128) {
    for (let i = 0; i < 16; i += 1) w[i] = view.getBigUint64(at + i * 8);
    for (let i = 16; i < 80; i += 1) {
      const [a, b] = [w[i - 15], w[i - 2]];
      const s0 = rotate(a, 1n) ^ rotate(a, 8n) ^ (a >> 7n);
      const s1 = rotate(b, 19n) ^ rotate(b, 61n) ^ (b >> 6n);
      w[i] = (w[i - 16] + s0 + w[i - 7] + s1) & mask;
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let i = 0; i < 80; i += 1) {
      const one = h + (rotate(e, 14n) ^ rotate(e, 18n) ^ rotate(e, 41n)) + ((e & f) ^ (~e & mask & g)) + table[i] + w[i];
      const two = (rotate(a, 28n) ^ rotate(a, 34n) ^ rotate(a, 39n)) + ((a & b) ^ (a & c) ^ (b & c));
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + one) & mask, c, b, a, (one + two) & mask];
    }
    [a, b, c, d, e, f, g, h].forEach((value, index) => {
      state[index] = (state[index] + value) & mask;
    });
  }
  const out = new DataView(new ArrayBuffer(64));
  state.forEach((word, index) => out.setBigUint64(index * 8, word));
  return new Uint8Array(out.buffer);
}

function sha1(bytes) {
  const state = [0x67452301, 0xefcdab89 | 0, 0x98badcfe | 0, 0x10325476, 0xc3d2e1f0 | 0];
  const view = padded(bytes, 64, 8);
  const w = new Int32Array(80);
  for (let at = 0; at < view.byteLength; at += 64) {
    for (let i = 0; i < 16; i += 1) w[i] = view.getInt32(at + i * 4);
    for (let i = 16; i < 80; i += 1) w[i] = left(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    let [a, b, c, d, e] = state;
    for (let i = 0; i < 80; i += 1) {
      const round = Math.floor(i / 20);
      const mixed = round === 0 ? (b & c) | (~b & d) : round === 2 ? (b & c) | (b & d) | (c & d) : b ^ c ^ d;
      const next = (left(a, 5) + mixed + e + [0x5a827999, 0x6ed9eba1, 0x8f1bbcdc, 0xca62c1d6][round] + w[i]) | 0;
      [e, d, c, b, a] = [d, c, left(b, 30), a, next];
    }
    [a, b, c, d, e].forEach((value, index) => {
      state[index] = (state[index] + value) | 0;
    });
  }
  return words(state, false);
}

const MD5_SHIFTS = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];

function md5(bytes) {
  const state = [0x67452301, 0xefcdab89 | 0, 0x98badcfe | 0, 0x10325476];
  const view = padded(bytes, 64, 8, true);
  for (let at = 0; at < view.byteLength; at += 64) {
    let [a, b, c, d] = state;
    for (let i = 0; i < 64; i += 1) {
      const round = i >> 4;
      const mixed = [(b & c) | (~b & d), (d & b) | (~d & c), b ^ c ^ d, c ^ (b | ~d)][round];
      const word = [i, 5 * i + 1, 3 * i + 5, 7 * i][round] % 16;
      const sine = Math.floor(Math.abs(Math.sin(i + 1)) * 2 ** 32) | 0;
      const sum = (a + mixed + sine + view.getInt32(at + word * 4, true)) | 0;
      [a, d, c, b] = [d, c, b, (b + left(sum, MD5_SHIFTS[round][i % 4])) | 0];
    }
    [a, b, c, d].forEach((value, index) => {
      state[index] = (state[index] + value) | 0;
    });
  }
  return words(state, true);
}

/** Hash functions by name, with the length of their blocks. */
const HASHES = {
  md5: { digest: md5, block: 64 },
  sha1: { digest: sha1, block: 64 },
  sha256: { digest: sha256, block: 64 },
  sha512: { digest: sha512, block: 128 },
};

export const hashNames = Object.keys(HASHES);

/** Returns the function of a name, such as `sha256` or `SHA-256`. */
function hashOf(name) {
  const key = String(name).toLowerCase().replace('-', '');
  if (!Object.hasOwn(HASHES, key)) {
    throw new Error(`the hash function '${name}' is not in a component, which has ${hashNames.join(', ')}`);
  }
  return HASHES[key];
}

/** Returns the hash of bytes. */
export function digest(name, bytes) {
  return hashOf(name).digest(bytes);
}

/** Returns the authentication code of bytes with a key. */
export function hmac(name, key, bytes) {
  const { digest: hash, block } = hashOf(name);
  const short = key.length > block ? hash(key) : key;
  const with_ = (value, rest) => {
    const out = new Uint8Array(block + rest.length).fill(value, 0, block);
    short.forEach((byte, index) => {
      out[index] ^= byte;
    });
    out.set(rest, block);
    return out;
  };
  return hash(with_(0x5c, hash(with_(0x36, bytes))));
}
