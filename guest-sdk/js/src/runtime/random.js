// Random numbers that the rollout determines: the same rollout, attempt and part draw the same numbers, and a fork
// draws its own after the part that it shares.
//
// The generator is sfc32. Its state in the component's image is the same for every rollout. The host's random numbers
// are mixed into it at the first draw after each `refresh`: when an instance starts, and after each wait.

import { getRandomBytes } from '#contract/random';

let state = [1, 2, 3, 4];
let isStale = false;

/** Makes the next draw begin with new random numbers of the host. */
export function refresh() {
  isStale = true;
}

function mix() {
  isStale = false;
  const bytes = Uint8Array.from(getRandomBytes(16));
  const parts = new Int32Array(bytes.buffer);
  state = state.map((part, at) => part ^ parts[at]);
  for (let round = 0; round < 16; round += 1) next();
}

function next() {
  if (isStale) mix();
  const sum = (state[0] + state[1] + state[3]) | 0;
  state[3] = (state[3] + 1) | 0;
  state[0] = state[1] ^ (state[1] >>> 9);
  state[1] = (state[2] + (state[2] << 3)) | 0;
  state[2] = (((state[2] << 21) | (state[2] >>> 11)) + sum) | 0;
  return sum >>> 0;
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
