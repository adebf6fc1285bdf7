import { Liquid } from 'liquidjs';
export default async () => {
  const engine = new Liquid();
  return [await engine.parseAndRender('{% for x in list reversed %}{{ x | times: 2 }}{% unless forloop.last %},{% endunless %}{% endfor %}', { list: [1, 2] }), await engine.parseAndRender('{{ "a b" | capitalize | split: " " | join: "-" }}')];
};
