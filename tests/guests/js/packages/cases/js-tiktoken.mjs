import { Tiktoken } from 'js-tiktoken/lite';
import ranks from 'js-tiktoken/ranks/cl100k_base';
export default () => {
  const tokens = new Tiktoken(ranks);
  return [tokens.encode('Hello, world! caf\u00e9 \u{1f600}'), tokens.decode([9906, 11, 1917])];
};
