// Modules that must be evaluated before the author's modules.

import './promise.js';
import './globals.js';
