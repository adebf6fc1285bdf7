import dayjs from 'dayjs';
import duration from 'dayjs/plugin/duration.js';
import utc from 'dayjs/plugin/utc.js';
export default () => {
  dayjs.extend(utc);
  dayjs.extend(duration);
  const date = dayjs.utc('2026-02-28T23:59:59Z');
  return [date.add(1, 'day').format('YYYY-MM-DD'), date.startOf('month').toISOString(), dayjs.duration(90, 'minutes').toISOString()];
};
