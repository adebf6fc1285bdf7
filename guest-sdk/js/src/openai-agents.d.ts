// Types of `rollout-sdk/openai-agents`, for `@openai/agents-core` and `@openai/agents`.

import type { Model, ModelProvider } from '@openai/agents-core';

import type { Sample, WorkflowContext } from './index.js';

/**
 * Returns a model for `new Agent({ model })`. Its server is the rollout's model, and requests are recorded in the sample,
 * or in the main sample of the context.
 */
export declare function hostModel(of: WorkflowContext<any> | Sample): Model;

/** Returns a provider for `new Runner({ modelProvider })`, whose models are all {@link hostModel}. */
export declare function hostModelProvider(of: WorkflowContext<any> | Sample): ModelProvider;
