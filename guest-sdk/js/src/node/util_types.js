// `node:util/types`.

import { types } from './util.js';

export const {
  isAnyArrayBuffer, isArrayBuffer, isArrayBufferView, isAsyncFunction, isBoxedPrimitive, isDataView, isDate, isGeneratorFunction,
  isGeneratorObject, isMap, isNativeError, isPromise, isProxy, isRegExp, isSet, isSymbolObject, isTypedArray, isUint8Array,
  isWeakMap, isWeakSet,
} = types;
export default types;
