// Globals of the web that programs expect, as far as a component can have them.

import { AbortController, AbortSignal, CustomEvent, Event, EventTarget } from './events.js';
import { timerFunctions } from './loop.js';
import { getRandomValues, random, randomUUID } from './random.js';
import { TextDecoder, TextEncoder, show } from './text.js';

let writeLine = () => {};

/** Sets the function that receives the output of `console`: a level and a text. */
export function setConsole(write) {
  writeLine = write;
}

const LEVELS = { log: 'info', info: 'info', debug: 'debug', trace: 'debug', dir: 'info', warn: 'warn', error: 'error' };

const consoleFunctions = Object.fromEntries(
  Object.entries(LEVELS).map(([name, level]) => [
    name,
    (...values) => {
      for (const line of values.map((value) => show(value)).join(' ').split('\n')) writeLine(level, line);
    },
  ]),
);

function fetch(resource) {
  const url = typeof resource === 'string' ? resource : String(resource?.url ?? resource?.href ?? resource);
  return Promise.reject(
    new TypeError(
      `fetch(${JSON.stringify(url)}) has no network: a component reaches its model by ctx.agent(…) and ` +
        'ctx.sample.chat(…), a judge by judge.ask(…), and tools that the operator provides by hostTools',
    ),
  );
}

/** Copies JSON values, dates, maps, sets and binary data. Shared references stay shared. */
function structuredClone(value, _options, seen = new Map()) {
  if (value === null || (typeof value !== 'object' && typeof value !== 'function')) {
    if (typeof value === 'symbol') throw new DOMException('a symbol cannot be cloned', 'DataCloneError');
    return value;
  }
  if (typeof value === 'function') throw new DOMException('a function cannot be cloned', 'DataCloneError');
  if (seen.has(value)) return seen.get(value);
  const keep = (copy) => {
    seen.set(value, copy);
    return copy;
  };
  const clone = (each) => structuredClone(each, undefined, seen);
  if (value instanceof Date) return keep(new Date(value));
  if (value instanceof RegExp) return keep(new RegExp(value.source, value.flags));
  if (value instanceof ArrayBuffer) return keep(value.slice(0));
  if (ArrayBuffer.isView(value)) return keep(new value.constructor(value));
  if (value instanceof Map) {
    const copy = keep(new Map());
    for (const [key, each] of value) copy.set(clone(key), clone(each));
    return copy;
  }
  if (value instanceof Set) {
    const copy = keep(new Set());
    for (const each of value) copy.add(clone(each));
    return copy;
  }
  if (value instanceof Error) return keep(Object.assign(Object.create(Object.getPrototypeOf(value)), value, { message: value.message, stack: value.stack }));
  if (Array.isArray(value)) {
    const copy = keep([]);
    for (const each of value) copy.push(clone(each));
    return copy;
  }
  const copy = keep({});
  for (const [name, each] of Object.entries(value)) {
    // An assignment to `__proto__` would set the prototype.
    Object.defineProperty(copy, name, { value: clone(each), writable: true, enumerable: true, configurable: true });
  }
  return copy;
}

let started = 0;

/** Begins the clock of `performance` in an instance. */
export function startClock() {
  started = Date.now();
}

const globals = {
  ...timerFunctions,
  AbortController,
  AbortSignal,
  CustomEvent,
  Event,
  EventTarget,
  TextDecoder,
  TextEncoder,
  console: consoleFunctions,
  crypto: { getRandomValues, randomUUID },
  fetch,
  performance: { now: () => Date.now() - started, timeOrigin: 0 },
  self: globalThis,
  structuredClone,
};

if (globalThis.__cqjs) {
  for (const [name, value] of Object.entries(globals)) {
    Object.defineProperty(globalThis, name, { value, writable: true, configurable: true });
  }
  Math.random = random;
}
