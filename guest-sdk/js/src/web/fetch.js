// `Headers`, `Request`, `Response`, `Blob`, `File` and `FormData`: values only. `fetch` itself has no network.

import { TextDecoder, TextEncoder } from '../runtime/text.js';
import { isDisturbed, ReadableStream } from './streams.js';
import { URL, URLSearchParams } from './url.js';

const TOKEN = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/;

function headerName(name) {
  const text = String(name);
  if (!TOKEN.test(text)) throw new TypeError(`${JSON.stringify(text)} is not the name of a header`);
  return text.toLowerCase();
}

function headerValue(value) {
  const text = String(value).replace(/^[\t\n\r ]+|[\t\n\r ]+$/g, '');
  if (/[\0\n\r]/.test(text) || /[^\0-\xff]/.test(text)) throw new TypeError(`${JSON.stringify(text)} is not the value of a header`);
  return text;
}

export class Headers {
  #lists = new Map();

  constructor(init) {
    if (init === undefined || init === null) return;
    if (typeof init !== 'object') throw new TypeError('headers have to be an object or a list of pairs');
    const pairs = typeof init[Symbol.iterator] === 'function' ? [...init] : Object.entries(init);
    for (const pair of pairs) {
      const [name, value, ...more] = pair;
      if (value === undefined || more.length > 0) throw new TypeError('each header has to be a name and a value');
      this.append(name, value);
    }
  }

  append(name, value) {
    const key = headerName(name);
    this.#lists.set(key, [...(this.#lists.get(key) ?? []), headerValue(value)]);
  }

  delete(name) {
    this.#lists.delete(headerName(name));
  }

  get(name) {
    return this.#lists.get(headerName(name))?.join(', ') ?? null;
  }

