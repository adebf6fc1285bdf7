// `node:stream/web`.

import * as streams from '../web/streams.js';

export default streams;
