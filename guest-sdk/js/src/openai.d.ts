// Types of `rollout-sdk/openai`, for the client `openai`.

import type { Sample, WorkflowContext } from './index.js';

/**
 * Returns a `fetch` for the option of that name of `new OpenAI({ apiKey: 'none', baseURL: 'http://model/v1', fetch })`.
 * Chat completions, also with `stream`, are calls of the rollout's model, recorded in the sample or in the main sample
 * of the context. Every other request is answered with an error that says so.
 */
export declare function hostFetch(of: WorkflowContext<any> | Sample): typeof globalThis.fetch;
