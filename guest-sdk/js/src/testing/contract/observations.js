// The contract's interface `observations`, answered by the host of a test.

import { host } from '../host.js';

export const exchanges = (...args) => host().observations.exchanges(...args);
