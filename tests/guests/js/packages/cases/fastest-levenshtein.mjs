import { closest, distance } from 'fastest-levenshtein';
export default () => [distance('kitten', 'sitting'), closest('fast', ['slow', 'faster', 'fasten']), distance('a'.repeat(50), 'b'.repeat(40))];
