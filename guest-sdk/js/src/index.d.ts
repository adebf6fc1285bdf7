/// <reference path="./files.d.ts" />
// Types of rollout-sdk. Each item is documented here; the modules beside this file have the code.

/** A JSON value. */
export type Json = null | boolean | number | string | readonly Json[] | { readonly [name: string]: Json };

/** A chat message: an object in the form of OpenAI's API. Unknown fields are preserved. */
export interface Message {
  role: string;
  content?: unknown;
  [field: string]: unknown;
}

/** A tool call that the model requests. */
export interface ToolCall {
  /** Id that the result must carry. */
  id: string;
  /** The function's name. */
  name: string;
  /** Arguments as JSON text. The model wrote it, so it may be invalid JSON. */
  arguments: string;
}

/** Result of a tool call. */
export interface ToolResult {
  /** Id of the call. */
  callId: string;
  /** Text for the model. */
  content: string;
  /** Whether the call failed. */
  isError: boolean;
}

/** Tokens of chat calls, as counted by the model's server. */
export interface Usage {
  /** Tokens of the requests. */
  promptTokens: number;
  /** Tokens of the replies. */
  completionTokens: number;
}

/** The model's reply. */
export interface Reply {
  /** The assistant's message, to be stored unchanged. */
  readonly message: Message;
  /** The reply's text, empty if there is none. */
  readonly text: string;
  /** Tool calls that the model requests, in order. */
  readonly toolCalls: readonly ToolCall[];
  /** Reason why the model stopped, such as `stop`, `tool_calls` or `length`, if the server reported one. */
  readonly finishReason?: string;
  /** Number of tokens, if the server reported it. */
  readonly usage?: Usage;
}

/** Sampling parameters of a call. */
export interface SamplingOptions {
  /** Sampling temperature; 0 selects the most likely tokens. */
  temperature?: number;
  /** Maximum number of tokens of the reply. */
  maxTokens?: number;
  /**
   * Any other parameters, sent unchanged. Not allowed: `model`, `messages`, `tools`, `stream`, `stream_options` and
   * `n`.
   */
  params?: Record<string, unknown>;
  /** Abandons the call when it is aborted. */
  signal?: AbortSignal;
}

/** Options of a call of the model. */
export interface ChatOptions extends SamplingOptions {
  /** Tools that the model may call, or their schemas in OpenAI's form. */
  tools?: readonly (Tool | object)[];
  /** Whether the reply is pushed to the sample's history. */
  keepReply?: boolean;
}

/** A conversation that is graded and trained on. It is registered with the host as soon as it is opened. */
export interface Sample {
  /** The id, which every chat call of this sample carries. */
  readonly id: string;
  /** The history, as the host has it. */
  readonly messages: Message[];
  /**
   * Calls the model with these messages, which are not pushed. The reply is pushed only with `keepReply`. Throws a
   * {@link ChatError}.
   */
  chat(messages: readonly Message[], options?: ChatOptions): Promise<Reply>;
  /**
   * Calls the model with the history and these messages at its end. They are pushed, and so is the reply, unless
   * `keepReply` is false. Throws a {@link ChatError}.
   */
  continueChat(messages?: readonly Message[], options?: ChatOptions): Promise<Reply>;
  /** Appends messages to the history, all of them or none. */
  push(...messages: Message[]): void;
  /** Replaces the history. */
  replace(messages: readonly Message[]): void;
  /** Records a finite measurement, replacing an earlier one of this name. `true` is 1, `false` 0. */
  metric(name: string, value: number | boolean): void;
  /** Records a JSON value, replacing an earlier one of this name. */
  field(name: string, value: unknown): void;
  /** Requests that this sample be graded but not trained on. */
  withdraw(): void;
}

/** Options of an agent. */
export interface AgentOptions extends SamplingOptions {
  /** Instructions for the model: after the system message at the start, or as a new first message. */
  instructions?: string;
  /** Tools that the model may call. */
  tools?: readonly Tool[];
  /** Maximum number of model calls in one run, at least 1. [default: 16] */
  maxTurns?: number;
  /** Sample to record into. [default: a new one] */
  sample?: Sample;
}

