// Writes the npm packages that contain no build: `rollout-host`, and the manifest of this platform's package.
//
//   node scripts/npm.d/packages.mjs DIR

import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { PLATFORMS } from './rollout-host.mjs';

const here = dirname(fileURLToPath(import.meta.url));
const root = join(here, '../..');
const target = process.argv[2];
const version = /^version = "(.*)"$/m.exec(readFileSync(join(root, 'Cargo.toml'), 'utf8'))[1];
const sdk = JSON.parse(readFileSync(join(root, 'guest-sdk/js/package.json'), 'utf8'));
if (sdk.version !== version) throw new Error(`guest-sdk/js/package.json has the version ${sdk.version}, not ${version}`);

const platform = `${process.platform}-${process.arch}`;
if (!PLATFORMS.includes(platform)) {
  console.error(`error: there is no package for ${platform}; there are packages for ${PLATFORMS.join(', ')}`);
  process.exit(2);
}

const COMMON = {
  version,
  description: "Runs other people's agent code: workflows and graders as WebAssembly components, for trainers.",
  license: 'Apache-2.0',
};

function write(dir, manifest) {
  mkdirSync(join(target, dir), { recursive: true });
  copyFileSync(join(root, 'LICENSE'), join(target, dir, 'LICENSE'));
  writeFileSync(join(target, dir, 'package.json'), `${JSON.stringify(manifest, null, 2)}\n`);
}

write('rollout-host', {
  name: 'rollout-host',
  ...COMMON,
  type: 'module',
  bin: { 'rollout-host': 'bin/rollout-host.mjs' },
  engines: { node: '>=18' },
  optionalDependencies: Object.fromEntries(PLATFORMS.map((name) => [`@rollout-host/${name}`, version])),
  files: ['bin'],
});
mkdirSync(join(target, 'rollout-host/bin'));
copyFileSync(join(here, 'rollout-host.mjs'), join(target, 'rollout-host/bin/rollout-host.mjs'));
copyFileSync(join(root, 'README.md'), join(target, 'rollout-host/README.md'));

const [os, cpu] = platform.split('-');
write('platform-package', {
  name: `@rollout-host/${platform}`,
  ...COMMON,
  description: `The program of the package rollout-host for ${platform}.`,
  os: [os],
  cpu: [cpu],
  preferUnplugged: true,
  files: ['bin', 'share'],
});
writeFileSync(join(target, 'platform'), `${platform}\n`);
