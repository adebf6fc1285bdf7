// `crypto.subtle`: hashes. Keys and ciphers are not in a component.

import { digest } from '../node/hash.js';

function bytesOf(data) {
  return ArrayBuffer.isView(data) ? new Uint8Array(data.buffer, data.byteOffset, data.byteLength) : new Uint8Array(data);
}

const ABSENT = [
  'decrypt', 'deriveBits', 'deriveKey', 'encrypt', 'exportKey', 'generateKey', 'importKey', 'sign', 'unwrapKey', 'verify', 'wrapKey',
];

export const subtle = {
  digest: async (algorithm, data) => digest(algorithm?.name ?? algorithm, bytesOf(data)).buffer,
};
for (const name of ABSENT) {
  subtle[name] = async () => {
    throw new TypeError(`crypto.subtle.${name} is not in a component, which has crypto.subtle.digest`);
  };
}