/** The ready-made tool loop. It continues its sample's history. */
export interface Agent {
  readonly sample: Sample;
  /** Adds messages to the conversation. */
  say(...messages: Message[]): Agent;
  /** Runs the loop. A spent budget ends it like any other limit. Throws a {@link ChatError}. */
  run(): Promise<AgentRun>;
}

/**
 * Reason why an agent stopped: the model answered without further tool calls, the limit on model calls was reached,
 * the reply was truncated at its token limit, or a budget of the rollout is spent.
 */
export type Stop = 'stopped' | 'turn-limit' | 'length' | 'budget-spent';

/** Result of an agent's run. */
export interface AgentRun {
  /** The agent, to continue the conversation. */
  readonly agent: Agent;
  readonly stop: Stop;
  /** Number of model calls in this run. */
  readonly turns: number;
  /** Number of tool calls in this run. */
  readonly toolCalls: number;
  /** Token usage of this run, as far as the server reported it. */
  readonly usage: Usage;
  /** Text of the model's last message, empty if there is none. */
  readonly text: string;
  /** Sample with the conversation. */
  readonly sample: Sample;
  /** The whole conversation, fetched from the host. */
  readonly messages: Message[];
}

/** Readers of the rollout that all contexts share. */
export interface RolloutContext<S = undefined> {
  /** The rollout's id, which the caller chose. */
  readonly rolloutId: string;
  /** Number of the attempt: 1 at first, one more each time the rollout restarts. */
  readonly attempt: number;
  /** The operator's configuration over the defaults; an object without settings. */
  readonly config: ConfigOf<S>;
  /** Metadata of the data set's row, or `null`. */
  readonly metadata: any;
  /** Milliseconds until the host ends this run; `undefined` without a deadline. */
  readonly timeLeft: number | undefined;
}

/** The current rollout, for a workflow. */
export interface WorkflowContext<S = undefined> extends RolloutContext<S> {
  /** Messages of the prompt. */
  readonly prompt: Message[];
  /** Maximum number of samples that this rollout's caller accepts, which may be 1. */
  readonly samplesMax: number;
  /** The main sample, opened with a random id when it is first read. */
  readonly sample: Sample;
  /**
   * Opens a sample. Its id is the name, 1 to 128 visible ASCII characters, or random without a name. Throws an
   * {@link OpenError}.
   */
  openSample(name?: string): Sample;
  /** Creates an agent that starts from the prompt and records into a sample of its own. */
  agent(options?: AgentOptions): Agent;
}

/** One call of the model, as the host recorded it. */
export interface Exchange {
  /** The request's body as it was sent. */
  request: any;
  /** The reply's body; `undefined` if there was none. */
  reply?: any;
  /** Reason why there was no reply. */
  error?: string;
}

/** A sample to be graded. */
export interface GradedSample {
  readonly id: string;
  /** The conversation as the workflow recorded it. */
  readonly messages: Message[];
  /** Measurements of the workflow. */
  readonly metrics: Record<string, number>;
  /** Text of the model's last message, empty if there is none. */
  readonly text: string;
  /** Reward of the sample: a finite number, `true` for 1, `false` for 0; `undefined` leaves it without one. */
  get reward(): number | undefined;
  set reward(reward: number | boolean | undefined);
  /** Returns the text after the last marker in the model's last message. */
  answerAfter(marker: string): string | undefined;
  /** Adds a finite measurement to those of the workflow. */
  metric(name: string, value: number | boolean): void;
  /** Requests that the sample not be trained on. */
  withdraw(): void;
  /** Returns every model call of this sample as the host recorded it, in order. */
  observed(): Exchange[];
}

