// `node:fs`: there are no files, so a query reports that a file is absent, and any use of a file is an error.

const INSTEAD =
  'a component has no files; import data as a module, such as JSON, and store files with `artifact` of rollout-sdk';

function missing(operation) {
  return (path) => {
    const error = new Error(`ENOENT: no such file or directory, ${operation} '${String(path)}': ${INSTEAD}`);
    throw Object.assign(error, { code: 'ENOENT', errno: -2, syscall: operation, path: String(path) });
  };
}

const SYNC = [
  'access', 'appendFile', 'chmod', 'chown', 'copyFile', 'cp', 'link', 'lstat', 'mkdir', 'mkdtemp', 'open', 'opendir', 'readdir',
  'readFile', 'readlink', 'realpath', 'rename', 'rm', 'rmdir', 'stat', 'symlink', 'truncate', 'unlink', 'utimes', 'writeFile',
];

const fs = {
  existsSync: () => false,
  exists: (_path, callback) => queueMicrotask(() => callback(false)),
  constants: { F_OK: 0, R_OK: 4, W_OK: 2, X_OK: 1, O_RDONLY: 0, O_WRONLY: 1, O_RDWR: 2, O_CREAT: 64, O_EXCL: 128, O_TRUNC: 512, O_APPEND: 1024, COPYFILE_EXCL: 1 },
  promises: { constants: {} },
  Stats: class Stats {},
};
for (const name of SYNC) {
  fs[`${name}Sync`] = missing(name);
  fs.promises[name] = async (path) => missing(name)(path);
  fs[name] = (path, ...rest) => {
    const callback = rest.findLast((each) => typeof each === 'function');
    fs.promises[name](path).catch((error) => callback?.(error));
  };
}
for (const name of ['createReadStream', 'createWriteStream', 'watch', 'watchFile', 'readSync', 'writeSync', 'closeSync']) {
  fs[name] = missing(name);
}
fs.statSync = (path, options) => (options?.throwIfNoEntry === false ? undefined : missing('stat')(path));
fs.lstatSync = fs.statSync;
fs.realpath.native = fs.realpath;
fs.realpathSync.native = fs.realpathSync;
fs.promises.constants = fs.constants;

export const {
  access, accessSync, appendFile, appendFileSync, chmodSync, closeSync, constants, copyFile, copyFileSync, cpSync,
  createReadStream, createWriteStream, exists, existsSync, lstat, lstatSync, mkdir, mkdirSync, mkdtemp, mkdtempSync, open,
  opendirSync, openSync, promises, readdir, readdirSync, readFile, readFileSync, readlink, readlinkSync, readSync, realpath,
  realpathSync, rename, renameSync, rm, rmdir, rmdirSync, rmSync, stat, Stats, statSync, symlinkSync, unlink, unlinkSync, utimesSync,
  watch, watchFile, writeFile, writeFileSync, writeSync,
} = fs;
export default fs;
