import superjson from 'superjson';
export default () => {
  const text = superjson.stringify({ at: new Date(0), set: new Set([1]), big: 10n ** 20n, none: undefined, pattern: /a/gi });
  const back = superjson.parse(text);
  return [text, back.at.toISOString(), [...back.set], String(back.big), 'none' in back, String(back.pattern)];
};
