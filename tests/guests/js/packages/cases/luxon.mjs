import { DateTime, Interval } from 'luxon';
export default () => {
  const date = DateTime.fromISO('2026-03-29T10:00:00Z', { zone: 'utc' });
  return [date.plus({ months: 1 }).toISO(), date.toFormat('yyyy LLL dd'), Interval.after(date, { days: 2 }).length('hours'), DateTime.fromISO('x').invalidReason];
};
