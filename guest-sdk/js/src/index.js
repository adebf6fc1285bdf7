// Workflows, agent loops, environments and graders for rollout-host in TypeScript and JavaScript.

export { answerAfter, parseNumber, sameNumber } from './answer.js';
export { artifact } from './artifact.js';
export {
  ArtifactError,
  ChatError,
  Failed,
  Invalid,
  JudgeError,
  OpenError,
  RecordError,
  RolloutError,
  TimedOut,
  ToolError,
} from './errors.js';
export { defineAgentLoop } from './agent-loop.js';
export { defineEnvironment, turn } from './environment.js';
export { defineGrader } from './grader.js';
export { defineGroupGrader } from './group-grader.js';
export { defineSettings } from './settings.js';
export { defineTools } from './tools.js';
export { defineWorkflow } from './workflow.js';
export { hostTools } from './host-tools.js';
export { judge } from './judge.js';
export { log } from './host.js';
export { message } from './message.js';
export { rubric } from './rubric.js';
export { sleep } from './sleep.js';
export { tool } from './tool.js';
