// OpenAI Agents (`@openai/agents-core`, `@openai/agents`): a model whose server is the rollout's model.

import { conversationOf, definedOnly, functionTool } from './conversation.js';
import { Failed } from './errors.js';

/** Returns the content of an item in OpenAI's form. */
function contentOf(content) {
  if (typeof content === 'string') return content;
  const parts = content.map((part) => {
    switch (part.type) {
      case 'input_text':
      case 'output_text':
        return { type: 'text', text: part.text };
      case 'refusal':
        return { type: 'text', text: part.refusal };
      case 'input_image': {
        const url = typeof part.image === 'string' ? part.image : part.imageUrl;
        if (typeof url === 'string') return { type: 'image_url', image_url: { url } };
        break;
      }
    }
    throw new Failed(`a part of type ${part.type} cannot be sent to the model; send text, or images by their URL`);
  });
  return parts.every((part) => part.type === 'text') ? parts.map((part) => part.text).join('\n') : parts;
}

function outputText(output) {
  if (typeof output === 'string') return output;
  const parts = Array.isArray(output) ? output : [output];
  return parts.map((part) => part?.text ?? JSON.stringify(part)).join('\n');
}

/** Returns items as messages. Consecutive items of the model are one message, as they were in its reply. */
function messagesOf(instructions, input) {
  const messages = instructions ? [{ role: 'system', content: instructions }] : [];
  const items = typeof input === 'string' ? [{ role: 'user', content: input }] : input;
  const ofModel = () => {
    const last = messages.at(-1);
    if (last?.role === 'assistant') return last;
    messages.push({ role: 'assistant', content: '' });
    return messages.at(-1);
  };
  for (const item of items) {
    switch (item.type ?? 'message') {
      case 'message':
        if (item.role === 'assistant') ofModel().content += contentOf(item.content);
        else messages.push({ role: item.role, content: contentOf(item.content) });
        break;
      case 'function_call': {
        const message = ofModel();
        message.tool_calls ??= [];
        message.tool_calls.push({ id: item.callId, type: 'function', function: { name: item.name, arguments: item.arguments } });
        break;
      }
      case 'function_call_result':
        messages.push({ role: 'tool', tool_call_id: item.callId, content: outputText(item.output) });
        break;
      case 'reasoning':
        // The sample's history contains the reasoning in its reply.
        break;
      default:
        throw new Failed(`an item of type ${item.type} cannot be sent to the model; use function tools and handoffs`);
    }
  }
  return messages;
}

function toolsOf(request) {
  const tools = request.tools.map((tool) => {
    if (tool.type === 'function') return functionTool(tool.name, tool.description, tool.parameters, tool.strict);
    throw new Failed(`the tool ${tool.name} of type ${tool.type} runs at OpenAI; give the agent function tools`);
  });
  const handoffs = request.handoffs.map((handoff) =>
    functionTool(handoff.toolName, handoff.toolDescription, handoff.inputJsonSchema, handoff.strictJsonSchema),
  );
  return [...tools, ...handoffs];
}

const CHOICES = ['auto', 'required', 'none'];

function paramsOf({ modelSettings: settings, outputType }, hasTools) {
  const choice = settings.toolChoice ?? undefined;
  const { name, schema, strict } = outputType === 'text' || outputType?.type !== 'json_schema' ? {} : outputType;
  return definedOnly({
    temperature: settings.temperature,
    top_p: settings.topP,
    frequency_penalty: settings.frequencyPenalty,
    presence_penalty: settings.presencePenalty,
    max_tokens: settings.maxTokens,
    parallel_tool_calls: hasTools ? settings.parallelToolCalls : undefined,
    tool_choice: !hasTools || choice === undefined || CHOICES.includes(choice) ? (hasTools ? choice : undefined) : { type: 'function', function: { name: choice } },
    response_format: schema === undefined ? undefined : { type: 'json_schema', json_schema: { name, schema, strict } },
    ...settings.providerData,
  });
}

/** Tokens of a call, as the framework adds them up. */
function usageOf({ promptTokens = 0, completionTokens = 0 } = {}) {
  return {
    requests: 1,
    inputTokens: promptTokens,
    outputTokens: completionTokens,
    totalTokens: promptTokens + completionTokens,
    inputTokensDetails: [],
    outputTokensDetails: [],
  };
}

function outputOf(reply) {
  const text = reply.text === '' ? [] : [{ type: 'message', role: 'assistant', status: 'completed', content: [{ type: 'output_text', text: reply.text }] }];
  const calls = reply.toolCalls.map((call) => ({ type: 'function_call', callId: call.id, name: call.name, arguments: call.arguments, status: 'completed' }));
  // A reply without text and calls is an empty message, which ends the run.
  if (text.length + calls.length === 0) {
    return [{ type: 'message', role: 'assistant', status: 'completed', content: [{ type: 'output_text', text: '' }] }];
  }
  return [...text, ...calls];
}

/** Returns a model for `new Agent({ model })`. Requests are recorded in the sample. */
export function hostModel(of) {
  const conversation = conversationOf(of, 'hostModel');
  let calls = 0;
  const getResponse = async (request) => {
    const tools = toolsOf(request);
    const options = { tools, params: paramsOf(request, tools.length > 0), signal: request.signal };
    const reply = await conversation.send(messagesOf(request.systemInstructions, request.input), options);
    calls += 1;
    return { usage: usageOf(reply.usage), output: outputOf(reply), responseId: `response-${calls}` };
  };
  return {
    getResponse,
    async *getStreamedResponse(request) {
      const { usage, output, responseId } = await getResponse(request);
      yield { type: 'response_started' };
      for (const item of output) {
        if (item.type === 'message') yield { type: 'output_text_delta', delta: item.content[0].text };
      }
      yield { type: 'response_done', response: { id: responseId, usage, output } };
    },
  };
}

/** Returns a provider for `new Runner({ modelProvider })`, which returns the rollout's model for every name. */
export function hostModelProvider(of) {
  const model = hostModel(of);
  return { getModel: () => model };
}
