// Streams of the web: readable, writable and transforming ones with default controllers. A reader of bytes into a
// buffer of the caller's (`mode: 'byob'`) is refused.

import { TextDecoder, TextEncoder } from '../runtime/text.js';

export class CountQueuingStrategy {
  constructor({ highWaterMark }) {
    this.highWaterMark = highWaterMark;
  }

  size() {
    return 1;
  }
}

export class ByteLengthQueuingStrategy {
  constructor({ highWaterMark }) {
    this.highWaterMark = highWaterMark;
  }

  size(chunk) {
    return chunk.byteLength;
  }
}

function sizes({ highWaterMark, size } = {}, otherwise) {
  const mark = highWaterMark === undefined ? otherwise : Number(highWaterMark);
  if (Number.isNaN(mark) || mark < 0) throw new RangeError(`highWaterMark has to be a number from 0, not ${highWaterMark}`);
  return { mark, size: size ?? (() => 1) };
}

/** Returns the promise, marked so that a rejection without a handler is no error. */
function handled(promise) {
  promise.catch(() => {});
  return promise;
}

function settled() {
  const parts = Promise.withResolvers();
  handled(parts.promise);
  return parts;
}

export class ReadableStreamDefaultController {
  #stream;

  constructor(stream) {
    this.#stream = stream;
  }

