import { Parser, parseDocument } from 'htmlparser2';
export default () => {
  const events = [];
  const parser = new Parser({ onopentag: (name, attributes) => events.push([name, attributes]), ontext: (text) => events.push(text), onclosetag: (name) => events.push(`/${name}`) });
  parser.write('<p class=x>a &amp; b<br>c');
  parser.end();
  return [events, parseDocument('<a><b/></a>', { xmlMode: true }).children[0].children[0].name];
};
