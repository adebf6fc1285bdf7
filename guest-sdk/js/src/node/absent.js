// Modules of Node that a component cannot have. They can be imported, because packages import modules that they never
// use. Each use is an error that names an alternative.

const INSTEAD = {
  child_process: 'there are no processes; provide a program as a tool of the operator (hostTools)',
  net: 'there is no network; the host calls the model (ctx.agent, ctx.sample.chat) and tools (hostTools)',
  stream: 'there are no streams of Node; use ReadableStream and TransformStream',
  vm: 'there is one program; write the code as a module',
  worker_threads: 'there is one thread; Promise.all makes concurrent calls',
  zlib: 'there is no compression; use a package in JavaScript, such as fflate',
};
const SAME = {
  cluster: 'worker_threads', dgram: 'net', dns: 'net', 'dns/promises': 'net', http: 'net', http2: 'net', https: 'net', tls: 'net',
  module: 'vm', repl: 'vm', v8: 'vm', wasi: 'vm', 'stream/promises': 'stream', 'stream/consumers': 'stream', readline: 'stream',
  'readline/promises': 'stream',
};
const OTHERWISE = 'it is part of Node, and the engine of a component is QuickJS';

/** Members that are known without Node. */
const KNOWN = {
  worker_threads: { isMainThread: true, parentPort: null, threadId: 0, workerData: null },
  cluster: { isPrimary: true, isMaster: true, isWorker: false },
  http: { METHODS: [], STATUS_CODES: {} },
  zlib: { constants: {} },
  module: { builtinModules: [], isBuiltin: () => false },
  inspector: { url: () => undefined },
};

/** Returns a module of this name whose members throw an error when they are called or constructed. */
export function absent(name) {
  const why = INSTEAD[name] ?? INSTEAD[SAME[name]] ?? OTHERWISE;
  const refuse = (path) => {
    throw new Error(`${path} is not in a component: ${why}`);
  };
  const member = (path) => {
    const members = new Map();
    return new Proxy(function absentMember() {}, {
      get: (target, key) => {
        if (typeof key === 'symbol' || key in target || key === '__esModule' || key === 'then') return target[key];
        if (!members.has(key)) members.set(key, member(`${path}.${key}`));
        return members.get(key);
      },
      apply: () => refuse(path),
      construct: () => refuse(path),
    });
  };
  // An object whose prototype answers, because bundlers copy a module's own members and keep its prototype.
  return Object.assign(Object.create(member(`node:${name}`)), KNOWN[name]);
}
