// `node:fs/promises`.

import { promises } from './fs.js';

export const {
  access, appendFile, chmod, chown, constants, copyFile, cp, link, lstat, mkdir, mkdtemp, open, opendir, readdir, readFile,
  readlink, realpath, rename, rm, rmdir, stat, symlink, truncate, unlink, utimes, writeFile,
} = promises;
export default promises;
