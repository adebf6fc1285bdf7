// Uses of built-in modules of Node and globals of the web. A test compares their results in a component with those in
// Node.

import assert from 'node:assert';
import { AsyncLocalStorage, AsyncResource } from 'node:async_hooks';
import { Buffer as NodeBuffer } from 'node:buffer';
import { createHash, createHmac, randomBytes, timingSafeEqual } from 'node:crypto';
import EventEmitter, { once } from 'node:events';
import path from 'node:path';
import querystring from 'node:querystring';
import { setTimeout as wait } from 'node:timers/promises';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { format, inherits, inspect, isDeepStrictEqual, promisify } from 'node:util';

/** Returns a result, or the kind of the error. */
async function attempt(work) {
  try {
    const value = await work();
    return value === undefined ? 'undefined' : value;
  } catch (error) {
    return `throws ${error.name}`;
  }
}

function urlParts(text, base) {
  const url = new URL(text, base);
  const { href, origin, protocol, username, password, host, hostname, port, pathname, search, hash } = url;
  return [href, origin, protocol, username, password, host, hostname, port, pathname, search, hash, [...url.searchParams]];
}

const URLS = [
  ['http://user:p%40ss@EXAMPLE.com:80/a/./b/../c?x=1&y=a+b#frag'], ['https://example.com'], ['https://example.com:8443/'],
  ['HTTP:\\\\example.com\\a\\b'], ['http://example.com/a b?q=ü&é#ü'], ['http://127.1/'], ['http://0x7f.0.0.1'], ['http://256.1.1.1'],
  ['http://[::1]:3000/x'], ['http://[2001:db8:0:0:1:0:0:1]/'], ['http://[::ffff:1.2.3.4]/'], ['http://[1::2::3]/'], ['file:///etc/passwd'],
  ['file:c:/x/../y'], ['file://host/share/x'], ['mailto:a@b.c?subject=x y'], ['data:text/plain,hello world'], ['javascript:alert(1)'],
  ['custom://Host/Path/../x?y#z'], ['custom:/a/b/..'], ['blob:https://a.b/c'], ['//host/path', 'https://base.org/dir/page?q#h'],
  ['/abs', 'https://base.org/dir/page'], ['rel', 'https://base.org/dir/page'], ['../up', 'https://base.org/a/b/c'], ['?q', 'https://base.org/a?b#c'],
  ['#h', 'https://base.org/a?b#c'], ['', 'https://base.org/a?b#c'], ['#x', 'mailto:a@b.c'], ['x', 'mailto:a@b.c'], ['http:rel', 'http://base.org/a/b'],
  ['http://a b/'], ['http://'], ['nothing'], ['http://exa%41mple.com/'], ['http://a:99999/'], ['http://a:/x'], ['  https://trim.me/\n'],
  ['https://a.b/%7Efoo/%zz'], ['https://a.b/<>"`{}|'], ['https://a.b?\'"<>'], ['ws://x.y:80/'], ['https://a.b/x;y=1,2@3:4'], ['https://user@h/'],
  ['https://a..b/'], ['http://1.2.3'], ['http://1.2.3.4.'], ['custom://h:90/'], ['custom:///p'], ['https:/a.b/c'], ['https:a.b'],
];

class Legacy {
  constructor() {
    EventEmitter.call(this);
  }
}
inherits(Legacy, EventEmitter);

