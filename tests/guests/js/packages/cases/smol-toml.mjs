import { parse, stringify } from 'smol-toml';
export default () => [parse('a = 1\n[b]\nc = ["x", "y"]\nat = 2026-01-02T03:04:05Z\n'), stringify({ a: { b: [1, 2], c: 'x' } })];
