//! Sentences as the model takes them: word pieces, numbered, padded to one length.

use std::sync::LazyLock;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::{
    AddedToken, AddedVocabulary, Model as _, OffsetReferential, OffsetType, PreTokenizer as _,
    TruncationDirection,
};

/// The most tokens of a sentence that the model was trained on, its two marks included; the rest is cut off.
pub const TOKENS_MAX: usize = 256;

/// One piece per line; a piece's number is its line's, from 0.
const VOCABULARY: &str = include_str!("../vocab.txt");
/// What stands before and after every sentence.
const START: &str = "[CLS]";
const END: &str = "[SEP]";
/// What stands for a word that cannot be put together from the pieces.
const UNKNOWN: &str = "[UNK]";
const MARKS: [&str; 5] = ["[PAD]", UNKNOWN, START, END, "[MASK]"];

/// Built when a snapshot of the component is taken, or else by the first call of an instance, which then takes tens of milliseconds longer.
static TOKENIZER: LazyLock<Result<Tokenizer, TokenError>> = LazyLock::new(Tokenizer::build);

/// Why a sentence could not be cut into tokens.
#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot tokenise: {0}")]
pub struct TokenError(String);

impl From<tokenizers::Error> for TokenError {
    fn from(error: tokenizers::Error) -> Self {
        Self(error.to_string())
    }
}

/// Sentences as two tensors of the same shape, [sentences, longest].
#[derive(Debug)]
pub struct Batch {
    /// The tokens' numbers, row by row; 0 after a sentence's end.
    pub ids: Vec<i64>,
    /// 1 for a token and 0 for padding.
    pub mask: Vec<i64>,
    /// Tokens of each sentence.
    pub lengths: Vec<usize>,
    /// Which sentences were longer than [`TOKENS_MAX`], by index.
    pub cut: Vec<usize>,
    /// Tokens of the longest.
    pub longest: usize,
}

impl Batch {
    /// Tokenise at least one sentence.
    pub fn of<S: AsRef<str>>(sentences: &[S]) -> Result<Self, TokenError> {
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

/// Build the tokenizer now, so that it is part of what is kept when a snapshot is taken.
pub fn prepare() -> Result<(), TokenError> {
    tokenizer().map(drop)
}

fn tokenizer() -> Result<&'static Tokenizer, TokenError> {
    TOKENIZER.as_ref().map_err(Clone::clone)
}

/// The model's tokenizer: lower case without accents, words at spaces and punctuation, words into pieces.
///
/// Put together from the library's parts, because its own pipeline links a thread pool, and a function has no threads.
struct Tokenizer {
    pieces: WordPiece,
    words: BertPreTokenizer,
    normal: BertNormalizer,
    /// Finds the marks where a sentence spells them out.
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
        let (start, end) = (number(START)?, number(END)?);
        Ok(Self { pieces, words: BertPreTokenizer, normal, marks, start, end })
    }

    /// A sentence's numbers, marks included, and whether all of it is there.
    fn row(&self, sentence: &str) -> Result<(Vec<i64>, bool), TokenError> {
        let kept = TOKENS_MAX - 2;
        let mut text = self.marks.extract_and_normalize(Some(&self.normal), sentence);
        self.words.pre_tokenize(&mut text)?;
        // One more than is kept, to know whether there was more.
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

    /// The reference was tokenised by another implementation: see `model/reference.py`.
    #[test]
    fn ids_are_the_reference_ids() {
        let reference: serde_json::Value =
            serde_json::from_str(include_str!("../model/reference.json")).unwrap();
        for entry in reference["sentences"].as_array().unwrap() {
            let ids: Vec<i64> = serde_json::from_value(entry["ids"].clone()).unwrap();
            let batch = Batch::of(&[entry["text"].as_str().unwrap()]).unwrap();
            assert_eq!(batch.ids, ids, "{}", entry["text"]);
            assert_eq!(batch.mask, vec![1; ids.len()]);
        }
    }

    #[test]
    fn shorter_sentences_are_padded_and_longer_ones_cut() {
        let long = "word ".repeat(1000);
        let batch = Batch::of(&["hi", &long]).unwrap();
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
    fn any_text_has_tokens() {
        for text in ["", " ", "\0\u{fffd}", "\u{202e}\u{1f600}", "[SEP][CLS]", &"x".repeat(5000), "a\u{301}"]
        {
            let batch = Batch::of(&[text]).unwrap();
            assert!(batch.longest >= 2 && batch.ids.len() == batch.longest, "{text:?}");
        }
    }
}
