import { marked } from 'marked';
export default () => [marked.parse('# A *b*\n\n- one\n- two\n\n| x | y |\n|---|---|\n| 1 | 2 |\n'), marked.lexer('`code`')[0].tokens[0].type];
