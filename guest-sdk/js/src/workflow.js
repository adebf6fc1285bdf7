// Workflows.

import { Agent, AgentRun } from './agent.js';
import { asFunction, shown } from './check.js';
import { Invalid } from './errors.js';
import { RolloutContext, runPart } from './host.js';
import { dumpMessages, parseMessages } from './json.js';
import { Reply } from './models.js';
import { part } from './part.js';
import { Sample, samplesMax } from './sample.js';

export class WorkflowContext extends RolloutContext {
  #sample;

  constructor(prompt, settings) {
    super(settings);
    this.prompt = prompt;
  }

  get samplesMax() {
    return samplesMax();
  }

  /** The main sample, opened when it is first read. */
  get sample() {
    this.#sample ??= this.openSample();
    return this.#sample;
  }

  openSample(name) {
    return new Sample(name);
  }

  /** Creates an agent that starts from the prompt and records into a sample of its own. */
  agent(options = {}) {
    const { sample, ...rest } = options;
    return new Agent(sample ?? this.openSample(), this.prompt, rest);
  }
}

/** Returns the messages that a workflow returned, as JSON, or `undefined` if it recorded samples itself. */
function messagesOf(returned) {
  if (returned === undefined || returned === null) return undefined;
  // `return ctx.agent().run()` is a natural thing to write.
  if (returned instanceof AgentRun || returned instanceof Reply) return undefined;
  if (!Array.isArray(returned)) {
    throw new Invalid(`a workflow has to return messages or nothing, not ${shown(returned)}`);
  }
  return dumpMessages(returned, 'the returned messages');
}

/** Defines the plugin's workflow. */
export function defineWorkflow(run, { settings } = {}) {
  asFunction(run, 'the argument of defineWorkflow');
  return part('workflow', {
    run: (prompt) =>
      runPart(async () => {
        const messages = parseMessages(prompt, 'prompt');
        const returned = await run(new WorkflowContext(messages, settings));
        return { messages: messagesOf(returned), metrics: [] };
      }),
  });
}