/** The rollout to be graded. */
export interface GraderContext<S = undefined> extends RolloutContext<S> {
  /** Ground truth in the data set's row, if there is one. */
  readonly label: string | undefined;
  /** All samples of the rollout. */
  readonly samples: readonly GradedSample[];
  /** The only sample of the rollout. Throws a {@link Failed} if there is not exactly one. */
  readonly sample: GradedSample;
  /** Returns the ground truth. Throws an {@link Invalid} if the row has none. */
  requireLabel(): string;
}

type Awaitable<T> = T | Promise<T>;

/** Options of a part that reads settings. */
export interface PartOptions<S> {
  /** The settings with which `config` is read. Export them as well, so that the host checks the configuration. */
  settings?: S;
}

declare const kind: unique symbol;

/** A part of a plugin, which the entry module exports under this name. */
export interface Part<Name extends string> {
  readonly [kind]: Name;
}

/**
 * Defines the plugin's workflow, to be exported as `workflow`. It returns the messages of its only sample, or nothing
 * if it recorded samples itself, as an agent does. An error leaves the rollout without a reward.
 */
export function defineWorkflow<S extends AnySettings | undefined = undefined>(
  run: (ctx: WorkflowContext<S>) => Awaitable<readonly Message[] | AgentRun | Reply | void | undefined>,
  options?: PartOptions<S>,
): Part<'workflow'>;

/**
 * Defines the plugin's grader, to be exported as `grader`. It returns the reward of the only sample, or sets
 * `sample.reward`. An error leaves the rollout without a reward; a wrong answer should get a low reward instead.
 */
export function defineGrader<S extends AnySettings | undefined = undefined>(
  grade: (ctx: GraderContext<S>) => Awaitable<number | boolean | void | undefined>,
  options?: PartOptions<S>,
): Part<'grader'>;

/** A sample of a group. */
export interface GroupSample {
  /** Number of the sample's member. */
  readonly member: number;
  /** The sample's id, which is unique within its member. */
  readonly id: string;
  /** The conversation as the workflow recorded it. */
  readonly messages: Message[];
  /** Measurements of workflow and grader. */
  readonly metrics: Record<string, number>;
  /** Reward by the grader or the agent loop, if there is one. */
  readonly reward: number | undefined;
  /** Text of the model's last message, empty if there is none. */
  readonly text: string;
  /** Returns the text after the last marker in the model's last message. */
  answerAfter(marker: string): string | undefined;
  /** Sets the sample's reward: a finite number, `true` for 1, `false` for 0. */
  rate(reward: number | boolean): void;
  /** Adds a finite measurement to those of workflow and grader. */
  metric(name: string, value: number | boolean): void;
}

/** A member of a group with its samples. */
export interface GroupMember {
  /** Number of the member in the group, from 0. */
  readonly number: number;
  readonly rolloutId: string;
  /** Ground truth in the data set's row, if there is one. */
  readonly label: string | undefined;
  readonly samples: readonly GroupSample[];
}

/** A member of a group without samples to rate. */
export interface FailedMember {
  /** Number of the member in the group, from 0. */
  readonly number: number;
  /** Reason why it failed or never began. */
  readonly reason: string;
}

/** The group to be graded. Configuration and metadata are those of the first member with samples. */
export interface GroupContext<S = undefined> extends RolloutContext<S> {
  /** The group's id, which the caller chose. */
  readonly id: string;
  /** Number of members, including those that failed. */
  readonly size: number;
  /** Members with samples, by number. */
  readonly members: readonly GroupMember[];
  /** Samples of all members. */
  readonly samples: readonly GroupSample[];
  /** The other members, by number. */
  readonly failed: readonly FailedMember[];
}

/**
 * Defines the plugin's group grader, to be exported as `groupGrader`. It rates each of `ctx.samples`, or returns their
 * rewards in the same order. An error leaves every member of the group without a reward.
 */
export function defineGroupGrader<S extends AnySettings | undefined = undefined>(
  gradeGroup: (ctx: GroupContext<S>) => Awaitable<readonly (number | boolean)[] | void | undefined>,
  options?: PartOptions<S>,
): Part<'groupGrader'>;

