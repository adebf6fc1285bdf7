import Papa from 'papaparse';
export default () => [Papa.parse('a,b\n1,"x\ny"\n', { header: true, dynamicTyping: true }).data, Papa.unparse([{ a: 1, b: 'x,y' }])];
