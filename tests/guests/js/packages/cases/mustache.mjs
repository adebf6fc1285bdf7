import Mustache from 'mustache';
export default () => Mustache.render('{{#list}}<{{.}}>{{/list}}{{^none}}empty{{/none}} {{> part}}', { list: [1, 2], none: [] }, { part: 'p={{list.length}}' });
