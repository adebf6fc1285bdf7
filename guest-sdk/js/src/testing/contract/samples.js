// The contract's interface `samples`, answered by the host of a test.

import { host } from '../host.js';

export const Sample = { open: (name) => host().samples.open(name) };
export const limit = () => host().samples.limit();
