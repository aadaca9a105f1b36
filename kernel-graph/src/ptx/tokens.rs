//! PTX tokenizer, which drops comments and strings.

/// Word, or a single punctuation character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    /// Line number, starting at 1.
    pub(super) line: usize,
}

/// Splits a text into tokens. An unclosed comment or string extends to the end of the text.
pub(super) fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = text;
    let mut line = 1;
    while let Some(first) = rest.chars().next() {
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if first == '"' {
            rest.get(1..).and_then(|inner| inner.find(['"', '\n'])).map_or(rest.len(), |end| end + 2)
        } else if is_of_word(first) {
            let len = rest.find(|c| !is_of_word(c)).unwrap_or(rest.len());
            tokens.push(Token { text: rest.get(..len).unwrap_or_default(), line });
            len
        } else {
            let len = first.len_utf8();
            if !first.is_whitespace() {
                tokens.push(Token { text: rest.get(..len).unwrap_or_default(), line });
            }
            len
        };
        let (passed, left) = rest.split_at_checked(len).unwrap_or((rest, ""));
        line += passed.matches('\n').count();
        rest = left;
    }
    tokens
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '.' | '%')
}
