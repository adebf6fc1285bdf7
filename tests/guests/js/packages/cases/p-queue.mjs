import PQueue from 'p-queue';
export default async () => {
  const queue = new PQueue({ concurrency: 1 });
  const order = [];
  queue.add(() => order.push('first'));
  queue.add(() => order.push('low'), { priority: 0 });
  queue.add(() => order.push('high'), { priority: 5 });
  await queue.onIdle();
  return [order, queue.size];
};
