import { addMonths, differenceInCalendarDays, format, formatDistance, parseISO } from 'date-fns';
export default () => {
  const date = parseISO('2026-01-31T12:00:00Z');
  return [addMonths(date, 1).toISOString(), format(date, 'EEEE do MMMM yyyy'), formatDistance(date, parseISO('2026-03-01T12:00:00Z')), differenceInCalendarDays(parseISO('2026-03-01'), date)];
};
