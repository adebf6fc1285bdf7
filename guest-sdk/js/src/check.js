// Checks of values before they cross to the host. The engine ends an instance for a value of the wrong type, so
// each is checked here, and the error names the value.

import { Invalid } from './errors.js';

/** Returns a short form of a value for a message. */
export function shown(value) {
  if (typeof value === 'function') return 'a function';
  if (typeof value === 'symbol') return 'a symbol';
  if (value instanceof Promise) return 'a promise (is an `await` missing?)';
  let text;
  try {
    text = typeof value === 'bigint' ? `${value}n` : (JSON.stringify(value) ?? String(value));
  } catch {
    text = Object.prototype.toString.call(value);
  }
  return text.length <= 60 ? text : `${text.slice(0, 57)}...`;
}

/** Returns a text with lone surrogates replaced, because texts of the contract are UTF-8. */
export function asText(value, what) {
  if (typeof value !== 'string') throw new Invalid(`${what} has to be a string, not ${shown(value)}`);
  return value.isWellFormed() ? value : value.toWellFormed();
}

/** Returns a number; `true` is 1 and `false` 0. The host checks that it is finite. */
export function asNumber(value, what) {
  if (typeof value === 'boolean') return value ? 1 : 0;
  if (typeof value !== 'number') throw new Invalid(`${what} has to be a number, not ${shown(value)}`);
  return value;
}

export function isObject(value) {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

export function asFunction(value, what) {
  if (typeof value !== 'function') throw new Invalid(`${what} has to be a function, not ${shown(value)}`);
  return value;
}

export function asList(value, what) {
  if (typeof value === 'string' || value === null || typeof value !== 'object' || !(Symbol.iterator in value)) {
    throw new Invalid(`${what} has to be a list, not ${shown(value)}`);
  }
  return Array.isArray(value) ? value : [...value];
}
