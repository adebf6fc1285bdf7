// The Vercel AI SDK (`ai`): a language model whose server is the rollout's model.

import { conversationOf, definedOnly, functionTool } from './conversation.js';
import { Failed, Invalid } from './errors.js';

const NAME = 'rollout-host';

function unsupported(what, instead) {
  return new Failed(`${what}; ${instead}`);
}

/** Returns a user's part in OpenAI's form. */
function partOf(part) {
  if (part.type === 'text') return { type: 'text', text: part.text };
  const media = part.mediaType ?? '';
  if (part.type === 'file' && media.startsWith('image/')) {
    const { data } = part;
    const url = data?.url ?? (data instanceof URL ? data : undefined);
    const raw = data?.data ?? data;
    const text = typeof raw === 'string' ? raw : btoa(Array.from(raw ?? [], (byte) => String.fromCharCode(byte)).join(''));
    const type = media === 'image/*' ? 'image/png' : media;
    return { type: 'image_url', image_url: { url: url === undefined ? `data:${type};base64,${text}` : String(url) } };
  }
  throw unsupported(`a part of type ${part.type} ${media} cannot be sent to the model`, 'send text or images');
}

/** Returns the text of a tool's result. */
function outputText(output) {
  switch (output.type) {
    case 'text':
    case 'error-text':
      return output.value;
    case 'json':
    case 'error-json':
      return JSON.stringify(output.value);
    case 'execution-denied':
      return output.reason ?? 'the execution was denied';
    case 'content':
      return output.value.map((part) => (part.type === 'text' ? part.text : JSON.stringify(part))).join('\n');
    default:
      throw unsupported(`a tool's result of type ${output.type} is unknown`, 'return text or JSON');
  }
}

function messagesOf(prompt) {
  return prompt.flatMap(({ role, content }) => {
    switch (role) {
      case 'system':
        return [{ role, content }];
      case 'user': {
        const parts = content.map(partOf);
        const isText = parts.every((part) => part.type === 'text');
        return [{ role, content: isText ? parts.map((part) => part.text).join('\n') : parts }];
      }
      case 'assistant': {
        const text = content.filter((part) => part.type === 'text').map((part) => part.text);
        const calls = content.filter((part) => part.type === 'tool-call').map((part) => ({
          id: part.toolCallId,
          type: 'function',
          function: { name: part.toolName, arguments: typeof part.input === 'string' ? part.input : JSON.stringify(part.input) },
        }));
        return [{ role, content: text.join(''), ...(calls.length > 0 && { tool_calls: calls }) }];
      }
      case 'tool':
        return content
          .filter((part) => part.type === 'tool-result')
          .map((part) => ({ role, tool_call_id: part.toolCallId, content: outputText(part.output) }));
      default:
        throw new Invalid(`a message's role has to be system, user, assistant or tool, not ${role}`);
    }
  });
}

function responseFormat(format) {
  if (format === undefined || format.type === 'text') return undefined;
  if (format.schema === undefined) return { type: 'json_object' };
  const { name = 'response', description, schema } = format;
  return { type: 'json_schema', json_schema: definedOnly({ name, description, schema, strict: true }) };
}

function toolChoice(choice) {
  if (choice === undefined) return undefined;
  return choice.type === 'tool' ? { type: 'function', function: { name: choice.toolName } } : choice.type;
}

function requestOf(options) {
  const tools = (options.tools ?? []).map((tool) => {
    if (tool.type !== 'function') {
      throw unsupported(`the tool ${tool.name} runs at a provider`, 'give the agent tools with `execute`');
    }
    return functionTool(tool.name, tool.description, tool.inputSchema, tool.strict);
  });
  const params = definedOnly({
    max_tokens: options.maxOutputTokens,
    temperature: options.temperature,
    stop: options.stopSequences,
    top_p: options.topP,
    top_k: options.topK,
    presence_penalty: options.presencePenalty,
    frequency_penalty: options.frequencyPenalty,
    seed: options.seed,
    response_format: responseFormat(options.responseFormat),
    tool_choice: tools.length > 0 ? toolChoice(options.toolChoice) : undefined,
    ...options.providerOptions?.[NAME],
  });
  return { tools, params, signal: options.abortSignal };
}

const FINISH = { stop: 'stop', length: 'length', tool_calls: 'tool-calls', function_call: 'tool-calls', content_filter: 'content-filter' };

function resultOf(reply) {
  const reasoning = reply.message.reasoning_content ?? reply.message.reasoning;
  const content = [
    ...(typeof reasoning === 'string' && reasoning !== '' ? [{ type: 'reasoning', text: reasoning }] : []),
    ...(reply.text === '' ? [] : [{ type: 'text', text: reply.text }]),
    ...reply.toolCalls.map((call) => ({ type: 'tool-call', toolCallId: call.id, toolName: call.name, input: call.arguments || '{}' })),
  ];
  const { promptTokens, completionTokens } = reply.usage ?? {};
  return {
    content,
    finishReason: { unified: reply.toolCalls.length > 0 ? 'tool-calls' : (FINISH[reply.finishReason] ?? 'other'), raw: reply.finishReason },
    usage: {
      inputTokens: { total: promptTokens, noCache: promptTokens, cacheRead: undefined, cacheWrite: undefined },
      outputTokens: { total: completionTokens, text: completionTokens, reasoning: undefined },
    },
    warnings: [],
  };
}

/** Returns a result as the parts of a stream. The host has the whole reply at once. */
function partsOf({ content, finishReason, usage, warnings }) {
  const parts = [{ type: 'stream-start', warnings }];
  for (const [index, each] of content.entries()) {
    const id = String(index);
    if (each.type === 'tool-call') {
      parts.push({ type: 'tool-input-start', id: each.toolCallId, toolName: each.toolName });
      parts.push({ type: 'tool-input-delta', id: each.toolCallId, delta: each.input });
      parts.push({ type: 'tool-input-end', id: each.toolCallId }, each);
    } else {
      parts.push({ type: `${each.type}-start`, id }, { type: `${each.type}-delta`, id, delta: each.text });
      parts.push({ type: `${each.type}-end`, id });
    }
  }
  return [...parts, { type: 'finish', finishReason, usage }];
}

/** Returns a model for `generateText`, `streamText` and agents. Requests are recorded in the sample. */
export function hostModel(of) {
  const conversation = conversationOf(of, 'hostModel');
  const doGenerate = async (options) => resultOf(await conversation.send(messagesOf(options.prompt), requestOf(options)));
  return {
    specificationVersion: 'v4',
    provider: NAME,
    modelId: 'policy',
    supportedUrls: { 'image/*': [/^https?:/] },
    doGenerate,
    doStream: async (options) => {
      const parts = partsOf(await doGenerate(options));
      return { stream: new ReadableStream({ start: (controller) => {
        for (const part of parts) controller.enqueue(part);
        controller.close();
      } }) };
    },
  };
}