/** Parameters of a run of an agent loop. */
export interface LoopRequest<S = undefined> extends RolloutContext<S> {
  /** The prompt. */
  readonly messages: Message[];
  /** Number of turns that the caller intends. The host does not enforce it. */
  readonly maxTurns: number;
  /** Number of tokens that the caller intends. The host does not enforce it. */
  readonly maxTokensTotal: number;
  /** The caller's sampling parameters. The host adds them to every chat request that does not set them. */
  readonly completionParams: Record<string, unknown>;
}

/** Output of an agent loop, made by `ctx.complete` or `ctx.error`. */
export interface LoopOutput {
  readonly finishReason: string;
}

/** The current rollout, for an agent loop. */
export interface LoopContext<S = undefined> extends RolloutContext<S> {
  readonly request: LoopRequest<S>;
  /** Schemas of the loop's tools. */
  readonly tools: readonly object[];
  /** Sample of the chat calls. */
  readonly sample: Sample;
  /** Calls the model with these messages and the loop's tools. */
  chat(messages: readonly Message[], options?: ChatOptions): Promise<Reply>;
  /** Makes the tool calls of a reply concurrently, counts them, and returns the messages with their results. */
  executeTools(calls: Reply | Message | readonly ToolCall[]): Promise<Message[]>;
  /** Counts a tool call and its duration. */
  recordToolCall(milliseconds?: number): void;
  /** Logs an event for debugging this rollout. */
  logEvent(name: string, data?: unknown): void;
  /** Returns the output of a successful loop. */
  complete(
    messages: readonly Message[],
    options?: { finishReason?: string; reward?: number | boolean; metrics?: Record<string, number> },
  ): LoopOutput;
  /** Returns the output of a failed loop: the reason and the messages so far. The rollout has no reward. */
  error(reason: string, messages: readonly Message[], options?: { metrics?: Record<string, number> }): LoopOutput;
}

/** Defines the plugin's agent loop, to be exported as `agentLoop`. */
export function defineAgentLoop<S extends AnySettings | undefined = undefined>(loop: {
  /** The loop's name, always the same. */
  name: string;
  /**
   * The tools of a rollout, or a function that returns them, which is called before the rollout runs and again when it
   * runs.
   */
  tools?: readonly (Tool | object)[] | ((request: LoopRequest<S>) => Awaitable<readonly (Tool | object)[]>);
  /** Runs one rollout. */
  run(ctx: LoopContext<S>): Awaitable<LoopOutput>;
  /** The settings with which `config` is read. */
  settings?: S;
}): Part<'agentLoop'>;

/** A library's schema in the form of the Standard Schema specification. */
export interface StandardSchema<Output = unknown> {
  readonly '~standard': {
    readonly version: 1;
    readonly vendor: string;
    readonly validate: (value: unknown) => unknown;
    readonly types?: { readonly input: unknown; readonly output: Output } | undefined;
  };
}

/** A JSON Schema. Declared `as const`, it gives the type of its values. */
export type JsonSchema = { readonly [keyword: string]: unknown };

type Types = {
  string: string;
  number: number;
  integer: number;
  boolean: boolean;
  null: null;
};

type TypeNamed<Name, S> = Name extends keyof Types
  ? Types[Name]
  : Name extends 'array'
    ? S extends { readonly items: infer Items }
      ? FromSchema<Items>[]
      : unknown[]
    : Name extends 'object'
      ? ObjectOf<S>
      : unknown;

type RequiredOf<S> = S extends { readonly required: readonly (infer Name)[] } ? Name : never;

type DefaultedOf<P> = { [Name in keyof P]: P[Name] extends { readonly default: unknown } ? Name : never }[keyof P];

type ObjectOf<S> = S extends { readonly properties: infer P }
  ? { -readonly [Name in keyof P as Name extends RequiredOf<S> | DefaultedOf<P> ? Name : never]: FromSchema<P[Name]> } & {
      -readonly [Name in keyof P as Name extends RequiredOf<S> | DefaultedOf<P> ? never : Name]?: FromSchema<P[Name]>;
    }
  : Record<string, unknown>;

