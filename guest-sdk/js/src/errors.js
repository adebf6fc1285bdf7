// Errors, with a class for each different reaction.

/** Base of all errors that this package throws on purpose. */
export class RolloutError extends Error {
  constructor(message, options) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** The work could not be done. */
export class Failed extends RolloutError {}

/** An input is invalid: prompt, configuration, metadata or label. */
export class Invalid extends RolloutError {}

/** A time limit that the plugin set itself expired. */
export class TimedOut extends RolloutError {}

/** Thrown by a tool to report a mistake in its call to the model. */
export class ToolError extends RolloutError {}

class Refusal extends RolloutError {
  constructor(kind, message) {
    super(message);
    this.kind = kind;
  }
}

/** A sample was not opened: `too-many`, `taken` or `invalid`. */
export class OpenError extends Refusal {}

/** A value was not recorded in a sample: `invalid` or `over-limit`. */
export class RecordError extends Refusal {}

/** A file was not written or read: `invalid-name`, `not-found` or `over-limit`. */
export class ArtifactError extends Refusal {}

/** There is no reply: `invalid-request`, `budget-spent`, `refused` or `unavailable`. */
export class ChatError extends Refusal {
  constructor(kind, message, status, answer = '') {
    super(kind, message);
    this.status = status;
    this.answer = answer;
  }
}

/** There is no judgement: `not-provided`, `invalid-request`, `budget-spent`, `refused` or `unavailable`. */
export class JudgeError extends Refusal {
  constructor(kind, message, status, answer = '') {
    super(kind, message);
    this.status = status;
    this.answer = answer;
  }
}

/** Returns the error that the host reported: a case of a variant of the contract. */
function caseOf(thrown) {
  const payload = thrown?.payload ?? thrown;
  return typeof payload?.tag === 'string' ? payload : undefined;
}

/** Calls the host; `read` converts a case that it reports to an error. */
export function callHost(call, read) {
  try {
    return call();
  } catch (thrown) {
    const refused = caseOf(thrown);
    if (refused === undefined) throw thrown;
    throw read(refused);
  }
}

/** Returns the message of a model's error. `who` is 'model' or 'judge'. */
export function modelErrorParts({ tag, val }, who) {
  const server = `the ${who}'s server`;
  switch (tag) {
    case 'refused':
      return { kind: tag, message: `${server} refused with ${val[0]}: ${val[1]}`, status: val[0], answer: val[1] };
    case 'budget-spent':
      return { kind: tag, message: `${who === 'judge' ? 'a budget of the judge' : 'a budget'} is spent: ${val}` };
    case 'invalid-request':
      return { kind: tag, message: `${who === 'judge' ? 'wrong request to the judge' : 'wrong chat request'}: ${val}` };
    default:
      return { kind: tag, message: `${server} is unavailable: ${val}` };
  }
}
