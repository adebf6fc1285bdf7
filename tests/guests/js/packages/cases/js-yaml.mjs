import * as yaml from 'js-yaml';
export default () => {
  let message = '';
  try {
    yaml.load('a: [1,');
  } catch (error) {
    message = [error.name, error.reason, error.mark?.line];
  }
  return [yaml.load('a: 1\nb: [x, {c: null}]\nd: |\n  text\n  more\n'), yaml.dump({ list: [1, 'two', { three: true }], text: 'a\nb' }), message];
};