/** Type of the values that a JSON Schema describes, as far as it is known. */
export type FromSchema<S> = S extends { readonly const: infer Value }
  ? Value
  : S extends { readonly enum: readonly (infer Value)[] }
    ? Value
    : S extends { readonly type: readonly (infer Name)[] }
      ? TypeNamed<Name, S>
      : S extends { readonly type: infer Name }
        ? TypeNamed<Name, S>
        : S extends { readonly properties: unknown }
          ? ObjectOf<S>
          : any;

type ValueOf<S> = S extends StandardSchema<infer Output> ? Output : FromSchema<S>;

/** The plugin's settings, with values of this type. */
export interface Settings<Config> extends Part<'settings'> {
  /** Reads a configuration over the defaults. */
  read(config: object): Config;
}

type AnySettings = Settings<any>;

type ConfigOf<S> = S extends Settings<infer Config> ? Config : Record<string, any>;

/**
 * Defines the plugin's settings, to be exported as `settings`, by a JSON Schema or a schema of a Standard Schema
 * library. Without `defaults`, they are those that the schema declares.
 */
export function defineSettings<const S extends JsonSchema | StandardSchema<any>>(
  schema: S,
  defaults?: object,
): Settings<ValueOf<S>>;

/** A function that the model may call. */
export interface Tool<Args = any, Episode = any> {
  readonly name: string;
  /** Schema in the form of OpenAI's function tools. */
  readonly schema: object;
  /** Calls the function. */
  execute?(args: Args, episode: Episode): unknown;
  /** Calls the function with arguments as the model wrote them. Throws an {@link Invalid} for those that do not fit. */
  run(args: string, episode?: Episode): Promise<unknown>;
  /** Makes a call of the model's. The model receives an error as `error: …`. */
  call(call: ToolCall): Promise<ToolResult>;
}

/**
 * Creates a tool. `parameters` is a JSON Schema of an object or a schema of a Standard Schema library. The model
 * receives a returned string verbatim and any other value as JSON. It receives a thrown error as `error: …`.
 *
 * A tool of an environment receives the episode, too, and may return a {@link Turn}.
 */
export function tool<
  const S extends JsonSchema | StandardSchema<any> = { type: 'object'; properties: {} },
  Episode = any,
>(tool: {
  name: string;
  description?: string;
  parameters?: S;
  execute(args: ValueOf<S>, episode: Episode): unknown;
}): Tool<ValueOf<S>, Episode>;

/** Result of a reset, a step or a tool, made by {@link turn}. */
export interface Turn<Observation = unknown> {
  readonly observation: Observation;
  readonly reward?: number | boolean;
  readonly done: boolean;
  readonly metadata?: object;
}

/**
 * Creates the result of a reset, a step or a tool. The caller reads the observation, so it must not contain the label.
 * That of a reset or a step is an object or a text, which becomes `{ text }`. That of a tool is any JSON value.
 */
export function turn<Observation>(
  observation: Observation,
  options?: {
    /** Finite reward of this step; `true` is 1, `false` 0. A grader replaces it. */
    reward?: number | boolean;
    /** Whether the episode has ended. */
    done?: boolean;
    /** Values for people and logs. */
    metadata?: object;
  },
): Turn<Observation>;

/** A named part of an environment's tasks. */
export interface Split {
  name: string;
  /** Number of tasks. */
  tasks: number;
  /** Purpose of the split. By default it is that of the name, which is then `train`, `validation` or `test`. */
  kind?: 'train' | 'validation' | 'test';
}

/** Parameters of an episode. */
export interface EpisodeStart<Arguments = Record<string, any>, S = undefined> extends RolloutContext<S> {
  /** Seed of the episode's random choices, if the caller gave one. One above 2^53 is rounded. */
  readonly seed: number | undefined;
  /** The caller's name of the episode. */
  readonly episodeId: string | undefined;
  /** Arguments of the reset, such as the data set's row. With a grader in the plugin, the label is not among them. */
  readonly arguments: Arguments;
}

