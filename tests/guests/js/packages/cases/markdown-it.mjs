import MarkdownIt from 'markdown-it';
export default () => new MarkdownIt({ html: false, linkify: true, typographer: true }).render('Hello "world" https://example.com\n\n```js\nlet x\n```\n');
