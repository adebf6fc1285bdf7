// `node:diagnostics_channel`.

const channels = new Map();

export class Channel {
  #subscribers = [];

  constructor(name) {
    this.name = name;
  }

  get hasSubscribers() {
    return this.#subscribers.length > 0;
  }

  subscribe(callback) {
    this.#subscribers.push(callback);
  }

  unsubscribe(callback) {
    const before = this.#subscribers.length;
    this.#subscribers = this.#subscribers.filter((each) => each !== callback);
    return this.#subscribers.length < before;
  }

  publish(message) {
    for (const each of this.#subscribers) each(message, this.name);
  }

  runStores(_data, work, self, ...args) {
    return work.apply(self, args);
  }
}

export function channel(name) {
  if (!channels.has(name)) channels.set(name, new Channel(name));
  return channels.get(name);
}

export const hasSubscribers = (name) => channel(name).hasSubscribers;
export const subscribe = (name, callback) => channel(name).subscribe(callback);
export const unsubscribe = (name, callback) => channel(name).unsubscribe(callback);
export const tracingChannel = (name) => {
  const events = ['start', 'end', 'asyncStart', 'asyncEnd', 'error'];
  const parts = Object.fromEntries(events.map((event) => [event, channel(`tracing:${name}:${event}`)]));
  const run = (work, _context, self, ...args) => work.apply(self, args);
  return { ...parts, hasSubscribers: false, traceSync: run, tracePromise: run, traceCallback: run, subscribe() {}, unsubscribe() {} };
};
export default { Channel, channel, hasSubscribers, subscribe, tracingChannel, unsubscribe };
