// The judge, a model that the operator provides to graders.

import { askJudge } from './models.js';

/** A model that judges. For graders only. */
export const judge = {
  /** Calls the judge with these messages. */
  ask: askJudge,
};
