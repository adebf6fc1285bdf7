// `node:constants`.

import { constants } from './fs.js';

export default constants;
