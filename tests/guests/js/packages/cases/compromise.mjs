import nlp from 'compromise';
export default () => {
  const doc = nlp('She sold seventeen shells. He walks home.');
  doc.verbs().toPastTense();
  return [doc.text(), doc.nouns().out('array'), nlp('two hundred and six').numbers().get(), nlp('i did not').contractions().out('array')];
};
