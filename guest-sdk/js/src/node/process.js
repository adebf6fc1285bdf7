// `process`: a component has no environment, no arguments and no files.

import { EventEmitter } from './events.js';

function refuse(what) {
  throw new Error(`process.${what} is not in a component: throw Failed, Invalid or TimedOut of rollout-sdk to give up`);
}

const output = (write) => ({
  isTTY: false,
  write: (text, ...rest) => {
    write(String(text).replace(/\n$/, ''));
    rest.find((each) => typeof each === 'function')?.();
    return true;
  },
});

const emitter = new EventEmitter();
const since = () => BigInt(Math.round(performance.now() * 1e6));

export const process = Object.assign(emitter, {
  title: 'rollout',
  env: { NODE_ENV: 'production' },
  argv: [],
  argv0: '',
  execArgv: [],
  execPath: '',
  arch: 'wasm32',
  platform: 'wasi',
  pid: 1,
  ppid: 0,
  // Programs recognize Node by `versions.node`.
  version: '',
  versions: {},
  release: {},
  config: {},
  features: {},
  exitCode: undefined,
  browser: true,
  stdout: output((text) => console.log(text)),
  stderr: output((text) => console.error(text)),
  nextTick: (callback, ...args) => queueMicrotask(() => callback(...args)),
  cwd: () => '/',
  chdir: () => refuse('chdir'),
  exit: () => refuse('exit'),
  abort: () => refuse('abort'),
  kill: () => refuse('kill'),
  umask: () => 0,
  uptime: () => performance.now() / 1000,
  hrtime: Object.assign(
    (before) => {
      const now = since() - (before === undefined ? 0n : BigInt(before[0]) * 1_000_000_000n + BigInt(before[1]));
      return [Number(now / 1_000_000_000n), Number(now % 1_000_000_000n)];
    },
    { bigint: since },
  ),
  memoryUsage: Object.assign(() => ({ rss: 0, heapTotal: 0, heapUsed: 0, external: 0, arrayBuffers: 0 }), { rss: () => 0 }),
  emitWarning: (warning) => console.warn(String(warning)),
  getBuiltinModule: () => undefined,
});

export const {
  abort, arch, argv, cwd, emitWarning, env, exit, hrtime, memoryUsage, nextTick, pid, platform, stderr, stdout, umask, uptime,
  version, versions,
} = process;
export const on = process.on.bind(process);
export const once = process.once.bind(process);
export const off = process.off.bind(process);
export default process;
