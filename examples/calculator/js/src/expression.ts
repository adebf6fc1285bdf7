// Arithmetic expressions: numbers, the four operations and parentheses.

/** Evaluates an expression. Throws an error for anything else. */
export function evaluate(expression: string): number {
  const tokens = expression.match(/\d+\.?\d*|\.\d+|[-+*/()]|\S/g) ?? [];
  let next = 0;

  function take(...wanted: string[]): string | undefined {
    const token = tokens[next];
    if (token === undefined || !wanted.includes(token)) return undefined;
    next += 1;
    return token;
  }

  function sum(): number {
    let value = product();
    for (let sign = take('+', '-'); sign !== undefined; sign = take('+', '-')) {
      value = sign === '+' ? value + product() : value - product();
    }
    return value;
  }

  function product(): number {
    let value = factor();
    for (let sign = take('*', '/'); sign !== undefined; sign = take('*', '/')) {
      const right = factor();
      if (sign === '/' && right === 0) throw new Error('division by zero');
      value = sign === '*' ? value * right : value / right;
    }
    return value;
  }

  function factor(): number {
    if (take('-') !== undefined) return -factor();
    if (take('+') !== undefined) return factor();
    if (take('(') !== undefined) {
      const value = sum();
      if (take(')') === undefined) throw new Error('a closing parenthesis is missing');
      return value;
    }
    const token = tokens[next];
    if (token === undefined || !/^[\d.]/.test(token)) throw new Error(`not an expression: ${expression}`);
    next += 1;
    return Number(token);
  }

  const value = sum();
  if (next < tokens.length) throw new Error(`not an expression: ${expression}`);
  return value;
}
