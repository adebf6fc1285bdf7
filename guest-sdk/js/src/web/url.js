// `URL` and `URLSearchParams`, following the parts of the URL standard that programs use. A host name outside of ASCII
// is an error, because the tables of international domain names are larger than the engine.

import { TextDecoder, TextEncoder } from '../runtime/text.js';

const SPECIAL = { http: '80', https: '443', ws: '80', wss: '443', ftp: '21', file: '' };

const C0 = /[^\x20-\x7e]/;
const SETS = {
  fragment: ' "<>`',
  query: ' "#<>',
  specialQuery: ' "#<>\'',
  path: ' "#<>?^`{}',
  userinfo: ' "#<>?^`{}/:;=@[\\]|',
};

function percentEncode(text, set) {
  let out = '';
  for (const character of text.toWellFormed()) {
    if (!C0.test(character) && !SETS[set]?.includes(character)) out += character;
    else for (const byte of new TextEncoder().encode(character)) out += `%${byte.toString(16).toUpperCase().padStart(2, '0')}`;
  }
  return out;
}

/** Decodes percent escapes; other characters are taken as UTF-8. */
function percentDecode(text) {
  const bytes = [];
  const source = new TextEncoder().encode(text);
  for (let at = 0; at < source.length; at += 1) {
    const hex = source[at] === 0x25 ? String.fromCharCode(source[at + 1], source[at + 2]) : '';
    if (/^[0-9a-f]{2}$/i.test(hex)) {
      bytes.push(parseInt(hex, 16));
      at += 2;
    } else bytes.push(source[at]);
  }
  return new TextDecoder().decode(Uint8Array.from(bytes));
}

function invalid(text) {
  return Object.assign(new TypeError(`Invalid URL: ${text}`), { code: 'ERR_INVALID_URL', input: text });
}

function ipv4Number(text) {
  if (text === '') return undefined;
  let radix = 10;
  let digits = text;
  if (/^0x/i.test(text)) [radix, digits] = [16, text.slice(2)];
  else if (text.length > 1 && text.startsWith('0')) [radix, digits] = [8, text.slice(1)];
  if (digits === '') return 0;
  const allowed = { 10: /^\d+$/, 8: /^[0-7]+$/, 16: /^[0-9a-f]+$/i }[radix];
  return allowed.test(digits) ? parseInt(digits, radix) : NaN;
}

/** Returns a host's IPv4 address if its last part is a number. */
function ipv4(host) {
  const parts = host.split('.');
  if (parts.length > 1 && parts.at(-1) === '') parts.pop();
  const last = parts.at(-1);
  if (!/^\d+$/.test(last) && !(/^0x[0-9a-f]*$/i.test(last))) return undefined;
  const numbers = parts.map(ipv4Number);
  const bound = 256 ** (5 - numbers.length);
  if (numbers.length > 4 || numbers.some((each) => each === undefined || Number.isNaN(each))) throw invalid(host);
  if (numbers.slice(0, -1).some((each) => each > 255) || numbers.at(-1) >= bound) throw invalid(host);
  const value = numbers.slice(0, -1).reduce((sum, each, index) => sum + each * 256 ** (3 - index), numbers.at(-1));
  return [24, 16, 8, 0].map((shift) => Math.floor(value / 2 ** shift) % 256).join('.');
}

function ipv6(text) {
  const halves = text.split('::');
  if (halves.length > 2) throw invalid(text);
  const pieces = (half) => {
    if (half === '') return [];
    return half.split(':').flatMap((piece, index, all) => {
      if (index === all.length - 1 && piece.includes('.')) {
        if (!/^(\d{1,3}\.){3}\d{1,3}$/.test(piece)) throw invalid(text);
        const numbers = piece.split('.').map(Number);
        if (numbers.some((each) => each > 255)) throw invalid(text);
        return [numbers[0] * 256 + numbers[1], numbers[2] * 256 + numbers[3]];
      }
      if (!/^[0-9a-f]{1,4}$/i.test(piece)) throw invalid(text);
      return [parseInt(piece, 16)];
    });
  };
  const [first, last] = [pieces(halves[0]), halves.length === 2 ? pieces(halves[1]) : []];
  const missing = 8 - first.length - last.length;
  if (halves.length === 2 ? missing < 1 : missing !== 0) throw invalid(text);
  const all = [...first, ...Array(missing).fill(0), ...last];
  let [best, length] = [-1, 1];
  for (let at = 0; at < 8; at += 1) {
    let end = at;
    while (end < 8 && all[end] === 0) end += 1;
    if (end - at > length) [best, length] = [at, end - at];
    if (end > at) at = end;
  }
  const hex = (part) => part.map((piece) => piece.toString(16)).join(':');
  return best < 0 ? hex(all) : `${hex(all.slice(0, best))}::${hex(all.slice(best + length))}`;
}

