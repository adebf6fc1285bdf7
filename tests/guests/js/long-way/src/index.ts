// Takes the number of turns in its prompt. In each turn it makes two concurrent calls and continues with the first
// reply, waits by timers, calls a tool of the host, and sends the remaining time, the clock and a random number: any
// difference in a second run shows up in its next request. The same as `examples/long_way.rs`.

import { defineGrader, defineWorkflow, hostTools, Invalid, judge, message, type Reply, sleep } from 'rollout-sdk';

export const workflow = defineWorkflow(async (ctx) => {
  const turns = Number.parseInt(message.textOf(ctx.prompt.at(-1)), 10);
  if (Number.isNaN(turns)) throw new Invalid('the prompt does not begin with a number');
  const { sample } = ctx;
  const history = [...ctx.prompt];
  for (let turn = 0; turn < turns; turn += 1) {
    const order: number[] = [];
    const ask = async (place: number): Promise<Reply> => {
      const reply = await sample.chat([...history, message.user(`turn ${turn}, ${place === 0 ? 'one' : 'two'}`)]);
      order.push(place);
      return reply;
    };
    let waits = 0;
    let isAnswered = false;
    const waiting = async (): Promise<void> => {
      while (!isAnswered) {
        await sleep(2);
        waits += 1;
      }
    };
    const calls = [ask(0), ask(1)];
    const watch = waiting();
    await Promise.race(calls);
    isAnswered = true;
    const replies = await Promise.all(calls);
    await watch;
    const [first, second] = order.map((place) => replies[place]!);
    const words = JSON.stringify({ text: `${first!.text} ${second!.text}` });
    const result = await hostTools.call({ id: `call_${turn}`, name: 'upper', arguments: words });
    const differs = [waits, ctx.timeLeft ?? 0, Date.now(), Math.floor(Math.random() * 2 ** 32)];
    history.push(first!.message, message.user(`${result.content} ${differs.join(' ')}`));
  }
  sample.push(...history);
});

export const grader = defineGrader(async (ctx) => {
  const { text } = ctx.sample;
  const reply = await judge.ask([message.user(text)]);
  let sum = 0;
  for (const character of reply.text + text) sum += character.codePointAt(0)!;
  return sum;
});
