// From the engine's stack traces to the author's files and lines, by the source map that `build` puts into the
// component.

const FRAME = /^\s*at (?:(.*?) \()?(componentize-qjs:user\.js|<input>):(\d+)(?::(\d+))?\)?$/;

/** The engine's name of the program, unless the source map has another. */
const MODULE = 'componentize-qjs:user.js';
const DIGITS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/';

let lines;

/** Decodes one line of a source map's mappings; `last` has the numbers that the next one is relative to. */
function decodeLine(text, last) {
  const segments = [];
  let column = 0;
  for (const segment of text.split(',')) {
    const numbers = [];
    let value = 0;
    let shift = 0;
    for (const character of segment) {
      const digit = DIGITS.indexOf(character);
      value += (digit & 31) << shift;
      shift += 5;
      if (digit & 32) continue;
      numbers.push(value & 1 ? -(value >> 1) : value >> 1);
      value = 0;
      shift = 0;
    }
    column += numbers[0] ?? 0;
    if (numbers.length < 4) continue;
    last.source += numbers[1];
    last.line += numbers[2];
    last.column += numbers[3];
    segments.push({ column, source: last.source, line: last.line + 1 });
  }
  return segments;
}

function mapped() {
  if (lines === undefined) {
    const map = globalThis.__rolloutSourceMap;
    const last = { source: 0, line: 0, column: 0 };
    lines = map === undefined ? [] : map.mappings.split(';').map((line) => decodeLine(line, last));
  }
  return lines;
}

/** Returns the frames of an error: function, file and line, innermost first. */
function frames(error) {
  const found = [];
  for (const text of String(error?.stack ?? '').split('\n')) {
    const frame = FRAME.exec(text);
    if (frame === null) continue;
    const [, name, module, line, column] = frame;
    if (module !== (globalThis.__rolloutSourceMap?.module ?? MODULE)) continue;
    const segments = mapped()[Number(line) - 1] ?? [];
    const segment = segments.findLast((each) => each.column < Number(column ?? 1)) ?? segments[0];
    if (segment === undefined) continue;
    found.push({ name: name === '<anonymous>' ? undefined : name, file: globalThis.__rolloutSourceMap.sources[segment.source], line: segment.line });
  }
  return found;
}

const SDK = 'rollout-sdk/';

function isAuthors(frame) {
  return !frame.file.startsWith(SDK) && !frame.file.includes('node_modules/');
}

function isSdk(frame) {
  return frame.file.startsWith(SDK);
}

/** Returns the place of an error: the innermost frame of the author's code, or else of a dependency's. */
export function place(error) {
  const all = frames(error);
  const frame = all.find(isAuthors) ?? all.find((each) => !isSdk(each));
  return frame === undefined ? undefined : `${frame.file}:${frame.line}`;
}

/** Returns the trace of an error, without the SDK's frames, one line per item. */
export function traceOf(error) {
  const own = frames(error).filter((frame) => !isSdk(frame));
  const head = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
  const trace = own.map((frame) => `    at ${frame.name === undefined ? '' : `${frame.name} `}(${frame.file}:${frame.line})`);
  const cause = error?.cause === undefined ? [] : traceOf(error.cause);
  if (cause.length > 0) cause[0] = `caused by ${cause[0]}`;
  return [...head.split('\n'), ...trace, ...cause];
}
