// Types of `rollout-sdk/langchain`, for `@langchain/core` and `@langchain/langgraph`.

import type { BaseLanguageModelInput, ToolDefinition } from '@langchain/core/language_models/base';
import type { BaseChatModel, BaseChatModelCallOptions, BindToolsInput } from '@langchain/core/language_models/chat_models';
import type { AIMessageChunk } from '@langchain/core/messages';
import type { Runnable } from '@langchain/core/runnables';

import type { Sample, WorkflowContext } from './index.js';

/** Options of a call. */
export interface HostCallOptions extends BaseChatModelCallOptions {
  tools?: ToolDefinition[];
  response_format?: object;
}

/** A chat model whose server is the rollout's model. */
export interface HostChatModel extends BaseChatModel<HostCallOptions, AIMessageChunk> {
  bindTools(tools: BindToolsInput[], options?: Partial<HostCallOptions>): Runnable<BaseLanguageModelInput, AIMessageChunk, HostCallOptions>;
}

/**
 * Returns a chat model for chains and graphs. Requests are recorded in the sample, or in the main sample of the context.
 * `params` are sampling parameters with the names of OpenAI's API, such as `temperature` and `max_tokens`.
 */
export declare function hostModel(of: WorkflowContext<any> | Sample, params?: Record<string, unknown>): HostChatModel;
