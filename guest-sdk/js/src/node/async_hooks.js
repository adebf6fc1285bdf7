// `node:async_hooks`: values that follow the code through promises and timers.

import { currentContext, enterContext, runInContext } from '../runtime/promise.js';

function changed(storage, value) {
  return new Map([...(currentContext() ?? []), [storage, value]]);
}

export class AsyncLocalStorage {
  #default;

  constructor({ defaultValue, name = '' } = {}) {
    this.#default = defaultValue;
    this.name = name;
  }

  static bind(callback) {
    return AsyncResource.bind(callback);
  }

  static snapshot() {
    const values = currentContext();
    return (callback, ...args) => runInContext(values, () => callback(...args));
  }

  getStore() {
    const values = currentContext();
    return values?.has(this) ? values.get(this) : this.#default;
  }

  run(store, callback, ...args) {
    return runInContext(changed(this, store), () => callback(...args));
  }

  exit(callback, ...args) {
    return this.run(undefined, callback, ...args);
  }

  enterWith(store) {
    enterContext(changed(this, store));
  }

  disable() {
    this.enterWith(undefined);
  }
}

let lastId = 1;

export class AsyncResource {
  #values = currentContext();
  #id = (lastId += 1);

  constructor(type) {
    this.type = type;
  }

  static bind(callback, _type, self) {
    const values = currentContext();
    return function bound(...args) {
      return runInContext(values, () => callback.apply(self ?? this, args));
    };
  }

  bind(callback, self) {
    return (...args) => this.runInAsyncScope(callback, self, ...args);
  }

  runInAsyncScope(callback, self, ...args) {
    return runInContext(this.#values, () => callback.apply(self, args));
  }

  emitDestroy() {
    return this;
  }

  asyncId() {
    return this.#id;
  }

  triggerAsyncId() {
    return 1;
  }
}

export const executionAsyncId = () => 1;
export const triggerAsyncId = () => 1;
export const executionAsyncResource = () => ({});
export const createHook = () => ({ enable() { return this; }, disable() { return this; } });

export default { AsyncLocalStorage, AsyncResource, createHook, executionAsyncId, executionAsyncResource, triggerAsyncId };
