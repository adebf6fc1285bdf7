// Types of `rollout-sdk/ai`, for the Vercel AI SDK (`ai`).

import type { LanguageModel } from 'ai';

import type { Sample, WorkflowContext } from './index.js';

/**
 * Returns a model for `generateText`, `streamText` and agents of the AI SDK. Its server is the rollout's model, and
 * requests are recorded in the sample, or in the main sample of the context.
 *
 * Further sampling parameters are `providerOptions: { 'rollout-host': { … } }`.
 */
export declare function hostModel(of: WorkflowContext<any> | Sample): Exclude<LanguageModel, string>;
