// The entry module of a component that was prepared without a project, for `rollout-host test`. Each instance reads the
// project from its input and evaluates it before its first call.

import * as artifacts from '#contract/artifacts';
import * as calls from '#contract/calls';
import * as context from '#contract/context';
import * as log from '#contract/log';
import * as models from '#contract/models';
import * as observations from '#contract/observations';
import * as random from '#contract/random';
import * as samples from '#contract/samples';
import * as stdin from '#contract/stdin';
import * as tools from '#contract/tools';

import { place, traceOf } from './trace.js';

const IMPORTS = { artifacts, calls, context, log, models, observations, samples, tools };

/** Functions of the parts, and whether each can return an error. */
const FUNCTIONS = {
  workflow: { run: true },
  agentLoop: { name: false, getTools: true, run: true },
  groupGrader: { gradeGroup: true },
  grader: { grade: true },
  environment: { describe: false, task: true, reset: true, step: true, state: true },
  settings: { declare: false },
  tools: { describe: false, call: false },
};

/** The name of a part in the program, where it differs. */
const NAMES = { tools: 'tool' };

function required(name) {
  if (name.startsWith('wasi:random/')) return random;
  return IMPORTS[/^rollout:plugin\/(.*)@/.exec(name)[1]];
}

function readInput() {
  const stream = stdin.getStdin();
  let text = '';
  for (;;) {
    let bytes;
    try {
      bytes = stream.blockingRead(65536);
    } catch (error) {
      if (text === '') throw error;
      return text;
    }
    for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode.apply(null, bytes.slice(at, at + 8192));
  }
}

let program;

/** Returns the exports of the project. */
function load() {
  if (program === undefined) {
    const text = readInput();
    const end = text.indexOf('\n');
    globalThis.__rolloutSourceMap = JSON.parse(text.slice(0, end));
    globalThis.__rolloutSourceMap.module = '<input>';
    const module = { exports: {} };
    const evaluate = (0, eval)(`(function(module,exports,require){"use strict";${text.slice(end + 1)}\n})`);
    evaluate(module, module.exports, required);
    program = module.exports;
  }
  return program;
}

function loadForCall(canFail) {
  try {
    return load();
  } catch (error) {
    if (!canFail) throw error;
    const at = place(error);
    for (const line of traceOf(error)) log.line('error', line.toWellFormed());
    const text = `the modules cannot be evaluated: ${error}${at === undefined ? '' : ` (${at})`}`;
    throw { tag: 'failed', val: text.toWellFormed() };
  }
}

/** Returns the part of this name, whose functions load the project first. */
export function part(name) {
  const functions = Object.entries(FUNCTIONS[name]).map(([call, canFail]) => [
    call,
    (...args) => loadForCall(canFail)[NAMES[name] ?? name][call](...args),
  ]);
  return Object.fromEntries(functions);
}
