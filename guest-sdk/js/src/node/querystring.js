// `node:querystring`.

export const escape = encodeURIComponent;

export function unescape(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function stringify(values, separator = '&', equals = '=') {
  const text = (value) => (['string', 'boolean', 'bigint'].includes(typeof value) || Number.isFinite(value) ? escape(String(value)) : '');
  return Object.entries(values ?? {})
    .flatMap(([name, value]) => [value].flat().map((each) => `${escape(name)}${equals}${text(each)}`))
    .join(separator);
}

export function parse(text, separator = '&', equals = '=') {
  const values = Object.create(null);
  for (const pair of text.split(separator).filter((each) => each !== '')) {
    const [name, ...rest] = pair.split(equals);
    const [key, value] = [name, rest.join(equals)].map((part) => unescape(part.replaceAll('+', ' ')));
    values[key] = key in values ? [values[key], value].flat() : value;
  }
  return values;
}

export const encode = stringify;
export const decode = parse;
export default { decode, encode, escape, parse, stringify, unescape };
