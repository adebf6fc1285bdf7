// `node:path`, of POSIX.

export const sep = '/';
export const delimiter = ':';

export function normalize(path) {
  const isAbsolute_ = path.startsWith('/');
  const parts = [];
  for (const part of path.split('/')) {
    if (part === '' || part === '.') continue;
    if (part !== '..') parts.push(part);
    else if (parts.length > 0 && parts.at(-1) !== '..') parts.pop();
    else if (!isAbsolute_) parts.push('..');
  }
  const joined = parts.join('/');
  const end = path.endsWith('/') && joined !== '' ? '/' : '';
  return isAbsolute_ ? `/${joined}${end}` : joined === '' ? (path.endsWith('/') ? './' : '.') : `${joined}${end}`;
}

export function join(...parts) {
  const joined = parts.filter((part) => part !== '').join('/');
  return joined === '' ? '.' : normalize(joined);
}

export function resolve(...parts) {
  let path = '';
  for (const part of parts.toReversed()) {
    if (part === '') continue;
    path = path === '' ? part : `${part}/${path}`;
    if (part.startsWith('/')) break;
  }
  const full = normalize(path.startsWith('/') ? path : `/${path}`);
  return full.length > 1 && full.endsWith('/') ? full.slice(0, -1) : full;
}

export const isAbsolute = (path) => path.startsWith('/');

export function dirname(path) {
  const trimmed = path.replace(/(?<=.)\/+$/, '');
  const at = trimmed.lastIndexOf('/');
  if (at < 0) return '.';
  return trimmed.slice(0, at).replace(/\/+$/, '') || '/';
}

export function basename(path, suffix = '') {
  const base = path.replace(/\/+$/, '').split('/').pop();
  return suffix !== '' && base !== suffix && base.endsWith(suffix) ? base.slice(0, -suffix.length) : base;
}

export function extname(path) {
  const base = basename(path);
  const at = base.lastIndexOf('.');
  return at <= 0 || /^\.+$/.test(base.slice(0, at + 1)) ? '' : base.slice(at);
}

export function relative(from, to) {
  const [a, b] = [resolve(from), resolve(to)].map((path) => path.split('/').filter((part) => part !== ''));
  let same = 0;
  while (same < a.length && same < b.length && a[same] === b[same]) same += 1;
  return [...a.slice(same).map(() => '..'), ...b.slice(same)].join('/');
}

export function parse(path) {
  const base = basename(path);
  const ext = extname(path);
  const root = path.startsWith('/') ? '/' : '';
  const dir = path.replace(/\/+$/, '').includes('/') || root !== '' ? dirname(path) : '';
  return { root, dir, base, ext, name: ext === '' ? base : base.slice(0, -ext.length) };
}

export function format({ dir, root = '', base, name = '', ext = '' }) {
  const file = base ?? `${name}${ext !== '' && !ext.startsWith('.') ? '.' : ''}${ext}`;
  if (dir === undefined || dir === '') return `${root}${file}`;
  return dir === root ? `${dir}${file}` : `${dir}/${file}`;
}

export const toNamespacedPath = (path) => path;

const posix = { basename, delimiter, dirname, extname, format, isAbsolute, join, normalize, parse, relative, resolve, sep, toNamespacedPath };
posix.posix = posix;

export { posix };
export default posix;
