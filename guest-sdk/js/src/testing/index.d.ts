// Types of `rollout-sdk/testing`: runs a plugin under Node against replies from a script.

import type { Json, Message, Tool } from '../index.js';

/** A scripted reply: a text, a message, tool calls, or an error for no reply. */
export type ScriptedReply =
  | string
  | Error
  | { content?: unknown; toolCalls?: readonly { id?: string; name: string; arguments?: unknown }[]; [field: string]: unknown };

/** A request to a model. */
export interface ScriptedRequest {
  messages: Message[];
  tools: any[];
  params: Record<string, any>;
}

/** Replies in the order of the calls, or a function of the request and the call's number, from 1. */
export type Replies = readonly ScriptedReply[] | ((request: ScriptedRequest, call: number) => ScriptedReply | Promise<ScriptedReply>);

export interface RolloutOptions {
  /** Messages of the prompt, or the text of a user's message. */
  prompt?: string | readonly Message[];
  /** The row's ground truth. */
  label?: string;
  /** Replies of the rollout's model. */
  replies?: Replies;
  /** Replies of the judge. */
  judgeReplies?: Replies;
  /** The operator's configuration. */
  config?: Record<string, Json>;
  metadata?: Json;
  /** Tools that the operator provides. */
  tools?: readonly Tool[];
  rolloutId?: string;
  samplesMax?: number;
  /** Milliseconds that `ctx.timeLeft` returns. */
  timeLeft?: number;
  /** Limits and parameters of an agent loop. */
  maxTurns?: number;
  maxTokensTotal?: number;
  completionParams?: Record<string, Json>;
}

/** A sample after grading. */
export interface TestedSample {
  id: string;
  messages: Message[];
  metrics: Record<string, number>;
  fields: Record<string, any>;
  withdrawn: boolean;
  reward: number | undefined;
}

export interface TestedRollout {
  samples: TestedSample[];
  /** The reward of the only sample. */
  reward: number | undefined;
  /** Requests to the rollout's model. */
  requests: ScriptedRequest[];
  judgeRequests: ScriptedRequest[];
  artifacts: Record<string, Uint8Array>;
  log: { level: 'debug' | 'info' | 'warn' | 'error'; text: string }[];
  events: { name: string; data: any }[];
}

/** A part of the plugin failed. */
export declare class RolloutFailure extends Error {
  readonly part: string;
  /** `failed`, `invalid` or `timed-out`. */
  readonly kind: string;
  readonly reason: string;
}

/**
 * Runs the workflow or agent loop of a plugin, then its grader. `plugin` is the entry module: `import * as plugin from
 * './index.js'`. Throws a {@link RolloutFailure}.
 */
export declare function runRollout(plugin: object, options?: RolloutOptions): Promise<TestedRollout>;

export interface EpisodeOptions {
  /** Arguments of the reset. */
  arguments?: object;
  seed?: number;
  episodeId?: string;
  /** The operator's configuration. */
  config?: Record<string, Json>;
  metadata?: Json;
  /** Tools that the operator provides. */
  tools?: readonly Tool[];
}

/** Result of a reset, a step or a tool, as a caller receives it. */
export interface PlayedTurn {
  observation: any;
  reward: number | undefined;
  done: boolean;
  metadata: Record<string, any>;
}

/** An episode. A failed step throws a {@link RolloutFailure}, and the episode goes on. */
export interface PlayedEpisode {
  /** Result of the reset. */
  readonly first: PlayedTurn;
  /** Log lines so far. */
  readonly log: { level: 'debug' | 'info' | 'warn' | 'error'; text: string }[];
  /** Takes an action. */
  step(action: object): Promise<PlayedTurn>;
  /** Calls a tool. */
  call(name: string, args?: object): Promise<PlayedTurn>;
  /** Returns the visible state. */
  state(): Promise<any>;
}

/** Begins an episode of a plugin's environment. Throws a {@link RolloutFailure}. */
export declare function play(plugin: object, options?: EpisodeOptions): Promise<PlayedEpisode>;

/** Returns a task of an environment. Throws a {@link RolloutFailure} if there is none. */
export declare function taskOf(plugin: object, split: string, index: number): Promise<any>;
