// Several concurrent calls of the model.
//
// If the caller accepts several samples, each attempt becomes a sample with its own reward. If it accepts one, the
// attempts vote, and the sample has the winner.

import {
  answerAfter,
  ChatError,
  defineGrader,
  defineSettings,
  defineWorkflow,
  log,
  parseNumber,
  type Reply,
  sameNumber,
  type Sample,
  type WorkflowContext,
} from 'rollout-sdk';

const MARKER = '####';

export const settings = defineSettings({
  type: 'object',
  properties: {
    attempts: { type: 'integer', minimum: 1, default: 5, description: 'Number of concurrent attempts.' },
    temperature: { type: 'number', default: 1.0, description: 'Sampling temperature; 0 makes all attempts alike.' },
  },
  additionalProperties: false,
});

type Context = WorkflowContext<typeof settings>;

export const workflow = defineWorkflow(
  (ctx: Context) => (ctx.samplesMax === 1 ? vote(ctx) : attemptEach(ctx)),
  { settings },
);

/** Records one sample with the first attempt that has the most frequent answer. */
async function vote(ctx: Context): Promise<void> {
  const { sample } = ctx;
  sample.push(...ctx.prompt);
  const attempts = Array.from({ length: ctx.config.attempts }, () => ask(ctx, sample));
  const replies = successes(await Promise.allSettled(attempts));

  const answers = replies.map(answer);
  const votes = answers.map((each) => answers.filter((other) => other === each).length);
  const winner = votes.indexOf(Math.max(...votes));

  sample.push(replies[winner].message);
  sample.metric('agreement', votes[winner] / replies.length);
  sample.field('answers', answers);
}

/**
 * Records one sample per attempt, as many as the caller accepts. An attempt without a reply is withdrawn and gets no
 * reward, because the model did not fail.
 */
async function attemptEach(ctx: Context): Promise<void> {
  const length = Math.min(ctx.config.attempts, ctx.samplesMax);
  const samples = Array.from({ length }, (_, place) => ctx.openSample(`attempt-${place}`));
  const replies = await Promise.allSettled(samples.map((sample) => ask(ctx, sample)));
  for (const [place, reply] of replies.entries()) {
    const sample = samples[place];
    sample.push(...ctx.prompt);
    if (reply.status === 'fulfilled') {
      sample.push(reply.value.message);
    } else {
      log.warn(`${sample.id} has no reply: ${reply.reason.message}`);
      sample.withdraw();
    }
  }
  successes(replies);
}

function ask(ctx: Context, sample: Sample): Promise<Reply> {
  return sample.chat(ctx.prompt, { temperature: ctx.config.temperature });
}

/** Returns the successful replies. One is enough; without any, throws the first error. */
function successes(replies: PromiseSettledResult<Reply>[]): Reply[] {
  const came = replies.filter((reply) => reply.status === 'fulfilled').map((reply) => reply.value);
  for (const reply of replies) {
    const isFatal = reply.status === 'rejected' && (came.length === 0 || !(reply.reason instanceof ChatError));
    if (isFatal) throw reply.reason;
  }
  return came;
}

/** Normalizes the answer, so that equal answers are equal texts. Returns an empty text for none. */
function answer(reply: Reply): string {
  const text = answerAfter(reply.text, MARKER) ?? '';
  return String(parseNumber(text) ?? text);
}

export const grader = defineGrader((ctx) => {
  const label = ctx.requireLabel();
  for (const sample of ctx.samples) {
    if (sample.messages.at(-1)?.role === 'assistant') {
      sample.reward = sameNumber(sample.answerAfter(MARKER), label);
    }
  }
});
