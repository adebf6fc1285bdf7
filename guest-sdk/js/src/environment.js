// Environments: a caller's model acts, and the plugin answers with observations and rewards.
//
// The parts of an environment that do not depend on an episode are read while the modules are evaluated, so that `build`
// reports mistakes in them with file and line.

import './calls.js';

import { asFunction, asList, asNumber, asText, isObject, shown } from './check.js';
import { Failed, Invalid } from './errors.js';
import { RolloutContext, runBare, runPart } from './host.js';
import { dump, parseObject } from './json.js';
import { part } from './part.js';
import { Mismatch, schemaOf } from './schema.js';

const SPLIT_KINDS = ['train', 'validation', 'test'];

/** Schema of an observation of an environment that declares none. */
const TEXT = { type: 'object', properties: { text: { type: 'string' } }, required: ['text'] };

/** Functions that return an environment's functions for another episode. */
const makers = new WeakMap();

class Turn {
  constructor(observation, { reward, done = false, metadata } = {}) {
    this.observation = observation;
    this.reward = reward;
    this.done = done;
    this.metadata = metadata;
  }
}

/** Creates the result of a reset, a step or a tool. */
export function turn(observation, options) {
  return new Turn(observation, options);
}

/** Parameters of an episode. */
class EpisodeStart extends RolloutContext {
  constructor({ seed, episodeId }, given, settings) {
    super(settings);
    this.seed = seed === undefined || seed === null ? undefined : Number(seed);
    this.episodeId = episodeId ?? undefined;
    this.arguments = given;
  }
}

/** Returns a value of a schema, or throws an `Invalid` that names the value. */
function readAs(schema, value, what) {
  try {
    return schema.read(value);
  } catch (error) {
    throw error instanceof Mismatch ? new Invalid(`${what}: ${error.message}`) : error;
  }
}

function objectSchema(given, what) {
  const schema = schemaOf(given, what);
  if (schema.json.type !== 'object') throw new Invalid(`${what} has to be one of an object, not ${shown(schema.json)}`);
  return { ...schema, text: dump(schema.json, what) };
}

function splitOf(given, index) {
  if (!isObject(given)) throw new Invalid(`splits[${index}] has to be { name, tasks }, not ${shown(given)}`);
  const { name, tasks, kind = name } = given;
  asText(name, `splits[${index}].name`);
  if (!Number.isSafeInteger(tasks) || tasks < 0) {
    throw new Invalid(`splits[${index}].tasks has to be the number of tasks, not ${shown(tasks)}`);
  }
  if (!SPLIT_KINDS.includes(kind)) {
    throw new Invalid(`the split '${name}' needs a kind, ${SPLIT_KINDS.join(', ')}: { name: '${name}', tasks: ${tasks}, kind: 'test' }`);
  }
  return { name, kind, tasks };
}

function toolsOf(given) {
  const tools = new Map();
  for (const [index, each] of asList(given, 'the tools of an environment').entries()) {
    if (typeof each?.run !== 'function' || typeof each?.name !== 'string') {
      throw new Invalid(`tools[${index}] has to be made by tool(…), not ${shown(each)}`);
    }
    if (tools.has(each.name)) throw new Invalid(`tools[${index}]: there is another tool \`${each.name}\``);
    tools.set(each.name, { run: (text, episode) => each.run(text, episode), text: dump(each.schema, `tool \`${each.name}\``) });
  }
  return tools;
}

/** Returns a result in the contract's form. `observed` checks the observation, which is then an object; without it, the
 * observation is a tool's result. */
function outcomeOf(result, what, observed) {
  const made = result instanceof Turn ? result : new Turn(result);
  let { observation } = made;
  if (observed !== undefined) {
    if (typeof observation === 'string') observation = { text: observation };
    if (!isObject(observation) || typeof observation.then === 'function') {
      throw new Failed(`${what} returned ${shown(observation)} as its observation; return an object or a text, alone or in turn(…)`);
    }
    try {
      observed.read(observation);
    } catch (error) {
      if (!(error instanceof Mismatch)) throw error;
      throw new Failed(`the observation of ${what} does not fit its schema, \`observation\` of the environment: ${error.message}`);
    }
  }
  const { reward, done, metadata } = made;
  if (typeof done !== 'boolean') throw new Failed(`\`done\` of ${what} has to be true or false, not ${shown(done)}`);
  if (metadata !== undefined && metadata !== null && !isObject(metadata)) {
    throw new Failed(`the metadata of ${what} has to be an object, not ${shown(metadata)}`);
  }
  return {
    observation: dump(observation === undefined ? null : observation, `the observation of ${what}`),
    reward: reward === undefined || reward === null ? undefined : asNumber(reward, `the reward of ${what}`),
    done,
    metadata: metadata === undefined || metadata === null ? undefined : dump(metadata, `the metadata of ${what}`),
  };
}

