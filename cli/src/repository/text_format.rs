//! Reads protobuf's text format without a schema.
//!
//! <https://protobuf.dev/reference/protobuf/textformat-spec/>, without extensions and `Any`.

use std::iter::Peekable;
use std::str::Chars;

/// Largest depth of messages inside messages.
const DEPTH_MAX: usize = 32;

/// A message: its fields in their order. A repeated field appears once per value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Message(pub(super) Vec<Field>);

/// A field of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) value: Value,
    /// Line of the value, from 1.
    pub(super) line: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    /// A number, a name of an enum, or a boolean, as it is written.
    Scalar(String),
    /// A string literal, without its quotes and escapes.
    Text(String),
    Message(Message),
}

/// Reads a message. Errors begin with the line.
pub(super) fn parse(text: &str) -> Result<Message, String> {
    let mut reader = Reader { rest: text.chars().peekable(), line: 1 };
    let parsed = reader.message(None, DEPTH_MAX);
    parsed.map_err(|why| format!("line {}: {why}", reader.line))
}

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
    line: usize,
}

impl Reader<'_> {
    /// Reads fields until `end`, the closing bracket, or until the end of the text.
    fn message(&mut self, end: Option<char>, depth: usize) -> Result<Message, String> {
        let depth = depth.checked_sub(1).ok_or("too many messages inside messages")?;
        let mut fields = Vec::new();
        loop {
            match self.peek() {
                None if end.is_none() => return Ok(Message(fields)),
                None => return Err("the file ends inside a message".into()),
                next if next == end => {
                    self.take();
                    return Ok(Message(fields));
                }
                Some(',' | ';') if !fields.is_empty() => {
                    self.take();
                }
                Some(_) => self.field(&mut fields, depth)?,
            }
        }
    }

    /// Reads a field, which may have a list of values.
    fn field(&mut self, fields: &mut Vec<Field>, depth: usize) -> Result<(), String> {
        let name = self.word();
        if !name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_') {
            return Err(format!("expected the name of a field, found {}", self.shown(&name)));
        }
        let has_colon = self.peek() == Some(':');
        if has_colon {
            self.take();
        }
        if self.peek() != Some('[') {
            let line = self.line;
            let value = self.value(&name, has_colon, depth)?;
            fields.push(Field { name, value, line });
            return Ok(());
        }
        self.take();
        if self.peek() == Some(']') {
            self.take();
            return Ok(());
        }
        loop {
            self.peek();
            let line = self.line;
            let value = self.value(&name, has_colon, depth)?;
            fields.push(Field { name: name.clone(), value, line });
            match self.peek() {
                Some(',') => self.take(),
                Some(']') => {
                    self.take();
                    return Ok(());
                }
                _ => return Err(format!("expected `,` or `]` in the list of {name}")),
            };
        }
    }

    fn value(&mut self, name: &str, has_colon: bool, depth: usize) -> Result<Value, String> {
        match self.peek() {
            Some('{') => {
                self.take();
                self.message(Some('}'), depth).map(Value::Message)
            }
            Some('<') => {
                self.take();
                self.message(Some('>'), depth).map(Value::Message)
            }
            _ if !has_colon => Err(format!("expected `:` or `{{` after {name}")),
            Some('"' | '\'') => {
                // Adjacent literals are one string.
                let mut text = String::new();
                while let Some(quote @ ('"' | '\'')) = self.peek() {
                    self.take();
                    self.literal(quote, &mut text)?;
                }
                Ok(Value::Text(text))
            }
            _ => {
                let word = self.word();
                if word.is_empty() {
                    return Err(format!("expected the value of {name}, found {}", self.shown("")));
                }
                Ok(Value::Scalar(word))
            }
        }
    }

    /// Reads the rest of a string literal that ends with `quote`.
    fn literal(&mut self, quote: char, text: &mut String) -> Result<(), String> {
        loop {
            match self.rest.next() {
                None | Some('\n') => return Err("the line ends inside a string".into()),
                Some(end) if end == quote => return Ok(()),
                Some('\\') => text.push(self.escape()?),
                Some(other) => text.push(other),
            }
        }
    }

    fn escape(&mut self) -> Result<char, String> {
        Ok(match self.rest.next() {
            Some('n') => '\n',
            Some('t') => '\t',
            Some('r') => '\r',
            Some(same @ ('\\' | '"' | '\'' | '?')) => same,
            other => {
                let escape: String = other.into_iter().collect();
                return Err(format!("unsupported escape `\\{escape}` in a string"));
            }
        })
    }

    /// Reads a name or number: `word`, `-3`, `1.5e+3`.
    fn word(&mut self) -> String {
        self.peek();
        let mut word = String::new();
        while let Some(&next) = self.rest.peek() {
            let is_sign = matches!(next, '+' | '-') && (word.is_empty() || word.ends_with(['e', 'E']));
            if !is_sign && !next.is_ascii_alphanumeric() && !matches!(next, '_' | '.') {
                break;
            }
            self.rest.next();
            word.push(next);
        }
        word
    }

    /// The next character after white space and comments.
    fn peek(&mut self) -> Option<char> {
        loop {
            match *self.rest.peek()? {
                '\n' => self.line += 1,
                '#' => {
                    while self.rest.peek().is_some_and(|next| *next != '\n') {
                        self.rest.next();
                    }
                    continue;
                }
                space if space.is_whitespace() || space == '\u{feff}' => {}
                other => return Some(other),
            }
            self.rest.next();
        }
    }

    fn take(&mut self) -> Option<char> {
        self.rest.next()
    }

    /// The unexpected text, for an error.
    fn shown(&mut self, word: &str) -> String {
        match (word, self.peek()) {
            ("", Some(next)) => format!("`{next}`"),
            ("", None) => "the end of the file".to_owned(),
            (word, _) => format!("`{word}`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(message: &Message) -> String {
        let fields = message.0.iter().map(|Field { name, value, .. }| match value {
            Value::Scalar(scalar) => format!("{name}={scalar}"),
            Value::Text(text) => format!("{name}={text:?}"),
            Value::Message(inner) => format!("{name}{{{}}}", shown(inner)),
        });
        fields.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn every_form_of_a_field_is_read() {
        let text = r#"
            # A comment
            name: "a" 'b\'c'   # another
            max_batch_size: 8, version_policy: { all { } };
            dims: [ -1, 3 ]
            input [ { name: "x" } , < name: "y" > ]
            input { name: "z" dims: [] }
            rate: 1.5e+3
            parameters: { key: "k", value: { string_value: "a\\b\n" } }
        "#;
        let expected = r#"name="ab'c" max_batch_size=8 version_policy{all{}} dims=-1 dims=3 input{name="x"} input{name="y"} input{name="z"} rate=1.5e+3 parameters{key="k" value{string_value="a\\b\n"}}"#;
        assert_eq!(parse(text).map(|message| shown(&message)).as_deref(), Ok(expected));
        assert_eq!(parse(" # nothing"), Ok(Message::default()));
    }

    #[test]
    fn fields_have_the_line_of_their_value() {
        let text = "a: \"x\"\n# comment\n\nb {\n c: 1\n}\nd: [ 1,\n 2 ]\n";
        let lines: Vec<_> = parse(text).unwrap().0.into_iter().map(|field| field.line).collect();
        assert_eq!(lines, [1, 4, 7, 8]);
    }

    #[test]
    fn errors_have_the_line() {
        let deep = "a{".repeat(40);
        for (text, expected) in [
            ("\n\nname 3", "line 3: expected `:` or `{` after name"),
            ("name: \"a\nb\"", "line 1: the line ends inside a string"),
            ("a {\nb: 1", "line 2: the file ends inside a message"),
            ("a: [1 2]", "line 1: expected `,` or `]` in the list of a"),
            ("a: }", "line 1: expected the value of a, found `}`"),
            ("}", "line 1: expected the name of a field, found `}`"),
            ("3: 4", "line 1: expected the name of a field, found `3`"),
            ("a:", "line 1: expected the value of a, found the end of the file"),
            ("a: \"\\x41\"", "line 1: unsupported escape `\\x` in a string"),
            (&deep, "line 1: too many messages inside messages"),
        ] {
            assert_eq!(parse(text), Err(expected.to_owned()), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[a-z:{}<>\\[\\],;\"'\\\\#\n -]{0,60}") {
            let _ = parse(&text);
        }
    }
}
