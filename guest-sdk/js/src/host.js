// The current rollout.

import * as context from '#contract/context';
import * as hostLog from '#contract/log';

import { asText } from './check.js';
import { Failed, Invalid, RolloutError, TimedOut } from './errors.js';
import { dump, parse, parseObject } from './json.js';
import { setConsole, startClock } from './runtime/globals.js';
import { isComponent, runToEnd } from './runtime/loop.js';
import { refresh } from './runtime/random.js';
import { show } from './runtime/text.js';
import { place, traceOf } from './trace.js';

let running = false;

/** Checks that the host can be called: not while modules are evaluated, which `build` does. */
export function checkRunning(what) {
  if (!running) {
    throw new Failed(`${what} belongs to a rollout, and modules are evaluated while the component is built; call it within the workflow or grader`);
  }
}

function writeLine(level, text) {
  if (running) hostLog.line(level, String(text).toWellFormed());
}

/** Log lines and events for debugging this rollout. */
export const log = {
  debug: (text) => logLine('debug', text),
  info: (text) => logLine('info', text),
  warn: (text) => logLine('warn', text),
  error: (text) => logLine('error', text),
  event: (name, data = null) => {
    checkRunning('log.event');
    hostLog.event(asText(name, 'the name of an event'), dump(data, `event \`${name}\``));
  },
};

function logLine(level, text) {
  checkRunning(`log.${level}`);
  hostLog.line(level, show(text).toWellFormed());
}

/** Readers of the rollout that all contexts share. */
export class RolloutContext {
  #config;
  #metadata;

  constructor(settings) {
    this.#config = readConfig(settings);
  }

  get rolloutId() {
    return context.rolloutId();
  }

  get attempt() {
    return context.attempt();
  }

  get config() {
    return this.#config;
  }

  get metadata() {
    if (this.#metadata === undefined) {
      const text = context.metadata();
      this.#metadata = text === undefined || text === null ? null : parse(text, 'metadata');
    }
    return this.#metadata;
  }

  get timeLeft() {
    return context.timeLeftMs() ?? undefined;
  }
}

/** Returns the operator's configuration, read by the settings if the plugin declares them. */
export function readConfig(settings) {
  const given = parseObject(context.config(), 'config');
  return settings === undefined ? given : settings.read(given);
}

/** Prepares for a call of the host. An environment receives several calls in one instance. */
function enter() {
  if (!running) startClock();
  running = true;
  setConsole(writeLine);
  refresh();
}

/** Runs a part of the plugin: `work` may wait, and an error becomes a failure of the contract. */
export function runPart(work) {
  enter();
  try {
    const result = runToEnd(work, (reason) => {
      writeLine('error', 'a promise was rejected and no code handled it:');
      for (const line of traceOf(reason)) writeLine('error', line);
    });
    if (isComponent) return result;
    return result.catch((error) => {
      throw Object.assign(failure(error), { cause: error });
    });
  } catch (error) {
    throw failure(error);
  }
}

/** Runs a part that has no rollout and whose errors are reported unchanged. */
export function runBare(work) {
  enter();
  return runToEnd(work, () => {});
}

/** Returns the error in the contract's form, with the location in the author's code, and logs the trace. */
function failure(error) {
  try {
    const trace = traceOf(error);
    if (!(error instanceof RolloutError)) for (const line of trace) writeLine('error', line);
    return { tag: kindOf(error), val: describe(error).toWellFormed() };
  } catch {
    // An error with getters that throw, or a program that replaced functions of the language.
    return { tag: 'failed', val: 'an error was thrown that cannot be described' };
  }
}

function kindOf(error) {
  if (error instanceof Invalid) return 'invalid';
  if (error instanceof TimedOut || error?.name === 'TimeoutError') return 'timed-out';
  return error?.name === 'AssertionError' ? 'invalid' : 'failed';
}

/** Returns an error in one line: text and location. */
export function describe(error) {
  const at = place(error);
  let text;
  if (error instanceof RolloutError && error.message) text = error.message;
  else if (error instanceof Error) text = error.message ? `${error.name}: ${error.message}` : error.name;
  else text = `${show(error)} was thrown, which is not an Error`;
  return at === undefined ? text : `${text} (${at})`;
}