type AnySchema = JsonSchema | StandardSchema<any>;
type ObservationOf<O> = undefined extends O ? string | { text: string } : ValueOf<O>;
type ResultOf<O> = ObservationOf<O> | Turn<ObservationOf<O>>;

/**
 * Defines the plugin's environment, to be exported as `environment`. Each episode is played in an instance of its own.
 * An error in a step is reported to the caller, and the episode continues.
 */
export function defineEnvironment<
  Episode,
  const O extends AnySchema | undefined = undefined,
  const A extends AnySchema | undefined = undefined,
  const R extends AnySchema | undefined = undefined,
  S extends AnySettings | undefined = undefined,
>(environment: {
  name: string;
  /** One or two sentences for people and for the model. */
  description: string;
  /** The environment's own version. */
  version?: string;
  /** Schema of an observation, an object. [default: one with a field `text`] */
  observation?: O;
  /** Schema of an action, an object. Without it, only tools are called. */
  action?: A;
  /** Schema of the arguments of a reset. [default: any object] */
  arguments?: R;
  /** The settings with which `config` is read. */
  settings?: S;
  /** Begins an episode: returns its state, which steps and tools receive and change, and the first observation. */
  reset(
    start: EpisodeStart<undefined extends R ? Record<string, any> : ValueOf<R>, S>,
  ): Awaitable<{ episode: Episode; turn: ResultOf<O> }>;
  /** Takes an action. */
  step?(episode: NoInfer<Episode>, action: ValueOf<A>): Awaitable<ResultOf<O>>;
  /** Tools that the caller's model may call in a step. They receive the episode as their second argument. */
  tools?: readonly Tool<any, NoInfer<Episode>>[];
  /** Returns the part of the state that the caller may see: an object, which must not contain the label. */
  state?(episode: NoInfer<Episode>): Awaitable<object>;
  /** Splits of the tasks. */
  splits?: readonly Split[];
  /** Returns a task of a split, which a caller passes to a reset as its arguments. Throws an {@link Invalid} if there is none. */
  task?(split: string, index: number): Awaitable<object>;
}): Part<'environment'>;

/** Defines a component with tools for other plugins, to be exported as `tools`. */
export function defineTools<S extends AnySettings | undefined = undefined>(
  tools: readonly Tool[] | ((config: ConfigOf<S>) => Awaitable<readonly Tool[]>),
  options?: PartOptions<S>,
): Part<'tools'>;

/** Tools that the operator provides to this plugin and the host runs. For workflows and agent loops only. */
export const hostTools: {
  /** Returns the schemas in OpenAI's form. */
  available(): object[];
  /** Returns the tools, for an agent. */
  all(): Tool[];
  /** Makes a call. The result of a tool that is not provided is an error that says so. */
  call(call: ToolCall): Promise<ToolResult>;
  /** Makes the calls concurrently and returns the results in the order of the calls. */
  execute(calls: readonly ToolCall[]): Promise<ToolResult[]>;
};

/** A model that judges. For graders only. */
export const judge: {
  /** Calls the judge with these messages. Throws a {@link JudgeError}. */
  ask(messages: readonly Message[], options?: SamplingOptions): Promise<Reply>;
};

/** A judge's rating. */
export interface Rating {
  /** Score within the range. */
  score: number;
  /** The judge's reason. */
  explanation: string;
}

/** Options of a rubric. */
export interface RubricOptions {
  /** Lowest and highest score. [default: 0 and 1] */
  range?: readonly [low: number, high: number];
  /** The right answer. */
  truth?: string;
  /** The question that was asked. */
  input?: string;
  /** Anything else that the judge should know, as JSON. */
  metadata?: unknown;
  /** Instructions in place of the usual ones. */
  instructions?: string;
}

/** Returns a rater by a rubric in words. Its calls throw a {@link JudgeError}, or a {@link Failed} for a reply without a score. */
export function rubric(
  text: string,
  options?: RubricOptions,
): { rate(candidate: string, options?: { signal?: AbortSignal }): Promise<Rating> };

