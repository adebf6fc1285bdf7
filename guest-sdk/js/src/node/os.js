// `node:os`: the same answers on any machine.

export const EOL = '\n';
export const devNull = '/dev/null';
export const constants = { signals: {}, errno: {} };
export const arch = () => 'wasm32';
export const availableParallelism = () => 1;
export const cpus = () => [];
export const endianness = () => 'LE';
export const freemem = () => 0;
export const homedir = () => '/';
export const hostname = () => 'rollout';
export const loadavg = () => [0, 0, 0];
export const machine = () => 'wasm32';
export const networkInterfaces = () => ({});
export const platform = () => 'wasi';
export const release = () => '';
export const tmpdir = () => '/tmp';
export const totalmem = () => 0;
export const type = () => 'WASI';
export const uptime = () => 0;
export const userInfo = () => ({ uid: -1, gid: -1, username: 'rollout', homedir: '/', shell: null });
export const version = () => '';
export default {
  EOL, arch, availableParallelism, constants, cpus, devNull, endianness, freemem, homedir, hostname, loadavg, machine,
  networkInterfaces, platform, release, tmpdir, totalmem, type, uptime, userInfo, version,
};
