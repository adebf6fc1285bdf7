// The client `openai`: a `fetch` whose server is the rollout's model.

import { asMessages, conversationOf, definedOnly } from './conversation.js';
import { ChatError } from './errors.js';

/** Members of a request that are not sampling parameters. */
const NOT_PARAMETERS = ['model', 'messages', 'tools', 'stream', 'stream_options', 'n'];

const INSTEAD =
  "the host's model is reached by client.chat.completions.create(…), with or without `stream`, and by nothing else";

/** Statuses of errors. A client does not repeat the request, because the host does. */
const STATUS = { 'invalid-request': 400, 'budget-spent': 429, unavailable: 503 };

function json(value, status = 200) {
  const headers = { 'content-type': 'application/json', 'x-should-retry': 'false' };
  return new Response(JSON.stringify(value), { status, headers });
}

function refused(error) {
  const status = error.status ?? STATUS[error.kind] ?? 500;
  return json({ error: { message: error.message, type: error.kind, code: error.kind, param: null } }, status);
}

function usageOf(reply) {
  if (reply.usage === undefined) return undefined;
  const { promptTokens, completionTokens } = reply.usage;
  return {
    prompt_tokens: promptTokens,
    completion_tokens: completionTokens,
    total_tokens: promptTokens + completionTokens,
  };
}

/** Returns a completion as server-sent events: the whole message in one chunk, because the host has it whole. */
function events(completion, withUsage) {
  const { choices, usage, ...head } = completion;
  const [{ message, finish_reason }] = choices;
  const calls = message.tool_calls?.map((call, index) => ({ index, ...call }));
  const delta = definedOnly({ ...message, tool_calls: calls });
  const chunk = (rest) => ({ ...head, object: 'chat.completion.chunk', ...rest });
  const chunks = [
    chunk({ choices: [{ index: 0, delta, finish_reason: null }] }),
    chunk({ choices: [{ index: 0, delta: {}, finish_reason }] }),
  ];
  if (withUsage) chunks.push(chunk({ choices: [], usage }));
  const text = [...chunks.map((each) => JSON.stringify(each)), '[DONE]'].map((data) => `data: ${data}\n\n`).join('');
  return new Response(text, { status: 200, headers: { 'content-type': 'text/event-stream' } });
}

/**
 * Returns a `fetch` for the option of that name of `new OpenAI(…)`: chat completions are calls of the rollout's model,
 * recorded in the sample.
 */
export function hostFetch(of) {
  const conversation = conversationOf(of, 'hostFetch');
  let calls = 0;
  return async (resource, init = {}) => {
    const request = new Request(resource, init);
    const { pathname } = new URL(request.url);
    if (request.method !== 'POST' || !pathname.endsWith('/chat/completions')) {
      const message = `${request.method} ${pathname} is not there: ${INSTEAD}`;
      return json({ error: { message, type: 'invalid-request', code: 'not_found', param: null } }, 404);
    }
    const body = JSON.parse(await request.text());
    if ((body.n ?? 1) !== 1) {
      const message = 'n has to be 1: open a sample for each continuation, ctx.openSample(name)';
      return json({ error: { message, type: 'invalid-request', code: 'invalid', param: 'n' } }, 400);
    }
    const params = Object.fromEntries(Object.entries(body).filter(([name]) => !NOT_PARAMETERS.includes(name)));
    let reply;
    try {
      const signal = init.signal ?? undefined;
      reply = await conversation.send(asMessages(body.messages, 'messages'), { tools: body.tools ?? [], params, signal });
    } catch (error) {
      if (error instanceof ChatError) return refused(error);
      throw error;
    }
    calls += 1;
    const choice = { index: 0, message: reply.message, logprobs: null, finish_reason: reply.finishReason ?? 'stop' };
    const completion = {
      id: `chatcmpl-${calls}`,
      object: 'chat.completion',
      created: Math.floor(Date.now() / 1000),
      model: body.model,
      choices: [choice],
      usage: usageOf(reply),
    };
    return body.stream ? events(completion, body.stream_options?.include_usage) : json(completion);
  };
}
