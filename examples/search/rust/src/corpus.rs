//! A small corpus of documents with a search function.

use rollout_sdk::{Error, Result};

/// One document.
#[derive(serde::Deserialize)]
pub struct Document {
    /// Id with which the document is read.
    pub id: String,
    /// Title.
    pub title: String,
    /// Text.
    pub text: String,
}

/// The corpus.
pub struct Corpus(Vec<Document>);

impl Corpus {
    /// Returns the built-in documents.
    pub fn built_in() -> Result<Self> {
        let read = |line: &str| rollout_sdk::serde_json::from_str(line).map_err(Error::from);
        include_str!("corpus.jsonl").lines().map(read).collect::<Result<_>>().map(Self)
    }

    /// Returns the document with this id.
    pub fn read(&self, id: &str) -> Option<&Document> {
        self.0.iter().find(|document| document.id == id)
    }

    /// Returns the documents that match the query best, best first. A rare word counts more than a common
    /// one, a word in a title counts twice, and each repetition of a word counts less.
    pub fn search(&self, query: &str, most: usize) -> Vec<&Document> {
        let mut wanted: Vec<String> = words(query).collect();
        wanted.sort();
        wanted.dedup();
        let held: Vec<Vec<String>> = self
            .0
            .iter()
            .map(|document| {
                words(&document.title).chain(words(&document.title)).chain(words(&document.text)).collect()
            })
            .collect();
        let mut scores = vec![0.0; self.0.len()];
        for word in &wanted {
            let counts: Vec<usize> =
                held.iter().map(|words| words.iter().filter(|held| *held == word).count()).collect();
            let having = counts.iter().filter(|count| **count > 0).count();
            let rarity = ((1 + self.0.len()) as f64 / (1 + having) as f64).ln();
            for (score, count) in scores.iter_mut().zip(counts) {
                *score += rarity * count as f64 / (count as f64 + 1.2);
            }
        }
        let mut ranked: Vec<(f64, &Document)> =
            scores.into_iter().zip(&self.0).filter(|(score, _)| *score > 0.0).collect();
        ranked.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        ranked.into_iter().take(most).map(|(_, document)| document).collect()
    }
}

fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_document_comes_first() {
        let corpus = Corpus::built_in().unwrap();
        let first = |query: &str| corpus.search(query, 3).first().map(|document| document.id.as_str());
        assert_eq!(first("Who was Ilse Brandt?"), Some("brandt"));
        assert_eq!(first("goats' cheese"), Some("goats"));
        assert_eq!(first("crossing by ferry, minutes"), Some("ferry"));
        assert_eq!(first("xylophone"), None);
        assert_eq!(corpus.search("Skarrow", 2).len(), 2);
    }
}
