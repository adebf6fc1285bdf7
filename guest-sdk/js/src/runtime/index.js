// Everything that must be there before a module of the author's is evaluated.

import './promise.js';
import './globals.js';
