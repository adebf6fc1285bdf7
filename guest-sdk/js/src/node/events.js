// `node:events`.

function listenersOf(emitter, event) {
  return EventEmitter.init(emitter).get(event) ?? [];
}

function add(emitter, event, listener, { once = false, first = false } = {}) {
  if (typeof listener !== 'function') throw new TypeError(`the listener of ${String(event)} has to be a function`);
  const events = EventEmitter.init(emitter);
  if (events.has('newListener')) emitter.emit('newListener', event, listener);
  const list = events.get(event) ?? [];
  const entry = { listener, once };
  events.set(event, first ? [entry, ...list] : [...list, entry]);
  return emitter;
}

export class EventEmitter {
  static defaultMaxListeners = 10;
  static errorMonitor = Symbol.for('events.errorMonitor');
  static captureRejectionSymbol = Symbol.for('nodejs.rejection');

  constructor() {
    EventEmitter.init(this);
  }

  static init(emitter) {
    if (!Object.hasOwn(emitter, '_events')) {
      Object.defineProperty(emitter, '_events', { value: new Map(), writable: true, configurable: true });
    }
    return emitter._events;
  }

  on(event, listener) {
    return add(this, event, listener);
  }

  addListener(event, listener) {
    return add(this, event, listener);
  }

  once(event, listener) {
    return add(this, event, listener, { once: true });
  }

  prependListener(event, listener) {
    return add(this, event, listener, { first: true });
  }

  prependOnceListener(event, listener) {
    return add(this, event, listener, { once: true, first: true });
  }

  off(event, listener) {
    const list = listenersOf(this, event);
    const at = list.findLastIndex((entry) => entry.listener === listener || entry.listener.listener === listener);
    if (at < 0) return this;
    const left = list.filter((_, index) => index !== at);
    if (left.length === 0) this._events.delete(event);
    else this._events.set(event, left);
    if (this._events.has('removeListener')) this.emit('removeListener', event, listener);
    return this;
  }

  removeListener(event, listener) {
    return this.off(event, listener);
  }

  removeAllListeners(event) {
    if (event === undefined) EventEmitter.init(this).clear();
    else EventEmitter.init(this).delete(event);
    return this;
  }

  emit(event, ...args) {
    const list = listenersOf(this, event);
    if (event === 'error') {
      for (const { listener } of listenersOf(this, EventEmitter.errorMonitor)) listener.apply(this, args);
      if (list.length === 0) {
        throw args[0] instanceof Error ? args[0] : new Error(`an error event without a listener: ${String(args[0])}`);
      }
    }
    for (const { listener, once } of list) {
      if (once) this.off(event, listener);
      listener.apply(this, args);
    }
    return list.length > 0;
  }

  listenerCount(event, listener) {
    return listenersOf(this, event).filter((entry) => listener === undefined || entry.listener === listener).length;
  }

  listeners(event) {
    return listenersOf(this, event).map((entry) => entry.listener);
  }

  rawListeners(event) {
    return this.listeners(event);
  }

  eventNames() {
    return [...EventEmitter.init(this).keys()];
  }

  setMaxListeners() {
    return this;
  }

  getMaxListeners() {
    return EventEmitter.defaultMaxListeners;
  }
}

/** Waits for an event and returns its arguments. */
export function once(emitter, event, { signal } = {}) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    if (typeof emitter.addEventListener === 'function') {
      emitter.addEventListener(event, (value) => resolve([value]), { once: true });
      return undefined;
    }
    const failed = (error) => {
      emitter.off(event, happened);
      reject(error);
    };
    const happened = (...args) => {
      emitter.off('error', failed);
      resolve(args);
    };
    emitter.once(event, happened);
    if (event !== 'error') emitter.once('error', failed);
    signal?.addEventListener('abort', () => failed(signal.reason), { once: true });
    return undefined;
  });
}

/** Returns an iterator over the arguments of each event. */
export function on(emitter, event, { signal } = {}) {
  const found = [];
  const waiting = [];
  let failure;
  const take = (...args) => {
    if (waiting.length > 0) waiting.shift().resolve({ value: args, done: false });
    else found.push(args);
  };
  const fail = (error) => {
    failure = error;
    for (const each of waiting.splice(0)) each.reject(error);
  };
  emitter.on(event, take);
  if (event !== 'error') emitter.on('error', fail);
  signal?.addEventListener('abort', () => fail(signal.reason), { once: true });
  return {
    next: () => {
      if (found.length > 0) return Promise.resolve({ value: found.shift(), done: false });
      if (failure !== undefined) return Promise.reject(failure);
      const request = Promise.withResolvers();
      waiting.push(request);
      return request.promise;
    },
    return: () => {
      emitter.off(event, take);
      emitter.off('error', fail);
      for (const each of waiting.splice(0)) each.resolve({ value: undefined, done: true });
      return Promise.resolve({ value: undefined, done: true });
    },
    [Symbol.asyncIterator]() {
      return this;
    },
  };
}

export const { defaultMaxListeners, errorMonitor, captureRejectionSymbol } = EventEmitter;
export const setMaxListeners = () => {};
export const getEventListeners = (emitter, event) => emitter.listeners?.(event) ?? [];
export const listenerCount = (emitter, event) => emitter.listenerCount(event);

// Old code calls the class as a function on another object: `EventEmitter.call(this)`.
function Callable() {
  if (new.target === undefined) {
    EventEmitter.init(this);
    return undefined;
  }
  return Reflect.construct(EventEmitter, [], new.target);
}
Object.setPrototypeOf(Callable, EventEmitter);
Callable.prototype = EventEmitter.prototype;
Object.assign(Callable, { EventEmitter: Callable, once, on, getEventListeners, listenerCount, setMaxListeners, defaultMaxListeners });

export default Callable;
