//! Tokeniser of the model: sentences to word-piece IDs, padded to one length.

use std::sync::LazyLock;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::{
    AddedToken, AddedVocabulary, Model as _, OffsetReferential, OffsetType, PreTokenizer as _,
    TruncationDirection,
};

/// Largest number of tokens per sentence that the model was trained on, including the two markers;
/// the rest is truncated.
pub const TOKENS_MAX: usize = 256;

/// Vocabulary with one piece per line; the ID of a piece is its line number, from 0.
const VOCABULARY: &str = include_str!("../vocab.txt");
/// Markers before and after every sentence.
const START: &str = "[CLS]";
const END: &str = "[SEP]";
/// Token for a word that cannot be composed of pieces.
const UNKNOWN: &str = "[UNK]";
const MARKS: [&str; 5] = ["[PAD]", UNKNOWN, START, END, "[MASK]"];

/// Built when a snapshot of the component is taken, or else by the first call of an instance, which
/// then takes tens of milliseconds longer.
static TOKENIZER: LazyLock<Result<Tokenizer, TokenError>> = LazyLock::new(Tokenizer::build);

/// Error of the tokeniser.
#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot tokenise: {0}")]
pub struct TokenError(String);

impl From<tokenizers::Error> for TokenError {
    fn from(error: tokenizers::Error) -> Self {
        Self(error.to_string())
    }
}

/// Tokenised sentences as two tensors of the shape [sentences, longest].
#[derive(Debug)]
pub struct Batch {
    /// Token IDs, row by row; 0 after the end of a sentence.
    pub ids: Vec<i64>,
    /// 1 for a token and 0 for padding.
    pub mask: Vec<i64>,
    /// Number of tokens of each sentence.
    pub lengths: Vec<usize>,
    /// Indices of sentences longer than [`TOKENS_MAX`].
    pub cut: Vec<usize>,
    /// Number of tokens of the longest sentence.
    pub longest: usize,
}

impl Batch {
    /// Tokenises one or more sentences.
    pub fn from_sentences<S: AsRef<str>>(sentences: &[S]) -> Result<Self, TokenError> {
        let tokenizer = tokenizer()?;
        let mut rows = Vec::with_capacity(sentences.len());
        let mut cut = Vec::new();
        for (index, sentence) in sentences.iter().enumerate() {
            let (row, whole) = tokenizer.row(sentence.as_ref())?;
            if !whole {
                cut.push(index);
            }
            rows.push(row);
        }
        let lengths: Vec<usize> = rows.iter().map(Vec::len).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let mut ids = Vec::with_capacity(longest * rows.len());
        let mut mask = Vec::with_capacity(longest * rows.len());
        for row in rows {
            let end = ids.len() + longest;
            mask.resize(ids.len() + row.len(), 1);
            mask.resize(end, 0);
            ids.extend(row);
            ids.resize(end, 0);
        }
        Ok(Self { ids, mask, lengths, cut, longest })
    }
}

/// Builds the tokenizer now, so that it is part of a snapshot.
pub fn prepare() -> Result<(), TokenError> {
    tokenizer().map(drop)
}

fn tokenizer() -> Result<&'static Tokenizer, TokenError> {
    TOKENIZER.as_ref().map_err(Clone::clone)
}

/// The model's tokenizer: lower-cases and removes accents, splits at spaces and punctuation, and
/// splits words into pieces.
///
/// Composed of the library's parts, because the library's pipeline links a thread pool, and a
/// function has no threads.
struct Tokenizer {
    pieces: WordPiece,
    words: BertPreTokenizer,
    normal: BertNormalizer,
    /// Recognises markers that a sentence spells out.
    marks: AddedVocabulary,
    start: i64,
    end: i64,
}

impl Tokenizer {
    fn build() -> Result<Self, TokenError> {
        let vocabulary = VOCABULARY.lines().zip(0..).map(|(piece, number)| (piece.to_owned(), number));
        let pieces = WordPiece::builder()
            .vocab(vocabulary.collect::<ahash::AHashMap<_, _>>())
            .unk_token(UNKNOWN.to_owned())
            .build()?;
        let normal = BertNormalizer::default();
        let mut marks = AddedVocabulary::new();
        marks.add_special_tokens(MARKS.map(|mark| AddedToken::from(mark, true)), &pieces, Some(&normal))?;
        let number = |mark: &str| {
            pieces
                .token_to_id(mark)
                .map(i64::from)
                .ok_or_else(|| TokenError(format!("the vocabulary has no {mark}")))
        };
        let start = number(START)?;
        let end = number(END)?;
        Ok(Self { pieces, words: BertPreTokenizer, normal, marks, start, end })
    }

    /// Token IDs of a sentence, including markers, and whether the sentence is complete.
    fn row(&self, sentence: &str) -> Result<(Vec<i64>, bool), TokenError> {
        let kept = TOKENS_MAX - 2;
        let mut text = self.marks.extract_and_normalize(Some(&self.normal), sentence);
        self.words.pre_tokenize(&mut text)?;
        // One token more than the limit, to detect truncation.
        let tokenize = |word: &tokenizers::NormalizedString| self.pieces.tokenize(word.get());
        text.tokenize_with_limit(tokenize, kept + 1, TruncationDirection::Right)?;
        let words = text.get_splits(OffsetReferential::Normalized, OffsetType::None);
        let mut row = vec![self.start];
        row.extend(
            words
                .iter()
                .filter_map(|(_, _, pieces)| pieces.as_ref())
                .flatten()
                .map(|piece| i64::from(piece.id)),
        );
        let whole = row.len() <= 1 + kept;
        row.truncate(1 + kept);
        row.push(self.end);
        Ok((row, whole))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another implementation tokenised the reference: see `model/reference.py`.
    #[test]
    fn token_ids_match_the_reference() {
        let reference: serde_json::Value =
            serde_json::from_str(include_str!("../model/reference.json")).unwrap();
        for entry in reference["sentences"].as_array().unwrap() {
            let ids: Vec<i64> = serde_json::from_value(entry["ids"].clone()).unwrap();
            let batch = Batch::from_sentences(&[entry["text"].as_str().unwrap()]).unwrap();
            assert_eq!(batch.ids, ids, "{}", entry["text"]);
            assert_eq!(batch.mask, vec![1; ids.len()]);
        }
    }

    #[test]
    fn sentences_are_padded_and_truncated() {
        let long = "word ".repeat(1000);
        let batch = Batch::from_sentences(&["hi", &long]).unwrap();
        assert_eq!(
            (batch.longest, batch.lengths.as_slice(), batch.cut.as_slice()),
            (256, &[3, 256][..], &[1][..])
        );
        assert_eq!(batch.ids[..5], [101, 7632, 102, 0, 0]);
        assert_eq!(batch.mask[..5], [1, 1, 1, 0, 0]);
        assert_eq!((batch.ids[256], batch.ids[511]), (101, 102));
        assert_eq!((batch.ids.len(), batch.mask.len()), (512, 512));
    }

    #[test]
    fn tokeniser_accepts_any_text() {
        for text in ["", " ", "\0\u{fffd}", "\u{202e}\u{1f600}", "[SEP][CLS]", &"x".repeat(5000), "a\u{301}"]
        {
            let batch = Batch::from_sentences(&[text]).unwrap();
            assert!(batch.longest >= 2 && batch.ids.len() == batch.longest, "{text:?}");
        }
    }
}
