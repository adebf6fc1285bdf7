// JSON documents of the contract.
//
// An unchanged document is serialized as its original text, because JavaScript's numbers lose digits of long integers.

import { Invalid } from './errors.js';
import { asList, isObject, shown } from './check.js';

/**
 * Documents whose original text differs from the output of `JSON.stringify`, with that output and the original text.
 */
const originals = new WeakMap();

const LONE_SURROGATE = /(?<=(?:^|[^\\])(?:\\\\)*)\\u[dD][89a-fA-F][0-9a-fA-F]{2}/g;

function replaceBigInt(_name, value) {
  return typeof value === 'bigint' ? JSON.rawJSON(String(value)) : value;
}

/** Parses a document. */
export function parse(text, what) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Invalid(`${what}: not valid JSON: ${error.message}`);
  }
  if (value !== null && typeof value === 'object') {
    const again = JSON.stringify(value);
    if (again !== text) originals.set(value, { again, text });
  }
  return value;
}

/** Serializes a value. A `bigint` becomes an integer. */
export function dump(value, what) {
  let text;
  try {
    text = JSON.stringify(value, replaceBigInt);
  } catch (error) {
    throw new Invalid(`${what} cannot be JSON: ${error.message}`);
  }
  if (text === undefined) throw new Invalid(`${what} has to be a JSON value, not ${shown(value)}`);
  if (value !== null && typeof value === 'object') {
    const original = originals.get(value);
    if (original?.again === text) return original.text;
  }
  return text.includes('\\ud') ? text.replace(LONE_SURROGATE, '\\ufffd') : text;
}

/** Serializes messages, each an object. */
export function dumpMessages(messages, what) {
  return asList(messages, what).map((message, index) => {
    if (!isObject(message) || typeof message.then === 'function') {
      throw new Invalid(`${what}[${index}] has to be a message, an object, not ${shown(message)}`);
    }
    return dump(message, `${what}[${index}]`);
  });
}

/** Parses messages, each an object. */
export function parseMessages(texts, what) {
  return texts.map((text, index) => {
    const message = parse(text, `${what} message ${index}`);
    if (!isObject(message)) throw new Invalid(`${what} message ${index}: the message is not a JSON object`);
    return message;
  });
}

/** Parses an object; a missing one is empty. */
export function parseObject(text, what) {
  const value = text === undefined || text === null ? {} : parse(text, what);
  if (value === null) return {};
  if (!isObject(value)) throw new Invalid(`${what}: not a JSON object`);
  return value;
}