const GROUPS = {
  url: async () => {
    const parts = await Promise.all(URLS.map(([text, base]) => attempt(() => urlParts(text, base))));
    const url = new URL('https://example.com/a?x=1');
    url.searchParams.append('y', 'a b&c=ü');
    url.searchParams.delete('x');
    url.pathname = '/new path';
    url.hash = 'h';
    url.port = '8080';
    url.hostname = 'other.org';
    url.protocol = 'http';
    url.username = 'me:you';
    const params = new URLSearchParams([['b', '2'], ['a', '1'], ['b', '3']]);
    params.sort();
    params.set('b', '4');
    const forms = ["a=1&b=%20+c&=x&d&e=%e2%82%ac&&f=%zz!'()*~", { k: 'v w' }, '?q=1'].map((init) => String(new URLSearchParams(init)));
    return [parts, url.href, String(params), params.has('a', '1'), params.size, forms, URL.canParse('x:y'), JSON.stringify({ url })];
  },
  fetch: async () => {
    const headers = new Headers({ 'X-B': ' 2 ', 'x-a': '1' });
    headers.append('x-a', '3');
    headers.append('Set-Cookie', 'a=1');
    headers.append('set-cookie', 'b=2');
    const response = new Response(JSON.stringify({ a: [1, 'é'] }), { status: 201, headers: { 'content-type': 'application/json' } });
    const copy = response.clone();
    const request = new Request('https://a.b/c', { method: 'post', body: new URLSearchParams({ q: 'x y' }) });
    const form = new FormData();
    form.append('a', '1');
    form.append('f', new Blob(['xyz'], { type: 'text/plain' }), 'n.txt');
    const multipart = await new Response(form).text();
    const blob = new Blob(['ab', new Uint8Array([99, 100]), new Blob(['ef'])], { type: 'Text/Plain' });
    const streamed = new Response(new ReadableStream({
      start(controller) {
        controller.enqueue(new TextEncoder().encode('one '));
        controller.enqueue(new TextEncoder().encode('two'));
        controller.close();
      },
    }));
    return [
      [...headers], headers.get('set-cookie'), headers.getSetCookie(), await attempt(() => headers.set('a b', 'x')),
      await response.json(), response.ok, response.bodyUsed, await attempt(() => response.text()), await copy.text(),
      request.method, request.headers.get('content-type'), await request.text(), multipart.replaceAll(/-{4,}[\w-]+/g, 'BOUNDARY'),
      blob.size, blob.type, await blob.text(), await blob.slice(1, 4).text(), await streamed.text(),
      await attempt(() => new Response('x', { status: 204 })), await attempt(() => new Response(null, { status: 99 })),
      await attempt(() => new Request('https://a.b', { body: 'x' })), await Response.json({ x: 1 }).json(), [...form.keys()],
      (await new Response('aé').arrayBuffer()).byteLength,
    ];
  },
  streams: async () => {
    const seen = [];
    const source = new ReadableStream({
      start(controller) {
        this.n = 0;
        seen.push(controller.desiredSize);
      },
      pull(controller) {
        this.n += 1;
        seen.push(`pull ${this.n}`);
        if (this.n > 4) controller.close();
        else controller.enqueue(this.n);
      },
    });
    const doubled = source.pipeThrough(new TransformStream({
      transform: (chunk, controller) => {
        controller.enqueue(chunk * 2);
        controller.enqueue(`${chunk}`);
      },
      flush: (controller) => controller.enqueue('end'),
    }));
    const [a, b] = doubled.tee();
    const read = async (stream) => {
      const all = [];
      for await (const chunk of stream) all.push(chunk);
      return all;
    };
    const branches = await Promise.all([read(a), read(b)]);
    const written = [];
    const sink = new WritableStream({ write: async (chunk) => written.push(chunk), close: () => written.push('closed') }, new CountQueuingStrategy({ highWaterMark: 2 }));
    const writer = sink.getWriter();
    const sizes = [writer.desiredSize];
    writer.write(1);
    sizes.push(writer.desiredSize);
    writer.write(2);
    sizes.push(writer.desiredSize);
    await writer.ready;
    await writer.close();
    const text = await read(ReadableStream.from(['h\u00e9', 'llo']).pipeThrough(new TextEncoderStream()).pipeThrough(new TextDecoderStream()));
    const failing = new ReadableStream({ pull: () => Promise.reject(new RangeError('x')) });
    const cancelled = [];
    const stopped = new ReadableStream({ pull: (controller) => controller.enqueue(1), cancel: (reason) => { cancelled.push(reason); } });
    const reader = stopped.getReader();
    await reader.read();
    await reader.cancel('why');
    const abort = new AbortController();
    const never = new ReadableStream({});
    const piped = never.pipeTo(new WritableStream(), { signal: abort.signal });
    abort.abort(new TypeError('stop'));
    return [
      seen.length > 4, branches, written, sizes, text, await attempt(() => read(failing)), cancelled, await reader.read(),
      await attempt(() => stopped.getReader()), await attempt(() => piped), never.locked,
    ];
  },
  context: async () => {
    const storage = new AsyncLocalStorage();
    const other = new AsyncLocalStorage();
    const seen = [];
    const work = async (name) => {
      seen.push(storage.getStore());
      await wait(name === 'a' ? 20 : 10);
      seen.push(storage.getStore());
      await Promise.all([1, 2].map(async () => {
        await null;
        seen.push([storage.getStore(), other.getStore()]);
      }));
      return storage.exit(() => storage.getStore());
    };
    const results = await Promise.all([storage.run('a', work, 'a'), storage.run('b', () => other.run(1, () => work('b')))]);
    const bound = storage.run('kept', () => AsyncResource.bind(() => storage.getStore()));
    const snapshot = storage.run('shot', () => AsyncLocalStorage.snapshot());
    const late = await storage.run('late', () => new Promise((resolve) => setTimeout(() => queueMicrotask(() => resolve(storage.getStore())), 1)));
    const generated = await storage.run('generator', async () => {
      const all = [];
      for await (const each of (async function* items() { yield storage.getStore(); await wait(1); yield storage.getStore(); })()) all.push(each);
      return all;
    });
    return [seen, results.map((each) => each === undefined), bound(), snapshot(() => storage.getStore()), late, generated, storage.getStore() === undefined];
  },
  buffer: async () => {
    const text = NodeBuffer.from('h\u00e9llo \u{1f600}');
    const encodings = ['utf8', 'hex', 'base64', 'base64url', 'latin1', 'ascii', 'utf16le'];
    const number = Buffer.alloc(8);
    number.writeUInt32BE(0xdeadbeef, 0);
    number.writeInt16LE(-2, 4);
    const joined = Buffer.concat([Buffer.from([1, 2]), Buffer.from('ff', 'hex')]);
    return [
      encodings.map((each) => text.toString(each)), encodings.map((each) => [...Buffer.from('68656c6c', each)]), text.length,
      Buffer.byteLength('\u20ac'), number.toString('hex'), number.readUInt16BE(2), number.readInt16LE(4), [...joined], JSON.stringify(joined),
      joined.equals(Buffer.from([1, 2, 255])), Buffer.compare(joined, Buffer.from([1, 3])), text.indexOf('llo'), text.subarray(0, 1) instanceof Buffer,
      text.slice(1, 3).toString('hex'), Buffer.from('abc').fill('xy').toString(), Buffer.isBuffer(text), Buffer.isBuffer(new Uint8Array()),
      `${Buffer.from('YWJj', 'base64')}`, Buffer.from('a b', 'latin1').includes('b'), Buffer.from(new Uint8Array([65, 66]).buffer).toString(),
      await attempt(() => Buffer.from('x', 'nope')),
    ];
  },
  crypto: async () => {
    const texts = ['', 'abc', 'x'.repeat(55), 'x'.repeat(56), 'x'.repeat(64), 'y'.repeat(111), 'y'.repeat(112), 'z'.repeat(1000), '\u00e9\u{1f600}'];
    const names = ['md5', 'sha1', 'sha256', 'sha512'];
    const hashes = names.map((name) => texts.map((text) => createHash(name).update(text).digest('hex')));
    const codes = names.map((name) => ['key', 'k'.repeat(200)].map((key) => createHmac(name, key).update('a').update('b').digest('base64')));
    const subtle = new Uint8Array(await crypto.subtle.digest('SHA-256', new TextEncoder().encode('abc')));
    return [
      hashes, codes, Buffer.from(subtle).toString('hex'), randomBytes(16).length, timingSafeEqual(Buffer.from('a'), Buffer.from('b')),
      /^[0-9a-f]{8}-[0-9a-f]{4}-4/.test(crypto.randomUUID()), await attempt(() => createHash('nope')),
    ];
  },
  modules: async () => {
    const emitter = new EventEmitter();
    const heard = [];
    emitter.on('x', (...args) => heard.push(['on', ...args]));
    emitter.prependListener('x', (value) => heard.push(['first', value]));
    emitter.once('x', (value) => heard.push(['once', value]));
    const waited = once(emitter, 'y');
    const results = [emitter.emit('x', 1, 2), emitter.emit('x', 3), emitter.emit('none'), emitter.listenerCount('x'), emitter.eventNames().map(String)];
    emitter.emit('y', 'yes');
    const legacy = new Legacy();
    legacy.on('z', (value) => heard.push(['legacy', value]));
    legacy.emit('z', 9);
    const paths = ['/a/b/../c.txt', 'a//b/./c', '', '/', '..', './x/', '/a/b/', 'file.tar.gz', '.hidden', 'a/.b.c'];
    const compare = async (name, ...args) => attempt(() => assert[name](...args));
    return [
      heard, results, await waited, legacy instanceof EventEmitter, await attempt(() => emitter.emit('error', new RangeError('x'))),
      paths.map((each) => [path.normalize(each), path.dirname(each), path.basename(each), path.extname(each), path.isAbsolute(each), path.parse(each)]),
      path.join('a', '..', '/b', 'c/'), path.resolve('/a/b', '../c', './d'), path.relative('/a/b/c', '/a/d'), path.format({ dir: '/x', name: 'f', ext: '.t' }),
      querystring.parse('a=1&b=x+y&a=2&c'), querystring.stringify({ a: [1, 2], b: 'x y', c: true }),
      fileURLToPath('file:///a%20b/c'), pathToFileURL('/a b/#c?').href,
      format('%s has %d of %j %% %i', 'x', 4.5, { a: 1 }, 7.9, 'more'), inspect('it'), isDeepStrictEqual({ a: [1, new Set([2])] }, { a: [1, new Set([2])] }),
      isDeepStrictEqual({ a: 1 }, { a: '1' }), await promisify((value, done) => done(null, value * 2))(21), await attempt(() => promisify((done) => done(new RangeError('x')))()),
      await compare('equal', 1, '1'), await compare('strictEqual', 1, '1'), await compare('deepEqual', { a: 1 }, { a: '1' }),
      await compare('deepStrictEqual', [1, { b: 2 }], [1, { b: 2 }]), await compare('deepStrictEqual', new Map([[1, 2]]), new Map([[1, 3]])),
      await compare('throws', () => { throw new TypeError('bad'); }, /bad/), await compare('throws', () => {}), await compare('throws', () => { throw new TypeError('bad'); }, { name: 'TypeError', message: 'bad' }),
      await compare('rejects', async () => { throw new Error('x'); }, Error), await compare('match', 'abc', /c$/), await compare('ok', 0), await compare('notDeepStrictEqual', [1], [1]),
      await wait(1, 'waited'), process.env.NOT_SET === undefined, typeof process.nextTick,
    ];
  },
};

export async function results(group) {
  return GROUPS[group]();
}
