// Waiting for calls of models and tools.

import { wait } from '#contract/calls';

import { ready, setWait } from './runtime/loop.js';

setWait((calls, timeoutMs) => wait(calls, timeoutMs));

/** Starts a call, waits until it can be finished, and finishes it. An aborted signal abandons the call. */
export async function outcome(start, finish, signal) {
  signal?.throwIfAborted();
  const call = start();
  await ready(call, signal);
  return finish(call);
}
