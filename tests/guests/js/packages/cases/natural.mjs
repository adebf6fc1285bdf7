import natural from 'natural';
export default () => [natural.PorterStemmer.stem('running'), new natural.WordTokenizer().tokenize("It's a dog's life."), natural.JaroWinklerDistance('dixon', 'dicksonx').toFixed(6), new natural.SoundEx().process('phonetics'), natural.NGrams.bigrams('a b c')];
