// `node:util`: the parts that do not need Node.

import { show, TextDecoder, TextEncoder } from '../runtime/text.js';

export { TextDecoder, TextEncoder };

const is = (name) => (value) => Object.prototype.toString.call(value) === `[object ${name}]`;

export const types = {
  isPromise: (value) => value instanceof Promise,
  isRegExp: (value) => value instanceof RegExp,
  isDate: (value) => value instanceof Date,
  isNativeError: (value) => value instanceof Error,
  isMap: (value) => value instanceof Map,
  isSet: (value) => value instanceof Set,
  isWeakMap: (value) => value instanceof WeakMap,
  isWeakSet: (value) => value instanceof WeakSet,
  isAnyArrayBuffer: (value) => value instanceof ArrayBuffer,
  isArrayBuffer: (value) => value instanceof ArrayBuffer,
  isArrayBufferView: (value) => ArrayBuffer.isView(value),
  isTypedArray: (value) => ArrayBuffer.isView(value) && !(value instanceof DataView),
  isUint8Array: (value) => value instanceof Uint8Array,
  isDataView: (value) => value instanceof DataView,
  isAsyncFunction: is('AsyncFunction'),
  isGeneratorFunction: is('GeneratorFunction'),
  isGeneratorObject: is('Generator'),
  isSymbolObject: (value) => typeof value === 'object' && is('Symbol')(value),
  isBoxedPrimitive: (value) => value instanceof Number || value instanceof String || value instanceof Boolean,
  isProxy: () => false,
};

export function inspect(value, options) {
  const custom = value?.[inspect.custom];
  if (typeof custom === 'function') {
    const text = custom.call(value, options?.depth ?? 2, options ?? {}, inspect);
    return typeof text === 'string' ? text : inspect(text, options);
  }
  return typeof value === 'string' ? `'${value.replaceAll('\\', '\\\\').replaceAll("'", "\\'")}'` : show(value);
}
inspect.custom = Symbol.for('nodejs.util.inspect.custom');
inspect.defaultOptions = {};

const FORMATS = {
  s: (value) => (typeof value === 'string' ? value : show(value)),
  d: (value) => String(typeof value === 'object' ? NaN : Number(value)),
  i: (value) => String(typeof value === 'object' ? NaN : parseInt(value, 10)),
  f: (value) => String(parseFloat(value)),
  j: (value) => JSON.stringify(value),
  o: inspect,
  O: inspect,
  c: () => '',
};

export function format(first, ...rest) {
  if (typeof first !== 'string') return [first, ...rest].map((value) => show(value)).join(' ');
  let next = 0;
  const text = first.replace(/%([sdifjoOc%])/g, (all, kind) => {
    if (kind === '%') return '%';
    if (next >= rest.length) return all;
    next += 1;
    return FORMATS[kind](rest[next - 1]);
  });
  return [text, ...rest.slice(next).map((value) => show(value))].join(' ');
}

export const formatWithOptions = (_options, ...values) => format(...values);

export function inherits(constructor, parent) {
  Object.defineProperty(constructor, 'super_', { value: parent, writable: true, configurable: true });
  Object.setPrototypeOf(constructor.prototype, parent.prototype);
}

export function promisify(original) {
  if (original[promisify.custom] !== undefined) return original[promisify.custom];
  return function promisified(...args) {
    return new Promise((resolve, reject) => {
      original.call(this, ...args, (error, value) => (error ? reject(error) : resolve(value)));
    });
  };
}
promisify.custom = Symbol.for('nodejs.util.promisify.custom');

export function callbackify(original) {
  return function callbackified(...args) {
    const callback = args.pop();
    original.apply(this, args).then((value) => callback(null, value), (error) => callback(error ?? new Error('rejected without a reason')));
  };
}

export const deprecate = (work) => work;
export const debuglog = () => Object.assign(() => {}, { enabled: false });
export const debug = debuglog;
export const stripVTControlCharacters = (text) => text.replace(/\u001b\[[0-9;]*[A-Za-z]/g, '');
export const toUSVString = (text) => String(text).toWellFormed();
export const styleText = (_format, text) => text;
export const aborted = (signal) => new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }));

function own(value) {
  return Reflect.ownKeys(value).filter((key) => Object.prototype.propertyIsEnumerable.call(value, key));
}

/** Compares two values by their contents. Without `strict`, `==` compares primitives, and prototypes are ignored. */
export function isDeepEqual(a, b, strict, seen = new Map()) {
  if (Object.is(a, b)) return true;
  if (typeof a !== 'object' || typeof b !== 'object' || a === null || b === null) {
    // eslint-disable-next-line eqeqeq
    return !strict && (a == b || (a !== a && b !== b));
  }
  if (seen.get(a) === b) return true;
  seen.set(a, b);
  if (strict && Object.getPrototypeOf(a) !== Object.getPrototypeOf(b)) return false;
  if (Array.isArray(a) !== Array.isArray(b)) return false;
  if (is('Date')(a) || is('Number')(a) || is('String')(a) || is('Boolean')(a)) {
    if (Object.prototype.toString.call(a) !== Object.prototype.toString.call(b) || !Object.is(a.valueOf(), b.valueOf())) return false;
  }
  if (a instanceof RegExp && String(a) !== String(b)) return false;
  if (a instanceof Error && (a.message !== b.message || a.name !== b.name)) return false;
  const equal = (left, right) => isDeepEqual(left, right, strict, seen);
  if (a instanceof Map || a instanceof Set) {
    if (a.constructor !== b.constructor || a.size !== b.size) return false;
    const left = [...b];
    return [...a].every((item) => {
      const at = left.findIndex((each) => equal(item, each));
      if (at >= 0) left.splice(at, 1);
      return at >= 0;
    });
  }
  if (ArrayBuffer.isView(a) || a instanceof ArrayBuffer) {
    const bytes = (each) => new Uint8Array(each.buffer ?? each, each.byteOffset ?? 0, each.byteLength);
    const [left, right] = [bytes(a), bytes(b)];
    return left.length === right.length && left.every((byte, index) => byte === right[index]);
  }
  const keys = own(a);
  return keys.length === own(b).length && keys.every((key) => Object.hasOwn(b, key) && equal(a[key], b[key]));
}

export const isDeepStrictEqual = (a, b) => isDeepEqual(a, b, true);
export const { isArray } = Array;

export default {
  aborted, callbackify, debug, debuglog, deprecate, format, formatWithOptions, inherits, inspect, isArray, isDeepStrictEqual,
  promisify, stripVTControlCharacters, styleText, TextDecoder, TextEncoder, toUSVString, types,
};
