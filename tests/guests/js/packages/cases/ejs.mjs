import ejs from 'ejs';
export default () => ejs.render('<% for (const x of list) { %><%= x %>;<%- x %>|<% } %>', { list: ['<a>', 2] });
