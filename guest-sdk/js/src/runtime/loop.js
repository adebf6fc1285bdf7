// The event loop of an instance: jobs, timers, and calls of models and tools in progress.
//
// The loop waits in one place, the host's `calls.wait`, for calls and the next timer together, so everything in a
// `Promise.all` runs concurrently. A module that may wait sets the function with `setWait`; a component of tools
// has none.

import { currentContext, drain, runInContext, stateOf, takeUnhandled } from './promise.js';
import { refresh } from './random.js';

/** Whether this is a component. Under Node, promises and timers work by themselves. */
export const isComponent = globalThis.__cqjs !== undefined;

/** Calls in progress, with the function that resumes the code that waits for each. */
const waiting = new Map();
let timers = [];
let lastTimerId = 0;
let wait;

export function setWait(waitForCalls) {
  wait = waitForCalls;
}

function now() {
  return Date.now();
}

/** Waits until the host can finish a call. If the signal is aborted first, abandons the call. */
export function ready(call, signal) {
  if (!isComponent) return settledOrAborted(call.settled, signal);
  return new Promise((resolve, reject) => {
    const aborted = () => {
      if (waiting.delete(call)) {
        drop(call);
        reject(signal.reason);
      }
    };
    waiting.set(call, () => {
      signal?.removeEventListener('abort', aborted);
      resolve();
    });
    signal?.addEventListener('abort', aborted);
  });
}

function settledOrAborted(settled, signal) {
  if (signal === undefined) return settled;
  return new Promise((resolve, reject) => {
    const aborted = () => reject(signal.reason);
    signal.addEventListener('abort', aborted, { once: true });
    settled.then(resolve).finally(() => signal.removeEventListener('abort', aborted));
  });
}

const DISPOSE = [Symbol.dispose, Symbol.for('dispose')];

/** Drops a resource of the host. */
export function drop(resource) {
  const dispose = DISPOSE.find((symbol) => symbol !== undefined && typeof resource[symbol] === 'function');
  if (dispose !== undefined) resource[dispose]();
}

function addTimer(callback, delay, repeats, args) {
  if (typeof callback !== 'function') throw new TypeError('the callback of a timer is not a function');
  const milliseconds = Math.max(0, Number(delay) || 0);
  lastTimerId += 1;
  const every = repeats ? Math.max(1, milliseconds) : undefined;
  const values = currentContext();
  const run = () => runInContext(values, () => callback(...args));
  timers.push({ id: lastTimerId, at: now() + milliseconds, every, run });
  return lastTimerId;
}

function removeTimer(id) {
  timers = timers.filter((timer) => timer.id !== Number(id));
}

export const timerFunctions = {
  setTimeout: (callback, delay, ...args) => addTimer(callback, delay, false, args),
  setInterval: (callback, delay, ...args) => addTimer(callback, delay, true, args),
  setImmediate: (callback, ...args) => addTimer(callback, 0, false, args),
  clearTimeout: removeTimer,
  clearInterval: removeTimer,
  clearImmediate: removeTimer,
};

/** Waits for a call or a timer and runs the code that is due. Returns false if there is nothing to wait for. */
function step() {
  if (timers.length === 0 && waiting.size === 0) return false;
  const next = timers.length === 0 ? undefined : Math.min(...timers.map((timer) => timer.at));
  const left = next === undefined ? undefined : Math.max(0, Math.ceil(next - now()));
  if (waiting.size > 0 || left > 0) {
    if (wait === undefined) throw new Error('a component of tools cannot wait: it has no timers and no calls');
    const calls = [...waiting.keys()];
    for (const index of wait(calls, left)) {
      const resume = waiting.get(calls[index]);
      waiting.delete(calls[index]);
      resume?.();
    }
    refresh();
  }
  const time = now();
  const due = timers.filter((timer) => timer.at <= time);
  due.sort((a, b) => a.at - b.at || a.id - b.id);
  for (const timer of due) {
    // An earlier timer may have removed this one.
    if (!timers.includes(timer)) continue;
    if (timer.every === undefined) removeTimer(timer.id);
    else timer.at += timer.every;
    timer.run();
    drain();
  }
  return true;
}

/** Runs an async function to its end. Rethrows its error. Under Node, returns its promise. */
export function runToEnd(work, onUnhandled) {
  if (!isComponent) return Promise.resolve(work());
  const promise = work();
  for (;;) {
    drain();
    const { status, value } = stateOf(promise);
    if (status === 'pending') {
      if (!step()) throw new Error('the code waits for a promise that nothing can settle');
      continue;
    }
    // The caller handles a rejection of the promise itself.
    promise.catch(() => {});
    for (const reason of takeUnhandled()) onUnhandled(reason);
    if (status === 'rejected') throw value;
    return value;
  }
}
