// The contract's interface `calls`. Under Node, each call has a promise, so nothing waits here.

export function wait() {
  throw new Error('calls are awaited by their promises under Node');
}
