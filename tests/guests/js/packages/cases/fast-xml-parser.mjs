import { XMLBuilder, XMLParser, XMLValidator } from 'fast-xml-parser';
export default () => {
  const parsed = new XMLParser({ ignoreAttributes: false }).parse('<a x="1"><b>2</b><b>t&amp;u</b></a>');
  return [parsed, new XMLBuilder({ ignoreAttributes: false }).build(parsed), XMLValidator.validate('<a><b></a>')];
};