  getSetCookie() {
    return [...(this.#lists.get('set-cookie') ?? [])];
  }

  has(name) {
    return this.#lists.has(headerName(name));
  }

  set(name, value) {
    this.#lists.set(headerName(name), [headerValue(value)]);
  }

  forEach(callback, self) {
    for (const [name, value] of this) callback.call(self, value, name, this);
  }

  *entries() {
    for (const name of [...this.#lists.keys()].sort()) {
      const values = this.#lists.get(name);
      if (name === 'set-cookie') for (const value of values) yield [name, value];
      else yield [name, values.join(', ')];
    }
  }

  *keys() {
    for (const [name] of this) yield name;
  }

  *values() {
    for (const [, value] of this) yield value;
  }

  [Symbol.iterator]() {
    return this.entries();
  }

  get [Symbol.toStringTag]() {
    return 'Headers';
  }
}

function join(parts) {
  const bytes = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return bytes;
}

function copyOf(data) {
  if (data instanceof ArrayBuffer) return new Uint8Array(data.slice(0));
  return new Uint8Array(data.buffer, data.byteOffset, data.byteLength).slice();
}

function isBinary(value) {
  return value instanceof ArrayBuffer || ArrayBuffer.isView(value);
}

let bytesOfBlob;

export class Blob {
  #bytes;
  #type;

  static {
    bytesOfBlob = (blob) => blob.#bytes;
  }

  constructor(parts = [], { type = '' } = {}) {
    this.#bytes = join(
      [...parts].map((part) => {
        if (part instanceof Blob) return part.#bytes;
        return isBinary(part) ? copyOf(part) : new TextEncoder().encode(String(part));
      }),
    );
    this.#type = /[^\x20-\x7e]/.test(type) ? '' : String(type).toLowerCase();
  }

  get size() {
    return this.#bytes.length;
  }

  get type() {
    return this.#type;
  }

  slice(start = 0, end = this.size, type = '') {
    return new Blob([this.#bytes.slice(start, end)], { type });
  }

  async arrayBuffer() {
    return this.#bytes.slice().buffer;
  }

  async bytes() {
    return this.#bytes.slice();
  }

  async text() {
    return new TextDecoder().decode(this.#bytes);
  }

  stream() {
    return streamOf(this.#bytes);
  }

  get [Symbol.toStringTag]() {
    return 'Blob';
  }
}

export class File extends Blob {
  constructor(parts, name, options = {}) {
    super(parts, options);
    this.name = String(name);
    this.lastModified = options.lastModified ?? Date.now();
  }

  get [Symbol.toStringTag]() {
    return 'File';
  }
}

export class FormData {
  #entries = [];

  #entry(name, value, fileName) {
    if (!(value instanceof Blob)) return [String(name), String(value)];
    if (value instanceof File && fileName === undefined) return [String(name), value];
    return [String(name), new File([value], fileName ?? 'blob', { type: value.type })];
  }

  append(name, value, fileName) {
    this.#entries.push(this.#entry(name, value, fileName));
  }

  set(name, value, fileName) {
    const at = this.#entries.findIndex(([key]) => key === String(name));
    const entry = this.#entry(name, value, fileName);
    if (at < 0) this.#entries.push(entry);
    else {
      this.#entries[at] = entry;
      this.#entries = this.#entries.filter(([key], index) => index <= at || key !== String(name));
    }
  }

  get(name) {
    return this.#entries.find(([key]) => key === String(name))?.[1] ?? null;
  }

  getAll(name) {
    return this.#entries.filter(([key]) => key === String(name)).map(([, value]) => value);
  }

  has(name) {
    return this.#entries.some(([key]) => key === String(name));
  }

  delete(name) {
    this.#entries = this.#entries.filter(([key]) => key !== String(name));
  }

  forEach(callback, self) {
    for (const [name, value] of this.#entries) callback.call(self, value, name, this);
  }

  *entries() {
    yield* this.#entries.map((entry) => [...entry]);
  }

  *keys() {
    for (const [name] of this.#entries) yield name;
  }

  *values() {
    for (const [, value] of this.#entries) yield value;
  }

  [Symbol.iterator]() {
    return this.entries();
  }

  get [Symbol.toStringTag]() {
    return 'FormData';
  }
}

function streamOf(bytes) {
  return new ReadableStream({
    start: (controller) => {
      if (bytes.length > 0) controller.enqueue(bytes.slice());
      controller.close();
    },
  });
}

function multipart(form) {
  const boundary = `----rollout-${crypto.randomUUID()}`;
  const encoder = new TextEncoder();
  const escaped = (text) => text.replace(/\r\n|\r|\n/g, '%0D%0A').replaceAll('"', '%22');
  const parts = [];
  for (const [name, value] of form) {
    let head = `--${boundary}\r\nContent-Disposition: form-data; name="${escaped(name)}"`;
    if (value instanceof File) {
      head += `; filename="${escaped(value.name)}"\r\nContent-Type: ${value.type || 'application/octet-stream'}`;
    }
    const bytes = value instanceof File ? bytesOfBlob(value) : encoder.encode(value.replace(/\r\n|\r|\n/g, '\r\n'));
    parts.push(encoder.encode(`${head}\r\n\r\n`), bytes, encoder.encode('\r\n'));
  }
  parts.push(encoder.encode(`--${boundary}--\r\n`));
  return { bytes: join(parts), type: `multipart/form-data; boundary=${boundary}` };
}

/** Returns the bytes or the stream of a body and its media type. */
function extract(body) {
  if (body === undefined || body === null) return { bytes: null };
  if (body instanceof ReadableStream) return { stream: body };
  if (body instanceof Blob) return { bytes: bytesOfBlob(body), type: body.type || undefined };
  if (body instanceof FormData) return multipart(body);
  if (isBinary(body)) return { bytes: copyOf(body) };
  const encoder = new TextEncoder();
  if (body instanceof URLSearchParams) {
    return { bytes: encoder.encode(String(body)), type: 'application/x-www-form-urlencoded;charset=UTF-8' };
  }
  if (typeof body[Symbol.asyncIterator] === 'function') return { stream: ReadableStream.from(body) };
  return { bytes: encoder.encode(String(body)), type: 'text/plain;charset=UTF-8' };
}

/** A message with a body, the base class of `Request` and `Response`. */
class Body {
  #bytes;
  #stream;
  #used = false;

  /** Sets the body, and the header of its type unless there is one. */
  static fill(message, body, headers) {
    const { bytes, stream, type } = extract(body);
    message.#bytes = bytes;
    message.#stream = stream;
    if (type !== undefined && !headers.has('content-type')) headers.set('content-type', type);
  }

  /** Copies the body of another message, whose stream is teed. */
  static copy(from, to) {
    if (from.bodyUsed || from.#stream?.locked) throw new TypeError('the body was read already');
    to.#bytes = from.#bytes;
    if (from.#stream !== undefined && from.#stream !== null) [from.#stream, to.#stream] = from.#stream.tee();
  }

  get body() {
    if (this.#stream === undefined) this.#stream = this.#bytes === null ? null : streamOf(this.#bytes);
    return this.#stream;
  }

  get bodyUsed() {
    return this.#used || (this.#stream !== undefined && this.#stream !== null && isDisturbed(this.#stream));
  }

  async bytes() {
    if (this.bodyUsed || this.#stream?.locked) throw new TypeError('the body was read already');
    if (this.#bytes === null && this.#stream === undefined) return new Uint8Array();
    this.#used = true;
    if (this.#stream === undefined || this.#stream === null) return this.#bytes?.slice() ?? new Uint8Array();
    const parts = [];
    for await (const chunk of this.#stream) {
      if (!ArrayBuffer.isView(chunk)) throw new TypeError('the stream of a body has to consist of bytes');
      parts.push(copyOf(chunk));
    }
    return join(parts);
  }

  async arrayBuffer() {
    return (await this.bytes()).buffer;
  }

  async text() {
    return new TextDecoder().decode(await this.bytes());
  }

  async json() {
    return JSON.parse(await this.text());
  }

  async blob() {
    return new Blob([await this.bytes()], { type: this.headers.get('content-type') ?? '' });
  }

  async formData() {
    const type = this.headers.get('content-type') ?? '';
    if (!type.startsWith('application/x-www-form-urlencoded')) {
      throw new TypeError(`a component reads no form data of type ${type || 'unknown'}; read text() or bytes()`);
    }
    const form = new FormData();
    for (const [name, value] of new URLSearchParams(await this.text())) form.append(name, value);
    return form;
  }
}

const METHODS = ['DELETE', 'GET', 'HEAD', 'OPTIONS', 'POST', 'PUT'];

export class Request extends Body {
  constructor(input, init = {}) {
    super();
    const from = input instanceof Request ? input : undefined;
    const method = String(init.method ?? from?.method ?? 'GET');
    const upper = method.toUpperCase();
    this.method = METHODS.includes(upper) ? upper : method;
    this.url = from?.url ?? new URL(String(input)).href;
    this.headers = new Headers(init.headers ?? from?.headers);
    this.signal = init.signal ?? from?.signal ?? new AbortController().signal;
    const options = { cache: 'default', credentials: 'same-origin', duplex: 'half', integrity: '', keepalive: false, mode: 'cors', redirect: 'follow', referrer: 'about:client', referrerPolicy: '' };
    for (const [name, value] of Object.entries(options)) this[name] = init[name] ?? from?.[name] ?? value;
    const body = init.body ?? undefined;
    if (body !== undefined && (this.method === 'GET' || this.method === 'HEAD')) {
      throw new TypeError(`a request with method ${this.method} has no body`);
    }
    if (body === undefined && from !== undefined) Body.copy(from, this);
    else Body.fill(this, body, this.headers);
  }

  clone() {
    return new Request(this);
  }

  get [Symbol.toStringTag]() {
    return 'Request';
  }
}

const WITHOUT_BODY = [101, 103, 204, 205, 304];

export class Response extends Body {
  constructor(body = null, { status = 200, statusText = '', headers } = {}) {
    super();
    if (!Number.isInteger(status) || status < 200 || status > 599) throw new RangeError(`a status has to be from 200 to 599, not ${status}`);
    if (body !== null && WITHOUT_BODY.includes(status)) throw new TypeError(`a response with status ${status} has no body`);
    this.status = status;
    this.statusText = String(statusText);
    this.headers = new Headers(headers);
    this.type = 'default';
    this.url = '';
    this.redirected = false;
    Body.fill(this, body, this.headers);
  }

  get ok() {
    return this.status >= 200 && this.status < 300;
  }

  static json(value, init = {}) {
    const headers = new Headers(init.headers);
    if (!headers.has('content-type')) headers.set('content-type', 'application/json');
    return new Response(JSON.stringify(value), { ...init, headers });
  }

  static error() {
    const response = new Response();
    Object.assign(response, { status: 0, type: 'error' });
    return response;
  }

  static redirect(url, status = 302) {
    return new Response(null, { status, headers: { location: new URL(String(url)).href } });
  }

  clone() {
    const response = new Response(null, { status: this.status, statusText: this.statusText, headers: this.headers });
    Body.copy(this, response);
    return response;
  }

  get [Symbol.toStringTag]() {
    return 'Response';
  }
}
