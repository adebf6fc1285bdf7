import TurndownService from 'turndown';
export default () => new TurndownService({ headingStyle: 'atx' }).turndown('<h1>Hi</h1><p>a <b>b</b> <a href="/x">c</a></p><ul><li>one</li></ul>');
