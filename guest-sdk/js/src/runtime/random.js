// Random numbers that the rollout decides: the same rollout, attempt and part draw the same numbers.
//
// The generator is sfc32. Its state in the component's image is the same for every rollout, so `seed` must run
// first in each instance.

let state = [1, 2, 3, 4];

function next() {
  const sum = (state[0] + state[1] + state[3]) | 0;
  state[3] = (state[3] + 1) | 0;
  state[0] = state[1] ^ (state[1] >>> 9);
  state[1] = (state[2] + (state[2] << 3)) | 0;
  state[2] = (((state[2] << 21) | (state[2] >>> 11)) + sum) | 0;
  return sum >>> 0;
}

/** Seeds the generator with a text. */
export function seed(text) {
  // FNV-1a, once from each of four beginnings.
  state = [0x811c9dc5, 0x01000193, 0x9e3779b9, 0x85ebca6b].map((start) => {
    let hash = start;
    for (let at = 0; at < text.length; at += 1) hash = Math.imul(hash ^ text.charCodeAt(at), 0x01000193);
    return hash;
  });
  for (let round = 0; round < 16; round += 1) next();
}

/** Returns a number from 0 up to 1, exclusive, with 53 random bits. */
export function random() {
  return ((next() >>> 5) * 0x4000000 + (next() >>> 6)) / 0x20000000000000;
}

/** Fills an integer array with random bytes. */
export function getRandomValues(array) {
  const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
  for (let at = 0; at < bytes.length; at += 1) bytes[at] = next() >>> 24;
  return array;
}

/** Returns a random UUID of version 4. */
export function randomUUID() {
  const bytes = getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20)}`;
}