/** Named files that are stored with the rollout. A workflow writes files, and its grader can read them. */
export const artifact: {
  /** Stores a file, replacing an earlier one of this name. Throws an {@link ArtifactError}. */
  write(name: string, content: string | ArrayBuffer | ArrayBufferView): void;
  /** Reads a file of this rollout. Throws an {@link ArtifactError}. */
  read(name: string): Uint8Array;
  /** Reads a file of this rollout as UTF-8 text. Throws an {@link ArtifactError}. */
  readText(name: string): string;
  /** Returns the sorted names of this rollout's files. */
  names(): string[];
};

/** Log lines and events for debugging this rollout. `console` writes here, too. */
export const log: {
  debug(text: unknown): void;
  info(text: unknown): void;
  warn(text: unknown): void;
  error(text: unknown): void;
  /** Logs a named event with a JSON value, for programs. */
  event(name: string, data?: unknown): void;
};

/** Constructors and readers of messages. */
export const message: {
  system(text: string): Message;
  user(text: string): Message;
  assistant(text: string): Message;
  /** Returns the message that reports a call's result to the model. */
  toolResult(callId: string, text: string): Message;
  /** Returns the content, or its text parts joined by line breaks. */
  textOf(message: Message | undefined): string;
  /** Returns the tool calls in a message, in order. */
  toolCallsOf(message: Message | undefined): ToolCall[];
  /** Returns the text of the model's last message, empty if there is none. */
  lastAssistantText(messages: readonly Message[]): string;
};

/** Resolves after this number of milliseconds. */
export function sleep(milliseconds: number, options?: { signal?: AbortSignal }): Promise<void>;

/** Returns the text after the last marker on its line, trimmed; `undefined` if nothing follows. */
export function answerAfter(text: string, marker: string): string | undefined;

/** Parses a number and ignores its formatting; `undefined` for any other text. */
export function parseNumber(text: string): number | undefined;

/** Returns whether two texts are the same number, up to formatting and the rounding of double precision. */
export function sameNumber(a: string | undefined, b: string | undefined): boolean;

/** Base of all errors that this package throws on purpose. */
export class RolloutError extends Error {}

/** The work could not be done. */
export class Failed extends RolloutError {}

/** An input is invalid: prompt, configuration, metadata or label. */
export class Invalid extends RolloutError {}

/** A time limit that the plugin set itself expired. */
export class TimedOut extends RolloutError {}

/** Thrown by a tool to report a mistake in its call to the model. */
export class ToolError extends RolloutError {}

/** A sample was not opened. */
export class OpenError extends RolloutError {
  constructor(kind: OpenError['kind'], message: string);
  readonly kind: 'too-many' | 'taken' | 'invalid';
}

/** A value was not recorded in a sample. */
export class RecordError extends RolloutError {
  constructor(kind: RecordError['kind'], message: string);
  readonly kind: 'invalid' | 'over-limit';
}

/** A file was not written or read. */
export class ArtifactError extends RolloutError {
  constructor(kind: ArtifactError['kind'], message: string);
  readonly kind: 'invalid-name' | 'not-found' | 'over-limit';
}

/** There is no reply of the model. */
export class ChatError extends RolloutError {
  constructor(kind: ChatError['kind'], message: string, status?: number, answer?: string);
  readonly kind: 'invalid-request' | 'budget-spent' | 'refused' | 'unavailable';
  /** HTTP status code of a server that refused. */
  readonly status?: number;
  /** Beginning of the answer of a server that refused. */
  readonly answer: string;
}

/** There is no reply of the judge. */
export class JudgeError extends RolloutError {
  constructor(kind: JudgeError['kind'], message: string, status?: number, answer?: string);
  readonly kind: 'not-provided' | 'invalid-request' | 'budget-spent' | 'refused' | 'unavailable';
  /** HTTP status code of a server that refused. */
  readonly status?: number;
  /** Beginning of the answer of a server that refused. */
  readonly answer: string;
}
