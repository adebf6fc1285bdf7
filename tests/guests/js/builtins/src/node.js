// Prints the results of a group of cases in Node.

import { results } from './cases.js';

console.log(JSON.stringify(await results(process.argv[2])));
