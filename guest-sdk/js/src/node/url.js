// `node:url`.

import { URL, URLSearchParams } from '../web/url.js';
import { parse as parseQuery } from './querystring.js';

export { URL, URLSearchParams };

export function fileURLToPath(url) {
  const { protocol, pathname } = new URL(String(url));
  if (protocol !== 'file:') throw new TypeError(`the URL has to begin with file:, not ${protocol}`);
  return decodeURIComponent(pathname);
}

export function pathToFileURL(path) {
  const url = new URL('file:///');
  url.pathname = path.replaceAll('%', '%25').replaceAll('?', '%3F').replaceAll('#', '%23');
  return url;
}

export const domainToASCII = (domain) => URL.parse(`ws://${domain}`)?.hostname ?? '';
export const domainToUnicode = domainToASCII;

/** Parses as Node's old parser does: a member that the text does not have is `null`. */
export function parse(text, withQuery = false) {
  const [, protocol = null, slashes, authority = '', path = '', search = null, hash = null] =
    /^([a-z][a-z0-9+.-]*:)?(\/\/)?((?<=\/\/)[^/?#]*)?([^?#]*)(\?[^#]*)?(#.*)?$/is.exec(text.trim());
  const at = authority.lastIndexOf('@');
  const host = authority.slice(at + 1).toLowerCase();
  const [, hostname, port = null] = /^(.*?)(?::(\d+))?$/.exec(host);
  const pathname = path === '' && slashes && search === null ? '/' : path || null;
  const query = search === null ? (withQuery ? '' : null) : search.slice(1);
  return {
    protocol: protocol?.toLowerCase() ?? null,
    slashes: slashes ? true : null,
    auth: at < 0 ? null : decodeURIComponent(authority.slice(0, at)),
    host: slashes ? host : null,
    port,
    hostname: slashes ? hostname : null,
    hash,
    search,
    query: withQuery ? parseQuery(query) : query,
    pathname,
    path: pathname === null && search === null ? null : `${pathname ?? ''}${search ?? ''}`,
    href: text,
  };
}

export function format(given) {
  if (given instanceof URL || typeof given === 'string') return String(given);
  const { protocol, auth, host, hostname = '', port, pathname = '', search, query, hash = '', slashes } = given;
  const scheme = protocol ? (protocol.endsWith(':') ? protocol : `${protocol}:`) : '';
  const authority = host ?? `${hostname}${port ? `:${port}` : ''}`;
  const hasSlashes = slashes || /^(https?|ftp|file|wss?):$/.test(scheme);
  const text = query && typeof query === 'object' ? new URLSearchParams(query).toString() : '';
  const found = search ?? (text === '' ? '' : `?${text}`);
  return `${scheme}${hasSlashes ? '//' : ''}${auth ? `${auth}@` : ''}${authority}${pathname ?? ''}${found ?? ''}${hash ?? ''}`;
}

export const resolve = (from, to) => {
  const base = new URL(from, 'resolve://x/');
  const url = new URL(to, base);
  return url.protocol === 'resolve:' ? `${url.pathname}${url.search}${url.hash}` : url.href;
};

export default { URL, URLSearchParams, domainToASCII, domainToUnicode, fileURLToPath, format, parse, pathToFileURL, resolve };
