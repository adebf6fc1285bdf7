import { decode, encode, isWithinTokenLimit } from 'gpt-tokenizer';
export default () => [encode('Hello, world! caf\u00e9 \u{1f600}'), decode([9906, 11, 1917]), isWithinTokenLimit('a b c', 2)];
