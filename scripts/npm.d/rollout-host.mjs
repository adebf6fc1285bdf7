#!/usr/bin/env node
// Starts the program of the package for this platform.

import { spawn } from 'node:child_process';
import { realpathSync } from 'node:fs';
import { createRequire } from 'node:module';
import { constants } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** Platforms that have a package. */
export const PLATFORMS = ['linux-arm64', 'linux-x64'];

/** Returns the path of the program. */
function program() {
  const platform = `${process.platform}-${process.arch}`;
  if (!PLATFORMS.includes(platform)) {
    throw new Error(`rollout-host does not run on ${platform}; it runs on ${PLATFORMS.join(' and ')}`);
  }
  try {
    const manifest = createRequire(import.meta.url).resolve(`@rollout-host/${platform}/package.json`);
    return join(dirname(manifest), 'bin/rollout-host');
  } catch {
    throw new Error(
      `the package @rollout-host/${platform}, which has the program, is not installed; install it with rollout-host, ` +
        'without the options --no-optional and --omit=optional',
    );
  }
}

function run() {
  const child = spawn(program(), process.argv.slice(2), { stdio: 'inherit' });
  for (const signal of ['SIGTERM', 'SIGHUP', 'SIGINT']) {
    // A terminal sends Ctrl-C to both processes.
    process.on(signal, () => signal === 'SIGINT' && process.stdin.isTTY ? undefined : child.kill(signal));
  }
  child.on('error', fail);
  child.on('exit', (code, signal) => {
    process.exitCode = signal === null ? code : 128 + constants.signals[signal];
  });
}

function fail(error) {
  console.error(`error: ${error.message}`);
  process.exitCode = 2;
}

if (process.argv[1] !== undefined && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  try {
    run();
  } catch (error) {
    fail(error);
  }
}
