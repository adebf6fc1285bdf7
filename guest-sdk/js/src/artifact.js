// Named files that are stored with the rollout. A workflow writes files, and its grader can read them.

import * as artifacts from '#contract/artifacts';

import { asText, shown } from './check.js';
import { ArtifactError, Invalid, callHost } from './errors.js';
import { checkRunning } from './host.js';
import { TextDecoder, TextEncoder } from './runtime/text.js';

function artifactError({ tag, val }) {
  const texts = {
    'invalid-name': `not a name of an artifact: ${val}`,
    'not-found': 'there is no artifact of this name',
    'over-limit': `artifact not kept, a limit is reached: ${val}`,
  };
  return new ArtifactError(tag, texts[tag]);
}

function bytesOf(content) {
  if (typeof content === 'string') return new TextEncoder().encode(content);
  if (content instanceof ArrayBuffer) return new Uint8Array(content);
  if (ArrayBuffer.isView(content)) return new Uint8Array(content.buffer, content.byteOffset, content.byteLength).slice();
  throw new Invalid(`the content of an artifact has to be a string or bytes, not ${shown(content)}`);
}

export const artifact = {
  /** Stores a file, replacing an earlier one of this name. */
  write: (name, content) => {
    checkRunning('artifact.write');
    const text = asText(name, 'the name of an artifact');
    const bytes = bytesOf(content);
    callHost(() => artifacts.write(text, bytes), artifactError);
  },
  /** Reads a file of this rollout. */
  read: (name) => {
    checkRunning('artifact.read');
    const text = asText(name, 'the name of an artifact');
    const bytes = callHost(() => artifacts.read(text), artifactError);
    return bytes instanceof Uint8Array ? bytes : Uint8Array.from(bytes);
  },
  /** Reads a file of this rollout as text. */
  readText: (name) => new TextDecoder().decode(artifact.read(name)),
  /** Returns the sorted names of this rollout's files. */
  names: () => {
    checkRunning('artifact.names');
    return artifacts.names();
  },
};
