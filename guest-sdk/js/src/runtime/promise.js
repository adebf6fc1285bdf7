// A `Promise` whose jobs the SDK runs.
//
// The engine runs no jobs while a plain function of the contract is called, and offers no way to run them. `build`
// therefore lowers async functions to generators, and this class replaces the engine's own before any other module
// is evaluated.

const PENDING = 0;
const FULFILLED = 1;
const REJECTED = 2;

/** Length from which finished jobs are removed from the front of the queue. */
const COMPACT_AT = 1024;

let jobs = [];
let next = 0;
/** Values of `AsyncLocalStorage` for the code that runs: a map, or `undefined` for none. */
let context;
/** Rejected promises without a handler. */
const unhandled = new Set();

function enqueue(job) {
  jobs.push(job);
}

/** Returns the values of `AsyncLocalStorage` for the code that runs. */
export function currentContext() {
  return context;
}

/** Runs a function with these values of `AsyncLocalStorage`. */
export function runInContext(values, work) {
  const outer = context;
  context = values;
  try {
    return work();
  } finally {
    context = outer;
  }
}

/** Changes the values of `AsyncLocalStorage` for the rest of the code that runs. */
export function enterContext(values) {
  context = values;
}

/** Runs all jobs, including those that they add. */
export function drain() {
  while (next < jobs.length) {
    const job = jobs[next];
    jobs[next] = undefined;
    next += 1;
    if (next > COMPACT_AT) {
      jobs = jobs.slice(next);
      next = 0;
    }
    context = undefined;
    job();
  }
  context = undefined;
  jobs.length = 0;
  next = 0;
}

/** Returns the reasons of rejected promises that no code handled, and forgets them. */
export function takeUnhandled() {
  const reasons = [...unhandled].map((promise) => stateOf(promise).value);
  unhandled.clear();
  return reasons;
}

let readState;

/** Returns the state of a promise of this class: `status` and `value`. */
export function stateOf(promise) {
  return readState(promise);
}

function checkCallable(value, what) {
  if (typeof value !== 'function') throw new TypeError(`${what} is not a function`);
}

/** Creates a promise of a class with the functions that settle it. */
function capability(constructor) {
  let resolve;
  let reject;
  const promise = new constructor((first, second) => {
    resolve = first;
    reject = second;
  });
  return { promise, resolve, reject };
}

class HostPromise {
  #state = PENDING;
  #value = undefined;
  #reactions = [];
  #handled = false;

  static {
    readState = (promise) => ({
      status: ['pending', 'fulfilled', 'rejected'][promise.#state],
      value: promise.#value,
    });
  }

  constructor(executor) {
    checkCallable(executor, 'the executor of a promise');
    const { resolve, reject } = this.#functions();
    try {
      executor(resolve, reject);
    } catch (error) {
      reject(error);
    }
  }

  #functions() {
    let done = false;
    const once = (settle) => (value) => {
      if (done) return;
      done = true;
      settle(value);
    };
    return {
      resolve: once((value) => this.#resolve(value)),
      reject: once((reason) => this.#settle(REJECTED, reason)),
    };
  }

  #resolve(value) {
    if (value === this) return this.#settle(REJECTED, new TypeError('a promise cannot be resolved with itself'));
    if (value === null || (typeof value !== 'object' && typeof value !== 'function')) {
      return this.#settle(FULFILLED, value);
    }
    let then;
    try {
      then = value.then;
    } catch (error) {
      return this.#settle(REJECTED, error);
    }
    if (typeof then !== 'function') return this.#settle(FULFILLED, value);
    const values = context;
    enqueue(() => {
      const { resolve, reject } = this.#functions();
      context = values;
      try {
        then.call(value, resolve, reject);
      } catch (error) {
        reject(error);
      }
    });
  }

  #settle(state, value) {
    this.#state = state;
    this.#value = value;
    const reactions = this.#reactions;
    this.#reactions = undefined;
    if (state === REJECTED && !this.#handled) unhandled.add(this);
    for (const react of reactions) enqueue(react);
  }

  then(onFulfilled, onRejected) {
    const Species = this.constructor?.[Symbol.species] ?? HostPromise;
    const { promise, resolve, reject } = capability(Species);
    const values = context;
    const react = () => {
      context = values;
      const handler = this.#state === FULFILLED ? onFulfilled : onRejected;
      if (typeof handler !== 'function') {
        return this.#state === FULFILLED ? resolve(this.#value) : reject(this.#value);
      }
      let result;
      try {
        result = handler(this.#value);
      } catch (error) {
        return reject(error);
      }
      resolve(result);
    };
    if (!this.#handled) {
      this.#handled = true;
      unhandled.delete(this);
    }
    if (this.#state === PENDING) this.#reactions.push(react);
    else enqueue(react);
    return promise;
  }

  catch(onRejected) {
    return this.then(undefined, onRejected);
  }

  finally(onFinally) {
    if (typeof onFinally !== 'function') return this.then(onFinally, onFinally);
    const constructor = this.constructor;
    return this.then(
      (value) => constructor.resolve(onFinally()).then(() => value),
      (reason) =>
        constructor.resolve(onFinally()).then(() => {
          throw reason;
        }),
    );
  }

  get [Symbol.toStringTag]() {
    return 'Promise';
  }

  static get [Symbol.species]() {
    return this;
  }

  static resolve(value) {
    if (value instanceof HostPromise && value.constructor === this) return value;
    return new this((resolve) => resolve(value));
  }

  static reject(reason) {
    return new this((_, reject) => reject(reason));
  }

  static withResolvers() {
    return capability(this);
  }

  static try(callback, ...args) {
    return new this((resolve) => resolve(callback(...args)));
  }

  static all(items) {
    return combine(this, items, (slot) => ({ fulfilled: (value) => slot(value) }));
  }

  static allSettled(items) {
    return combine(this, items, (slot) => ({
      fulfilled: (value) => slot({ status: 'fulfilled', value }),
      rejected: (reason) => slot({ status: 'rejected', reason }),
    }));
  }

  static any(items) {
    const failed = (errors) => {
      throw new AggregateError(errors, 'all promises were rejected');
    };
    return new this((resolve, reject) => {
      combine(this, items, (slot) => ({ fulfilled: resolve, rejected: slot })).then(failed).catch(reject);
    });
  }

  static race(items) {
    return new this((resolve, reject) => {
      for (const item of items) this.resolve(item).then(resolve, reject);
    });
  }
}

/** Collects one value per item, in order; an item without a handler for its rejection rejects the whole promise. */
function combine(constructor, items, handlers) {
  return new constructor((resolve, reject) => {
    const values = [];
    let left = 1;
    const finished = () => {
      left -= 1;
      if (left === 0) resolve(values);
    };
    for (const item of items) {
      const index = values.length;
      values.push(undefined);
      left += 1;
      const { fulfilled, rejected } = handlers((value) => {
        values[index] = value;
        finished();
      });
      constructor.resolve(item).then(fulfilled, rejected ?? reject);
    }
    finished();
  });
}

Object.defineProperty(HostPromise, 'name', { value: 'Promise' });

// In another engine, such as Node's for tests, promises work by themselves.
if (globalThis.__cqjs) {
  Object.defineProperty(globalThis, 'Promise', { value: HostPromise, writable: true, configurable: true });
  globalThis.queueMicrotask = (callback) => {
    checkCallable(callback, 'the callback of a microtask');
    const values = context;
    enqueue(() => runInContext(values, callback));
  };
}