/** Defines the plugin's environment. */
export function defineEnvironment(given) {
  if (!isObject(given)) throw new Invalid(`the argument of defineEnvironment has to be an object, not ${shown(given)}`);
  const { name, description = '', version, settings, reset, step, state, task } = given;
  asText(name, 'the name of an environment');
  asText(description, 'the description of an environment');
  if (version !== undefined) asText(version, 'the version of an environment');
  asFunction(reset, 'reset of an environment');
  if (state !== undefined) asFunction(state, 'state of an environment');
  if ((step === undefined) !== (given.action === undefined)) {
    throw new Invalid('an environment that takes actions has both `action`, their schema, and `step`');
  }
  if (step !== undefined) asFunction(step, 'step of an environment');
  const action = step === undefined ? undefined : objectSchema(given.action, 'the schema of an action');
  const observation = objectSchema(given.observation ?? TEXT, 'the schema of an observation');
  const declared = schemaOf(given.arguments, 'the schema of the arguments');
  const tools = toolsOf(given.tools ?? []);
  if (tools.size === 0 && action === undefined) {
    throw new Invalid('an environment needs `tools`, or `action` and `step`: otherwise a model cannot act in it');
  }
  const splits = asList(given.splits ?? [], 'the splits of an environment').map(splitOf);
  if (splits.length > 0 || task !== undefined) asFunction(task, 'task of an environment with splits');
  const described = {
    name,
    description,
    version,
    action: action?.text,
    observation: observation.text,
    state: undefined,
    tools: [...tools.values()].map((each) => each.text),
    splits,
  };
  const make = () => episodeFunctions({ described, settings, reset, step, state, task, action, observation, declared, tools });
  const functions = part('environment', make());
  makers.set(functions, make);
  return functions;
}

/** Returns the environment with an episode of its own, for tests, which play several in one process. */
export function withOwnEpisode(environment) {
  return makers.get(environment)?.();
}

/** Returns the contract's functions of one episode. */
function episodeFunctions({ described, settings, reset, step, state, task, action, observation, declared, tools }) {
  let episode;

  const current = () => {
    if (episode === undefined) throw new Failed('the episode was not reset');
    return episode.value;
  };

  const call = async (toolName, text) => {
    const value = current();
    const found = tools.get(toolName);
    if (found === undefined) {
      const names = tools.size === 0 ? 'none' : [...tools.keys()].join(', ');
      throw new Invalid(`there is no tool '${toolName}' here; there are: ${names}`);
    }
    return outcomeOf(await found.run(text, value), `the tool \`${toolName}\``);
  };

  const act = async (text) => {
    const value = current();
    if (action === undefined) throw new Invalid(`actions in this environment are calls of its tools: ${[...tools.keys()].join(', ')}`);
    const read = readAs(action, parseObject(text, 'the action'), 'the action');
    return outcomeOf(await step(value, read), '`step`', observation);
  };

  return {
    describe: () => runBare(async () => described),
    task: (split, index) =>
      runPart(async () => {
        if (task === undefined) throw new Invalid(`there is no task ${index} of the split '${split}'`);
        const found = await task(split, Number(index));
        if (!isObject(found)) throw new Failed(`\`task\` returned ${shown(found)}; return an object`);
        return dump(found, 'a task');
      }),
    reset: (request) =>
      runPart(async () => {
        const what = 'the arguments of the reset';
        const values = readAs(declared, parseObject(request.arguments, what), what);
        const begun = await reset(new EpisodeStart(request, values, settings));
        if (!isObject(begun) || begun.episode === undefined || !('turn' in begun)) {
          throw new Failed(`\`reset\` returned ${shown(begun)}; return { episode, turn }: the state of the episode, and the first observation`);
        }
        const outcome = outcomeOf(begun.turn, '`reset`', observation);
        episode = { value: begun.episode };
        return outcome;
      }),
    step: ({ tag, val }) => runPart(() => (tag === 'call' ? call(val.name, val.arguments) : act(val))),
    state: () =>
      runPart(async () => {
        const value = current();
        const seen = state === undefined ? {} : await state(value);
        if (!isObject(seen)) throw new Failed(`\`state\` returned ${shown(seen)}; return an object`);
        return dump(seen, 'the result of `state`');
      }),
  };
}
