import Handlebars from 'handlebars';
export default () => {
  Handlebars.registerHelper('loud', (text) => text.toUpperCase());
  return Handlebars.compile('{{#each people}}{{loud name}}{{#unless @last}}, {{/unless}}{{/each}} {{{raw}}} {{escaped}}')({ people: [{ name: 'a' }, { name: 'b' }], raw: '<b>', escaped: '<b>' });
};
