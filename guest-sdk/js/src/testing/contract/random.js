// The random numbers of WASI. Under Node, they are Node's own.

export function getRandomBytes(length) {
  return crypto.getRandomValues(new Uint8Array(Number(length)));
}
