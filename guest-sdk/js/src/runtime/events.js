// Events and abort signals, as the web has them.

export class Event {
  #type;
  #prevented = false;

  constructor(type, options = {}) {
    this.#type = String(type);
    this.cancelable = Boolean(options.cancelable);
    this.target = null;
  }

  get type() {
    return this.#type;
  }

  get defaultPrevented() {
    return this.#prevented;
  }

  preventDefault() {
    if (this.cancelable) this.#prevented = true;
  }
}

export class CustomEvent extends Event {
  constructor(type, options = {}) {
    super(type, options);
    this.detail = options.detail ?? null;
  }
}

export class EventTarget {
  #listeners = new Map();

  addEventListener(type, listener, options) {
    if (listener === null || listener === undefined) return;
    const listeners = this.#listeners.get(type) ?? [];
    if (listeners.some((each) => each.listener === listener)) return;
    this.#listeners.set(type, [...listeners, { listener, once: Boolean(options?.once) }]);
    options?.signal?.addEventListener('abort', () => this.removeEventListener(type, listener), { once: true });
  }

  removeEventListener(type, listener) {
    const listeners = this.#listeners.get(type) ?? [];
    this.#listeners.set(
      type,
      listeners.filter((each) => each.listener !== listener),
    );
  }

  dispatchEvent(event) {
    event.target = this;
    for (const { listener, once } of this.#listeners.get(event.type) ?? []) {
      if (once) this.removeEventListener(event.type, listener);
      if (typeof listener === 'function') listener.call(this, event);
      else listener.handleEvent(event);
    }
    const property = this[`on${event.type}`];
    if (typeof property === 'function') property.call(this, event);
    return !event.defaultPrevented;
  }
}

let abort;

export class AbortSignal extends EventTarget {
  #aborted = false;
  #reason;

  static {
    abort = (signal, reason) => {
      if (signal.#aborted) return;
      signal.#aborted = true;
      signal.#reason = reason ?? new DOMException('this operation was aborted', 'AbortError');
      signal.dispatchEvent(new Event('abort'));
    };
  }

  get aborted() {
    return this.#aborted;
  }

  get reason() {
    return this.#reason;
  }

  throwIfAborted() {
    if (this.#aborted) throw this.#reason;
  }

  static abort(reason) {
    const signal = new AbortSignal();
    abort(signal, reason);
    return signal;
  }

  static timeout(milliseconds) {
    const signal = new AbortSignal();
    const text = `the time limit of ${milliseconds} ms passed`;
    setTimeout(() => abort(signal, new DOMException(text, 'TimeoutError')), milliseconds);
    return signal;
  }

  static any(signals) {
    const any = new AbortSignal();
    for (const signal of signals) {
      if (signal.aborted) {
        abort(any, signal.reason);
        break;
      }
      signal.addEventListener('abort', () => abort(any, signal.reason), { once: true });
    }
    return any;
  }
}

export class AbortController {
  #signal = new AbortSignal();

  get signal() {
    return this.#signal;
  }

  abort(reason) {
    abort(this.#signal, reason);
  }
}
