// LangChain and LangGraph (`@langchain/core`): a chat model whose server is the rollout's model.

import { BaseChatModel } from '@langchain/core/language_models/chat_models';
import { AIMessage, AIMessageChunk } from '@langchain/core/messages';
import { ChatGenerationChunk } from '@langchain/core/outputs';
import { convertToOpenAITool } from '@langchain/core/utils/function_calling';

import { conversationOf, definedOnly } from './conversation.js';
import { Failed } from './errors.js';

const ROLES = { human: 'user', ai: 'assistant', system: 'system', tool: 'tool', developer: 'system' };

function contentOf(content) {
  if (typeof content === 'string') return content;
  const parts = content.filter((part) => !['tool_use', 'tool_call', 'reasoning'].includes(part.type));
  return parts.every((part) => part.type === 'text') ? parts.map((part) => part.text).join('') : parts;
}

function messageOf(message) {
  const type = message.getType();
  const role = ROLES[type] ?? message.role;
  if (role === undefined) throw new Failed(`a message of type ${type} cannot be sent to the model`);
  const calls = (message.tool_calls ?? []).map((call) => ({
    id: call.id,
    type: 'function',
    function: { name: call.name, arguments: JSON.stringify(call.args) },
  }));
  // Calls that cannot be parsed are returned to the model unchanged.
  const invalid = (message.invalid_tool_calls ?? []).map((call) => ({
    id: call.id,
    type: 'function',
    function: { name: call.name, arguments: call.args ?? '' },
  }));
  return definedOnly({
    role,
    content: contentOf(message.content),
    tool_calls: calls.length + invalid.length > 0 ? [...calls, ...invalid] : undefined,
    tool_call_id: role === 'tool' ? message.tool_call_id : undefined,
  });
}

function fieldsOf(reply) {
  const toolCalls = [];
  const invalid = [];
  for (const { id, name, arguments: text } of reply.toolCalls) {
    try {
      toolCalls.push({ id, name, args: JSON.parse(text || '{}'), type: 'tool_call' });
    } catch (error) {
      invalid.push({ id, name, args: text, error: error.message, type: 'invalid_tool_call' });
    }
  }
  const { promptTokens, completionTokens } = reply.usage ?? {};
  return {
    content: reply.text,
    tool_calls: toolCalls,
    invalid_tool_calls: invalid,
    usage_metadata: reply.usage && {
      input_tokens: promptTokens,
      output_tokens: completionTokens,
      total_tokens: promptTokens + completionTokens,
    },
    response_metadata: definedOnly({ finish_reason: reply.finishReason }),
  };
}

/** A chat model for chains and graphs. Requests are recorded in the sample. */
class HostChatModel extends BaseChatModel {
  #conversation;
  #params;

  constructor(conversation, params) {
    // The host repeats failed requests.
    super({ maxRetries: 0 });
    this.#conversation = conversation;
    this.#params = params;
  }

  _llmType() {
    return 'rollout-host';
  }

  bindTools(tools, options) {
    return this.withConfig({ tools: tools.map((tool) => convertToOpenAITool(tool)), ...options });
  }

  #send(messages, { tools = [], tool_choice, stop, signal, response_format }) {
    const choice = tool_choice === undefined || ['auto', 'none', 'required', 'any'].includes(tool_choice) || typeof tool_choice === 'object'
      ? tool_choice
      : { type: 'function', function: { name: tool_choice } };
    const params = definedOnly({
      ...this.#params,
      stop,
      response_format,
      tool_choice: tools.length > 0 ? (choice === 'any' ? 'required' : choice) : undefined,
    });
    return this.#conversation.send(messages.map(messageOf), { tools, params, signal });
  }

  async _generate(messages, options) {
    const reply = await this.#send(messages, options);
    return { generations: [{ text: reply.text, message: new AIMessage(fieldsOf(reply)) }], llmOutput: {} };
  }

  async *_streamResponseChunks(messages, options, manager) {
    const reply = await this.#send(messages, options);
    const message = new AIMessageChunk(fieldsOf(reply));
    yield new ChatGenerationChunk({ text: reply.text, message });
    await manager?.handleLLMNewToken(reply.text);
  }
}

/** Returns a chat model. `params` are sampling parameters, as OpenAI names them. */
export function hostModel(of, params = {}) {
  return new HostChatModel(conversationOf(of, 'hostModel'), params);
}
