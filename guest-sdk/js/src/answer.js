// Extraction of answers from a model's text. An ambiguous text gives `undefined`, because a grader that guesses
// trains the wrong behaviour.

const AROUND = /^[\s*`$]+|[\s*`$]+$/g;
const SEPARATOR = /[, \u00a0\u2009\u202f]/;
const PLAIN = /^[0-9.][0-9.eE+-]*$/;
const NUMBER = /^(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$/;

/** Returns the text after the last marker on its line, trimmed. */
export function answerAfter(text, marker) {
  const at = text.lastIndexOf(marker);
  if (at < 0) return undefined;
  const line = text.slice(at + marker.length).trimStart().split(/\r\n|\n|\r/)[0].trim();
  return line === '' ? undefined : line;
}

/** Removes separators of thousands; `undefined` if a comma or a space occurs elsewhere. */
function joinThousands(text) {
  const found = text.search(/[.eE]/);
  const end = found < 0 ? text.length : found;
  const [first, ...groups] = text.slice(0, end).split(SEPARATOR);
  if (groups.length > 0 && (first.length < 1 || first.length > 3)) return undefined;
  if (groups.some((group) => !/^\d{3}$/.test(group))) return undefined;
  return first + groups.join('') + text.slice(end);
}

/** Parses a number and ignores its formatting. */
export function parseNumber(given) {
  let text = given.replace(AROUND, '').replace(/\.+$/, '').replace(AROUND, '');
  const negative = text.startsWith('-') || text.startsWith('\u2212');
  if (negative || text.startsWith('+')) text = text.slice(1);
  const digits = joinThousands(text.replace(/^[\s*`$]+/, ''));
  if (digits === undefined || !PLAIN.test(digits) || !NUMBER.test(digits)) return undefined;
  const value = Number(digits);
  if (!Number.isFinite(value)) return undefined;
  return negative ? -value : value;
}

/** Returns whether two texts are the same number, up to formatting and the rounding of double precision. */
export function sameNumber(a, b) {
  const left = parseNumber(a ?? '');
  const right = parseNumber(b ?? '');
  if (left === undefined || right === undefined) return false;
  return Math.abs(left - right) <= 1e-9 * Math.max(Math.abs(left), Math.abs(right));
}