  get desiredSize() {
    return access.desiredSize(this.#stream);
  }

  enqueue(chunk) {
    access.enqueue(this.#stream, chunk);
  }

  close() {
    access.close(this.#stream);
  }

  error(reason) {
    access.error(this.#stream, reason);
  }
}

export class ReadableByteStreamController extends ReadableStreamDefaultController {
  get byobRequest() {
    return null;
  }
}

let access;

export class ReadableStream {
  #state = 'readable';
  #reason;
  #queue = [];
  #total = 0;
  #requests = [];
  #reader;
  #source;
  #strategy;
  #controller;
  #closing = false;
  #started = false;
  #pulling = false;
  #pullAgain = false;
  #disturbed = false;

  static {
    access = {
      desiredSize: (stream) => {
        if (stream.#state === 'errored') return null;
        return stream.#state === 'closed' ? 0 : stream.#strategy.mark - stream.#total;
      },
      enqueue: (stream, chunk) => stream.#enqueue(chunk),
      close: (stream) => {
        if (stream.#closing || stream.#state !== 'readable') throw new TypeError('the stream is closed already');
        stream.#closing = true;
        if (stream.#queue.length === 0) stream.#finish();
      },
      error: (stream, reason) => stream.#error(reason),
      read: (stream) => stream.#read(),
      cancel: (stream, reason) => stream.#cancel(reason),
      state: (stream) => ({ state: stream.#state, reason: stream.#reason }),
      acquire: (stream, reader) => {
        if (stream.#reader !== undefined) throw new TypeError('the stream is locked to a reader');
        stream.#reader = reader;
      },
      release: (stream) => {
        const reason = new TypeError('the reader was released');
        stream.#reader = undefined;
        for (const request of stream.#requests.splice(0)) request.reject(reason);
      },
      disturbed: (stream) => stream.#disturbed,
    };
  }

  constructor(source = {}, strategy = {}) {
    if (source.type !== undefined && source.type !== 'bytes') throw new RangeError(`the type of a stream has to be bytes, not ${source.type}`);
    this.#source = source;
    this.#strategy = sizes(strategy, source.type === 'bytes' ? 0 : 1);
    const Controller = source.type === 'bytes' ? ReadableByteStreamController : ReadableStreamDefaultController;
    this.#controller = new Controller(this);
    const start = source.start?.(this.#controller);
    Promise.resolve(start).then(
      () => {
        this.#started = true;
        this.#pull();
      },
      (reason) => this.#error(reason),
    );
  }

  static from(iterable) {
    const iterator = iterable[Symbol.asyncIterator]?.() ?? iterable[Symbol.iterator]?.();
    if (iterator === undefined) throw new TypeError('ReadableStream.from takes an iterable');
    return new ReadableStream(
      {
        pull: async (controller) => {
          const { done, value } = await iterator.next();
          if (done) controller.close();
          else controller.enqueue(await value);
        },
        cancel: async (reason) => {
          await iterator.return?.(reason);
        },
      },
      { highWaterMark: 0 },
    );
  }

  get locked() {
    return this.#reader !== undefined;
  }

  #enqueue(chunk) {
    if (this.#closing || this.#state !== 'readable') throw new TypeError('the stream is closed, so nothing can be enqueued');
    if (this.#requests.length > 0) this.#requests.shift().resolve({ value: chunk, done: false });
    else {
      let size;
      try {
        size = this.#source.type === 'bytes' ? chunk.byteLength : Number(this.#strategy.size(chunk));
      } catch (error) {
        this.#error(error);
        throw error;
      }
      this.#queue.push({ chunk, size });
      this.#total += size;
    }
    this.#pull();
  }

  #pull() {
    const wanted = this.#requests.length > 0 || this.#strategy.mark - this.#total > 0;
    if (!this.#started || this.#closing || this.#state !== 'readable' || !wanted) return;
    if (this.#source.pull === undefined) return;
    if (this.#pulling) {
      this.#pullAgain = true;
      return;
    }
    this.#pulling = true;
    Promise.try(() => this.#source.pull(this.#controller)).then(
      () => {
        this.#pulling = false;
        if (this.#pullAgain) {
          this.#pullAgain = false;
          this.#pull();
        }
      },
      (reason) => this.#error(reason),
    );
  }

  #read() {
    this.#disturbed = true;
    if (this.#queue.length > 0) {
      const { chunk, size } = this.#queue.shift();
      this.#total -= size;
      if (this.#closing && this.#queue.length === 0) this.#finish();
      else this.#pull();
      return Promise.resolve({ value: chunk, done: false });
    }
    if (this.#state === 'closed') return Promise.resolve({ value: undefined, done: true });
    if (this.#state === 'errored') return Promise.reject(this.#reason);
    const request = Promise.withResolvers();
    this.#requests.push(request);
    this.#pull();
    return request.promise;
  }

  #finish() {
    this.#state = 'closed';
    for (const request of this.#requests.splice(0)) request.resolve({ value: undefined, done: true });
    this.#reader?.closedParts.resolve();
  }

  #error(reason) {
    if (this.#state !== 'readable') return;
    this.#state = 'errored';
    this.#reason = reason;
    this.#queue = [];
    this.#total = 0;
    for (const request of this.#requests.splice(0)) request.reject(reason);
    this.#reader?.closedParts.reject(reason);
  }

  #cancel(reason) {
    this.#disturbed = true;
    if (this.#state === 'closed') return Promise.resolve();
    if (this.#state === 'errored') return Promise.reject(this.#reason);
    this.#queue = [];
    this.#total = 0;
    this.#finish();
    return Promise.try(() => this.#source.cancel?.(reason)).then(() => {});
  }

  cancel(reason) {
    if (this.locked) return Promise.reject(new TypeError('a locked stream cannot be cancelled'));
    return this.#cancel(reason);
  }

  getReader({ mode } = {}) {
    if (mode !== undefined) {
      throw new TypeError(`a component has no readers of mode ${mode}; read chunks with getReader()`);
    }
    return new ReadableStreamDefaultReader(this);
  }

  pipeThrough({ readable, writable }, options) {
    handled(this.pipeTo(writable, options));
    return readable;
  }

  async pipeTo(target, { preventClose, preventAbort, preventCancel, signal } = {}) {
    const reader = this.getReader();
    const writer = target.getWriter();
    let stop;
    const aborted = new Promise((_, reject) => {
      stop = () => reject(signal.reason);
    });
    handled(aborted);
    if (signal?.aborted) stop();
    signal?.addEventListener('abort', stop);
    const unlessAborted = (promise) => Promise.race([promise, aborted]);
    let from = this;
    try {
      for (;;) {
        from = target;
        await unlessAborted(writer.ready);
        from = this;
        const { done, value } = await unlessAborted(reader.read());
        from = target;
        if (done) break;
        handled(writer.write(value));
      }
      if (!preventClose) await writer.close();
    } catch (error) {
      const isAborted = signal?.aborted;
      if ((from === this || isAborted) && !preventAbort) await writer.abort(error).catch(() => {});
      if ((from === target || isAborted) && !preventCancel) await reader.cancel(error).catch(() => {});
      throw error;
    } finally {
      signal?.removeEventListener('abort', stop);
      reader.releaseLock();
      writer.releaseLock();
    }
  }

  tee() {
    const reader = this.getReader();
    const branches = [];
    const reasons = [];
    let reading = false;
    const cancelled = settled();
    const pull = () => {
      if (reading) return undefined;
      reading = true;
      return reader.read().then(
        ({ done, value }) => {
          reading = false;
          for (const [index, branch] of branches.entries()) {
            if (index in reasons) continue;
            if (done) branch.close();
            else branch.enqueue(value);
          }
        },
        (reason) => {
          for (const branch of branches) branch.error(reason);
        },
      );
    };
    const create = (index) =>
      new ReadableStream({
        start: (controller) => {
          branches[index] = controller;
        },
        pull,
        cancel: (reason) => {
          reasons[index] = reason;
          if (0 in reasons && 1 in reasons) cancelled.resolve(reader.cancel(reasons));
          return cancelled.promise;
        },
      });
    return [create(0), create(1)];
  }

  async *values({ preventCancel } = {}) {
    const reader = this.getReader();
    let finished = false;
    try {
      for (;;) {
        let result;
        try {
          result = await reader.read();
        } catch (error) {
          finished = true;
          throw error;
        }
        if (result.done) {
          finished = true;
          return;
        }
        yield result.value;
      }
    } finally {
      if (!finished && !preventCancel) await reader.cancel();
      reader.releaseLock();
    }
  }

  [Symbol.asyncIterator](options) {
    return this.values(options);
  }

  get [Symbol.toStringTag]() {
    return 'ReadableStream';
  }
}

/** Returns whether a stream was read or cancelled. */
export function isDisturbed(stream) {
  return access.disturbed(stream);
}

export class ReadableStreamDefaultReader {
  #stream;

  constructor(stream) {
    access.acquire(stream, this);
    this.#stream = stream;
    this.closedParts = settled();
    Object.defineProperty(this, 'closedParts', { enumerable: false });
    const { state, reason } = access.state(stream);
    if (state === 'closed') this.closedParts.resolve();
    if (state === 'errored') this.closedParts.reject(reason);
  }

  get closed() {
    return this.closedParts.promise;
  }

  read() {
    if (this.#stream === undefined) return Promise.reject(new TypeError('the reader was released'));
    return access.read(this.#stream);
  }

  cancel(reason) {
    if (this.#stream === undefined) return Promise.reject(new TypeError('the reader was released'));
    return access.cancel(this.#stream, reason);
  }

  releaseLock() {
    if (this.#stream === undefined) return;
    access.release(this.#stream);
    this.#stream = undefined;
    this.closedParts.reject(new TypeError('the reader was released'));
  }
}

let sink;

export class WritableStreamDefaultController {
  #stream;
  #abort = new AbortController();

  constructor(stream) {
    this.#stream = stream;
  }

  get signal() {
    return this.#abort.signal;
  }

  error(reason) {
    sink.error(this.#stream, reason);
  }

  static abort(controller, reason) {
    controller.#abort.abort(reason);
  }
}

export class WritableStream {
  #state = 'writable';
  #reason;
  #sink;
  #strategy;
  #controller;
  #queue = [];
  #total = 0;
  #busy = true;
  #closing;
  #writer;
  #ready = settled();
  #closed = settled();

  static {
    sink = {
      error: (stream, reason) => stream.#error(reason),
      acquire: (stream, writer) => {
        if (stream.#writer !== undefined) throw new TypeError('the stream is locked to a writer');
        stream.#writer = writer;
      },
      release: (stream) => {
        stream.#writer = undefined;
      },
      ready: (stream) => stream.#ready.promise,
      closed: (stream) => stream.#closed.promise,
      desiredSize: (stream) => {
        if (stream.#state === 'errored') return null;
        return stream.#state === 'closed' ? 0 : stream.#strategy.mark - stream.#total;
      },
      write: (stream, chunk) => stream.#write(chunk),
      close: (stream) => stream.#close(),
      abort: (stream, reason) => stream.#abort(reason),
    };
  }

  constructor(given = {}, strategy = {}) {
    this.#sink = given;
    this.#strategy = sizes(strategy, 1);
    this.#controller = new WritableStreamDefaultController(this);
    const start = given.start?.(this.#controller);
    this.#updateReady();
    Promise.resolve(start).then(
      () => {
        this.#busy = false;
        this.#next();
      },
      (reason) => this.#error(reason),
    );
  }

  get locked() {
    return this.#writer !== undefined;
  }

  #updateReady() {
    if (this.#state !== 'writable') return;
    if (this.#strategy.mark - this.#total > 0) this.#ready.resolve();
    else this.#ready = settled();
  }

  #write(chunk) {
    if (this.#state === 'errored') return Promise.reject(this.#reason);
    if (this.#state === 'closed' || this.#closing) return Promise.reject(new TypeError('the stream is closed, so nothing can be written'));
    const entry = { chunk, size: Number(this.#strategy.size(chunk)), ...settled() };
    this.#queue.push(entry);
    this.#total += entry.size;
    this.#updateReady();
    this.#next();
    return entry.promise;
  }

  #next() {
    if (this.#busy || this.#state !== 'writable') return;
    const entry = this.#queue[0];
    if (entry !== undefined) {
      this.#busy = true;
      Promise.try(() => this.#sink.write?.(entry.chunk, this.#controller)).then(
        () => {
          this.#busy = false;
          if (this.#state !== 'writable') return;
          this.#queue.shift();
          this.#total -= entry.size;
          entry.resolve();
          this.#updateReady();
          this.#next();
        },
        (reason) => this.#error(reason),
      );
    } else if (this.#closing) {
      this.#busy = true;
      Promise.try(() => this.#sink.close?.()).then(
        () => {
          this.#state = 'closed';
          this.#closing.resolve();
          this.#closed.resolve();
        },
        (reason) => this.#error(reason),
      );
    }
  }

  #error(reason) {
    if (this.#state !== 'writable') return;
    this.#state = 'errored';
    this.#reason = reason;
    for (const entry of this.#queue.splice(0)) entry.reject(reason);
    this.#total = 0;
    this.#closing?.reject(reason);
    this.#ready = settled();
    this.#ready.reject(reason);
    this.#closed.reject(reason);
  }

  #close() {
    if (this.#state === 'errored') return Promise.reject(this.#reason);
    if (this.#state === 'closed' || this.#closing) return Promise.reject(new TypeError('the stream is closed already'));
    this.#closing = settled();
    this.#next();
    return this.#closing.promise;
  }

  #abort(reason) {
    if (this.#state !== 'writable') return Promise.resolve();
    WritableStreamDefaultController.abort(this.#controller, reason);
    this.#error(reason);
    return Promise.try(() => this.#sink.abort?.(reason)).then(() => {});
  }

  getWriter() {
    return new WritableStreamDefaultWriter(this);
  }

  close() {
    return this.locked ? Promise.reject(new TypeError('the stream is locked to a writer')) : this.#close();
  }

  abort(reason) {
    return this.locked ? Promise.reject(new TypeError('the stream is locked to a writer')) : this.#abort(reason);
  }

  get [Symbol.toStringTag]() {
    return 'WritableStream';
  }
}

export class WritableStreamDefaultWriter {
  #stream;

  constructor(stream) {
    sink.acquire(stream, this);
    this.#stream = stream;
  }

  #use(work) {
    if (this.#stream === undefined) return Promise.reject(new TypeError('the writer was released'));
    return work(this.#stream);
  }

  get ready() {
    return handled(this.#use(sink.ready));
  }

  get closed() {
    return handled(this.#use(sink.closed));
  }

  get desiredSize() {
    if (this.#stream === undefined) throw new TypeError('the writer was released');
    return sink.desiredSize(this.#stream);
  }

  write(chunk) {
    return this.#use((stream) => sink.write(stream, chunk));
  }

  close() {
    return this.#use(sink.close);
  }

  abort(reason) {
    return this.#use((stream) => sink.abort(stream, reason));
  }

  releaseLock() {
    if (this.#stream !== undefined) sink.release(this.#stream);
    this.#stream = undefined;
  }
}

export class TransformStreamDefaultController {
  constructor(readable, fail) {
    this.enqueue = (chunk) => readable.enqueue(chunk);
    this.error = fail;
    this.terminate = () => {
      readable.close();
      fail(new TypeError('the stream was terminated'), true);
    };
    Object.defineProperty(this, 'desiredSize', { get: () => readable.desiredSize });
  }
}

export class TransformStream {
  constructor(transformer = {}, writableStrategy = {}, readableStrategy = {}) {
    const { transform = (chunk, controller) => controller.enqueue(chunk), flush, cancel } = transformer;
    let source;
    let target;
    let pulled = settled();
    let finished = false;
    this.readable = new ReadableStream(
      {
        start: (controller) => {
          source = controller;
        },
        pull: () => pulled.resolve(),
        cancel: async (reason) => {
          finished = true;
          target.error(reason);
          await cancel?.call(transformer, reason);
        },
      },
      { highWaterMark: 0, ...readableStrategy },
    );
    const fail = (reason, isClosed) => {
      finished = true;
      if (!isClosed) source.error(reason);
      target.error(reason);
      pulled.resolve();
    };
    const controller = new TransformStreamDefaultController(source, fail);
    const attempt = async (work) => {
      try {
        await work();
      } catch (error) {
        fail(error);
        throw error;
      }
    };
    this.writable = new WritableStream(
      {
        start: (given) => {
          target = given;
          return transformer.start?.(controller);
        },
        write: (chunk) =>
          attempt(async () => {
            if (source.desiredSize <= 0) {
              await pulled.promise;
              if (source.desiredSize <= 0) pulled = settled();
            }
            if (!finished) await transform.call(transformer, chunk, controller);
          }),
        close: () =>
          attempt(async () => {
            await flush?.call(transformer, controller);
            if (!finished) source.close();
          }),
        abort: async (reason) => {
          source.error(reason);
          await cancel?.call(transformer, reason);
        },
      },
      writableStrategy,
    );
  }

  get [Symbol.toStringTag]() {
    return 'TransformStream';
  }
}

export class TextDecoderStream extends TransformStream {
  constructor(label = 'utf-8', options = {}) {
    const decoder = new TextDecoder(label, options);
    super({
      transform: (chunk, controller) => {
        const text = decoder.decode(chunk, { stream: true });
        if (text !== '') controller.enqueue(text);
      },
      flush: (controller) => {
        const text = decoder.decode();
        if (text !== '') controller.enqueue(text);
      },
    });
    this.encoding = decoder.encoding;
    this.fatal = decoder.fatal;
    this.ignoreBOM = decoder.ignoreBOM;
  }
}

export class TextEncoderStream extends TransformStream {
  constructor() {
    const encoder = new TextEncoder();
    let high = '';
    super({
      transform: (chunk, controller) => {
        let text = high + String(chunk);
        high = /[\ud800-\udbff]$/.test(text) ? text.at(-1) : '';
        if (high !== '') text = text.slice(0, -1);
        if (text !== '') controller.enqueue(encoder.encode(text));
      },
      flush: (controller) => {
        if (high !== '') controller.enqueue(encoder.encode(high));
      },
    });
    this.encoding = 'utf-8';
  }
}