function parseHost(text, isSpecial) {
  if (text.startsWith('[')) {
    if (!text.endsWith(']')) throw invalid(text);
    return `[${ipv6(text.slice(1, -1))}]`;
  }
  if (!isSpecial) {
    if (/[\0\t\n\r #/:<>?@[\\\]^|]/.test(text)) throw invalid(text);
    return percentEncode(text, '');
  }
  const host = percentDecode(text).toLowerCase();
  if (/[^\0-\x7f]/.test(host)) {
    throw new TypeError(`Invalid URL: the host ${host} has characters outside of ASCII; write it in its form with xn--`);
  }
  if (host === '' || /[\0-\x20"#%/:<>?@[\\\]^`{|}\x7f]/.test(host)) throw invalid(text);
  return ipv4(host) ?? host;
}

const SINGLE_DOT = /^(\.|%2e)$/i;
const DOUBLE_DOT = /^(\.|%2e){2}$/i;
const DRIVE = /^[a-z][:|]$/i;

/** Appends a path's segments to those before it, with dots resolved. */
function appendPath(before, text, url) {
  const path = [...before];
  const segments = url.isSpecial ? text.split(/[/\\]/) : text.split('/');
  for (const [index, segment] of segments.entries()) {
    const isLast = index === segments.length - 1;
    if (DOUBLE_DOT.test(segment)) {
      if (!(url.scheme === 'file' && path.length === 1 && DRIVE.test(path[0]))) path.pop();
      if (isLast) path.push('');
    } else if (SINGLE_DOT.test(segment)) {
      if (isLast) path.push('');
    } else {
      const encoded = percentEncode(segment, 'path');
      const isDrive = url.scheme === 'file' && path.length === 0 && DRIVE.test(encoded);
      path.push(isDrive ? `${encoded[0]}:` : encoded);
    }
  }
  return path;
}

function setAuthority(url, text) {
  const at = text.lastIndexOf('@');
  if (at >= 0) {
    const [, user, password = ''] = /^([^:]*)(?::(.*))?$/s.exec(text.slice(0, at));
    url.username = percentEncode(user, 'userinfo');
    url.password = percentEncode(password, 'userinfo');
  }
  const found = /^(\[[^\]]*\]|[^:]*)(?::(.*))?$/s.exec(text.slice(at + 1));
  if (found === null) throw invalid(text);
  const [, host, port] = found;
  if (host === '' && (url.isSpecial || at >= 0 || port !== undefined)) throw invalid(text);
  url.host = host === '' ? '' : parseHost(host, url.isSpecial);
  if (port !== undefined && port !== '') setPort(url, port);
}

function setPort(url, text) {
  if (!/^\d+$/.test(text) || Number(text) > 65535) throw invalid(text);
  const port = String(Number(text));
  url.port = port === SPECIAL[url.scheme] ? '' : port;
}

function parse(given, base) {
  let text = given.replace(/^[\0-\x20]+|[\0-\x20]+$/g, '').replace(/[\t\n\r]/g, '');
  const url = { scheme: '', username: '', password: '', host: null, port: '', path: [], opaque: undefined, query: null, fragment: null };
  const take = (mark) => {
    const at = text.indexOf(mark);
    if (at < 0) return null;
    const rest = text.slice(at + 1);
    text = text.slice(0, at);
    return rest;
  };
  const fragment = take('#');
  if (fragment !== null) url.fragment = percentEncode(fragment, 'fragment');
  const scheme = /^([a-z][a-z0-9+.-]*):/i.exec(text);
  if (scheme === null && base === undefined) throw invalid(given);
  url.scheme = scheme === null ? base.scheme : scheme[1].toLowerCase();
  url.isSpecial = Object.hasOwn(SPECIAL, url.scheme);
  if (scheme !== null) text = text.slice(scheme[0].length);
  const hadQuery = text.includes('?');
  const query = take('?');
  if (hadQuery) url.query = percentEncode(query, url.isSpecial ? 'specialQuery' : 'query');
  const slash = url.isSpecial ? /^[/\\]/ : /^\//;
  const isRelative = scheme === null || (url.isSpecial && base?.scheme === url.scheme && !slash.test(text) && base.host !== null);
  if (isRelative && base.opaque !== undefined) {
    if (text !== '' || hadQuery || fragment === null) throw invalid(given);
    return { ...base, fragment: url.fragment };
  }
  const doubled = url.isSpecial ? /^[/\\]{2}/ : /^\/\//;
  if (url.scheme === 'file' && !doubled.test(text)) {
    const from = base?.scheme === 'file' ? base : { host: '', path: [], query: null };
    url.host = from.host;
    return relative(url, text, from, slash, hadQuery);
  }
  if (doubled.test(text) || (scheme !== null && url.isSpecial && !isRelative)) {
    const rest = url.scheme === 'file' ? text.slice(2) : text.replace(url.isSpecial ? /^[/\\]*/ : /^\/\//, '');
    const end = rest.search(url.isSpecial ? /[/\\]/ : /\//);
    const authority = end < 0 ? rest : rest.slice(0, end);
    if (url.scheme === 'file') {
      const isDrive = DRIVE.test(authority);
      url.host = isDrive || authority === '' ? '' : parseHost(authority, true);
      if (url.host === 'localhost') url.host = '';
      url.path = appendPath([], isDrive ? rest : end < 0 ? '' : rest.slice(end + 1), url);
      return url;
    }
    setAuthority(url, authority);
    if (end >= 0) url.path = appendPath([], rest.slice(end + 1), url);
    else if (url.isSpecial) url.path = [''];
    return url;
  }
  if (isRelative) {
    Object.assign(url, { username: base.username, password: base.password, host: base.host, port: base.port });
    return relative(url, text, base, slash, hadQuery);
  }
  if (slash.test(text)) url.path = appendPath([], text.slice(1), url);
  else url.opaque = percentEncode(text, '').replace(/ (?=$)/, url.query === null && url.fragment === null ? '' : '%20');
  return url;
}

function relative(url, text, base, slash, hadQuery) {
  if (slash.test(text)) url.path = appendPath([], text.slice(1), url);
  else if (text === '') {
    url.path = [...base.path];
    if (!hadQuery) url.query = base.query;
  } else url.path = appendPath(base.path.slice(0, -1), text, url);
  return url;
}

function serializePath(url) {
  return url.opaque ?? url.path.map((segment) => `/${segment}`).join('');
}

function serializeHost(url) {
  return `${url.host ?? ''}${url.port === '' ? '' : `:${url.port}`}`;
}

function serialize(url, withFragment = true) {
  let text = `${url.scheme}:`;
  if (url.host !== null) {
    const password = url.password === '' ? '' : `:${url.password}`;
    text += `//${url.username}${password}${url.username !== '' || password !== '' ? '@' : ''}${serializeHost(url)}`;
  } else if (url.opaque === undefined && url.path.length > 1 && url.path[0] === '') text += '/.';
  text += serializePath(url);
  if (url.query !== null) text += `?${url.query}`;
  return withFragment && url.fragment !== null ? `${text}#${url.fragment}` : text;
}

function formEncode(text) {
  return encodeURIComponent(text.toWellFormed())
    .replace(/[!'()~]/g, (character) => `%${character.charCodeAt(0).toString(16).toUpperCase()}`)
    .replaceAll('%20', '+');
}

export class URLSearchParams {
  #list = [];
  #changed = () => {};

  constructor(init = '') {
    if (typeof init === 'object' && init !== null) {
      const entries = typeof init[Symbol.iterator] === 'function' ? [...init] : Object.entries(init);
      for (const pair of entries) {
        const items = [...pair];
        if (items.length !== 2) throw new TypeError('each item of URLSearchParams has to be a name and a value');
        this.#list.push([String(items[0]), String(items[1])]);
      }
    } else this.#parse(String(init));
  }

  #parse(text) {
    const pairs = text.replace(/^\?/, '').split('&').filter((pair) => pair !== '');
    this.#list = pairs.map((pair) => {
      const at = pair.indexOf('=');
      const [name, value] = at < 0 ? [pair, ''] : [pair.slice(0, at), pair.slice(at + 1)];
      return [name, value].map((part) => percentDecode(part.replaceAll('+', ' ')));
    });
  }

  static read(params, text) {
    params.#parse(text);
  }

  static onChange(params, changed) {
    params.#changed = changed;
  }

  get size() {
    return this.#list.length;
  }

  append(name, value) {
    this.#list.push([String(name), String(value)]);
    this.#changed();
  }

  delete(name, value) {
    this.#list = this.#list.filter(([key, each]) => key !== String(name) || (value !== undefined && each !== String(value)));
    this.#changed();
  }

  get(name) {
    return this.#list.find(([key]) => key === String(name))?.[1] ?? null;
  }

  getAll(name) {
    return this.#list.filter(([key]) => key === String(name)).map(([, value]) => value);
  }

  has(name, value) {
    return this.#list.some(([key, each]) => key === String(name) && (value === undefined || each === String(value)));
  }

  set(name, value) {
    const at = this.#list.findIndex(([key]) => key === String(name));
    if (at < 0) this.#list.push([String(name), String(value)]);
    else {
      this.#list[at] = [String(name), String(value)];
      this.#list = this.#list.filter(([key], index) => index <= at || key !== String(name));
    }
    this.#changed();
  }

  sort() {
    this.#list.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
    this.#changed();
  }

  forEach(callback, self) {
    for (const [name, value] of this.#list) callback.call(self, value, name, this);
  }

  *entries() {
    for (const [name, value] of this.#list) yield [name, value];
  }

  *keys() {
    for (const [name] of this.#list) yield name;
  }

  *values() {
    for (const [, value] of this.#list) yield value;
  }

  [Symbol.iterator]() {
    return this.entries();
  }

  get [Symbol.toStringTag]() {
    return 'URLSearchParams';
  }

  toString() {
    return this.#list.map(([name, value]) => `${formEncode(name)}=${formEncode(value)}`).join('&');
  }
}

export class URL {
  #url;
  #params;

  constructor(given, base) {
    this.#url = parse(String(given), base === undefined ? undefined : parse(String(base)));
  }

  static canParse(given, base) {
    return URL.parse(given, base) !== null;
  }

  static parse(given, base) {
    try {
      return new URL(given, base);
    } catch {
      return null;
    }
  }

  get href() {
    return serialize(this.#url);
  }

  set href(value) {
    this.#url = parse(String(value));
    this.#readParams();
  }

  get origin() {
    const { scheme, isSpecial, opaque } = this.#url;
    if (scheme === 'blob') {
      const inner = URL.parse(opaque ?? '');
      return inner !== null && /^https?:$/.test(inner.protocol) ? inner.origin : 'null';
    }
    return isSpecial && scheme !== 'file' ? `${scheme}://${serializeHost(this.#url)}` : 'null';
  }

  get protocol() {
    return `${this.#url.scheme}:`;
  }

  set protocol(value) {
    const scheme = /^[a-z][a-z0-9+.-]*/i.exec(String(value))?.[0].toLowerCase();
    if (scheme === undefined || Object.hasOwn(SPECIAL, scheme) !== this.#url.isSpecial || scheme === 'file' || this.#url.scheme === 'file') return;
    this.#url.scheme = scheme;
    if (this.#url.port === SPECIAL[scheme]) this.#url.port = '';
  }

  get username() {
    return this.#url.username;
  }

  set username(value) {
    if (this.#url.host) this.#url.username = percentEncode(String(value), 'userinfo');
  }

  get password() {
    return this.#url.password;
  }

  set password(value) {
    if (this.#url.host) this.#url.password = percentEncode(String(value), 'userinfo');
  }

  get host() {
    return serializeHost(this.#url);
  }

  set host(value) {
    const found = /^(\[[^\]]*\]|[^:/?#\\]*)(?::(\d+))?/.exec(String(value));
    if (this.#url.opaque !== undefined || found === null || found[1] === '') return;
    try {
      this.#url.host = parseHost(found[1], this.#url.isSpecial);
      if (found[2] !== undefined) setPort(this.#url, found[2]);
    } catch {
      // An invalid host changes nothing.
    }
  }

  get hostname() {
    return this.#url.host ?? '';
  }

  set hostname(value) {
    if (!/^[^[]*:/.test(String(value))) this.host = value;
  }

  get port() {
    return this.#url.port;
  }

  set port(value) {
    const digits = /^\d*/.exec(String(value))[0];
    if (!this.#url.host || this.#url.scheme === 'file') return;
    if (String(value) === '') this.#url.port = '';
    else if (digits !== '' && Number(digits) <= 65535) setPort(this.#url, digits);
  }

  get pathname() {
    return serializePath(this.#url);
  }

  set pathname(value) {
    if (this.#url.opaque !== undefined) return;
    this.#url.path = appendPath([], String(value).replace(this.#url.isSpecial ? /^[/\\]/ : /^\//, ''), this.#url);
  }

  get search() {
    return this.#url.query ? `?${this.#url.query}` : '';
  }

  set search(value) {
    const text = String(value).replace(/^\?/, '');
    this.#url.query = String(value) === '' ? null : percentEncode(text, this.#url.isSpecial ? 'specialQuery' : 'query');
    this.#readParams();
  }

  get hash() {
    return this.#url.fragment ? `#${this.#url.fragment}` : '';
  }

  set hash(value) {
    this.#url.fragment = String(value) === '' ? null : percentEncode(String(value).replace(/^#/, ''), 'fragment');
  }

  #readParams() {
    if (this.#params !== undefined) URLSearchParams.read(this.#params, this.#url.query ?? '');
  }

  get searchParams() {
    if (this.#params === undefined) {
      this.#params = new URLSearchParams(this.#url.query ?? '');
      URLSearchParams.onChange(this.#params, () => {
        const text = this.#params.toString();
        this.#url.query = text === '' ? null : text;
      });
    }
    return this.#params;
  }

  get [Symbol.toStringTag]() {
    return 'URL';
  }

  toString() {
    return this.href;
  }

  toJSON() {
    return this.href;
  }
}
