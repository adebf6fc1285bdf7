// `node:assert`.

import { show } from '../runtime/text.js';
import { isDeepEqual } from './util.js';

export class AssertionError extends Error {
  constructor({ message, actual, expected, operator }) {
    super(message ?? `${show(actual)} ${operator} ${show(expected)}`);
    this.name = 'AssertionError';
    this.code = 'ERR_ASSERTION';
    this.generatedMessage = message === undefined;
    Object.assign(this, { actual, expected, operator });
  }
}

function check(holds, message, actual, expected, operator) {
  if (holds) return;
  if (message instanceof Error) throw message;
  throw new AssertionError({ message, actual, expected, operator });
}

export function ok(value, message) {
  check(value, message ?? `the value is ${show(value)}, which is false`, value, true, '==');
}

export function assert(value, message) {
  ok(value, message);
}

export const equal = (a, b, message) =>
  // eslint-disable-next-line eqeqeq
  check(a == b || (a !== a && b !== b), message, a, b, '==');
// eslint-disable-next-line eqeqeq
export const notEqual = (a, b, message) => check(a != b, message, a, b, '!=');
export const strictEqual = (a, b, message) => check(Object.is(a, b), message, a, b, 'strictEqual');
export const notStrictEqual = (a, b, message) => check(!Object.is(a, b), message, a, b, 'notStrictEqual');
export const deepEqual = (a, b, message) => check(isDeepEqual(a, b, false), message, a, b, 'deepEqual');
export const notDeepEqual = (a, b, message) => check(!isDeepEqual(a, b, false), message, a, b, 'notDeepEqual');
export const deepStrictEqual = (a, b, message) => check(isDeepEqual(a, b, true), message, a, b, 'deepStrictEqual');
export const notDeepStrictEqual = (a, b, message) => check(!isDeepEqual(a, b, true), message, a, b, 'notDeepStrictEqual');
export const match = (text, pattern, message) => check(pattern.test(text), message, text, pattern, 'match');
export const doesNotMatch = (text, pattern, message) => check(!pattern.test(text), message, text, pattern, 'doesNotMatch');

export function fail(message = 'Failed') {
  if (message instanceof Error) throw message;
  throw new AssertionError({ message, operator: 'fail' });
}

export function ifError(value) {
  if (value !== null && value !== undefined) throw value instanceof Error ? value : new AssertionError({ actual: value, expected: null, operator: 'ifError' });
}

/** Checks that an error matches the expectation of `throws`. */
function checkError(error, expected, message) {
  if (expected === undefined || typeof expected === 'string') return;
  if (expected instanceof RegExp) check(expected.test(String(error)), message, error, expected, 'throws');
  else if (typeof expected === 'object') {
    for (const [name, value] of Object.entries(expected)) {
      const found = error?.[name];
      const same = value instanceof RegExp && typeof found === 'string' ? value.test(found) : isDeepEqual(found, value, true);
      check(same, message, found, value, `throws (${name})`);
    }
  } else if (expected.prototype !== undefined && error instanceof expected) return;
  else if (Error.isPrototypeOf(expected) || expected === Error) throw error;
  else check(expected(error) === true, message, error, expected, 'throws');
}

export function throws(work, expected, message) {
  let caught;
  try {
    work();
  } catch (error) {
    caught = { error };
  }
  check(caught !== undefined, typeof expected === 'string' ? expected : message, undefined, expected, 'throws');
  checkError(caught.error, expected, message);
}

export function doesNotThrow(work, message) {
  try {
    work();
  } catch (error) {
    check(false, typeof message === 'string' ? message : `an error was thrown: ${String(error)}`, error, undefined, 'doesNotThrow');
  }
}

export async function rejects(work, expected, message) {
  let caught;
  try {
    await (typeof work === 'function' ? work() : work);
  } catch (error) {
    caught = { error };
  }
  check(caught !== undefined, typeof expected === 'string' ? expected : message, undefined, expected, 'rejects');
  checkError(caught.error, expected, message);
}

export async function doesNotReject(work, message) {
  try {
    await (typeof work === 'function' ? work() : work);
  } catch (error) {
    check(false, typeof message === 'string' ? message : `rejected with ${String(error)}`, error, undefined, 'doesNotReject');
  }
}

const functions = {
  AssertionError, deepEqual, deepStrictEqual, doesNotMatch, doesNotReject, doesNotThrow, equal, fail, ifError, match,
  notDeepEqual, notDeepStrictEqual, notEqual, notStrictEqual, ok, rejects, strictEqual, throws,
};

export const strict = Object.assign((value, message) => ok(value, message), functions, {
  equal: strictEqual,
  notEqual: notStrictEqual,
  deepEqual: deepStrictEqual,
  notDeepEqual: notDeepStrictEqual,
});
strict.strict = strict;
Object.assign(assert, functions, { strict });

export default assert;
