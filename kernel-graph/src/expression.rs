//! Size expressions: numbers, or arithmetic on dimensions.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;

/// Maximum length of an expression's text in bytes.
const TEXT_LEN_MAX: usize = 256;

/// Least and greatest value of an expression and its parts: those of the arguments of kernels.
const VALUE_MIN: i128 = i64::MIN as i128;
const VALUE_MAX: i128 = u64::MAX as i128;

/// Integer expression over the dimensions of the inputs: `+`, `-`, `*`, `/` (rounded down),
/// `ceil_div(a, b)`, `min(a, b)`, `max(a, b)` and parentheses. In JSON, the expression is a number,
/// or a string such as `"ceil_div(n, 16)"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expression {
    text: String,
    term: Term,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Term {
    Number(i128),
    Dimension(String),
    Of(Operator, Box<(Term, Term)>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    CeilDiv,
    Min,
    Max,
}

/// Error from parsing or evaluating an expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// The text is not a valid expression.
    #[error("{text:?} is no size: {why}")]
    Malformed {
        /// Text of the expression.
        text: String,
        /// Reason.
        why: String,
    },
    /// The expression names a dimension that no input has.
    #[error("{text:?} has the dimension {name:?}, which no input has")]
    UnknownDimension {
        /// Text of the expression.
        text: String,
        /// Name of the dimension.
        name: String,
    },
    /// A divisor is zero or negative.
    #[error("{0:?} divides by a number that is not above 0")]
    Division(String),
    /// An intermediate or final value fits neither an `i64` nor a `u64`.
    #[error("{0:?} has a value beyond 64 bits")]
    Overflow(String),
}

impl Expression {
    /// Returns the expression for a number.
    #[must_use]
    pub fn number(number: impl Into<i128>) -> Self {
        let number = number.into();
        Self { text: number.to_string(), term: Term::Number(number) }
    }

    /// Parses an expression.
    pub fn parse(text: &str) -> Result<Self, ExpressionError> {
        let malformed =
            |why: String| ExpressionError::Malformed { text: text.chars().take(TEXT_LEN_MAX).collect(), why };
        if text.len() > TEXT_LEN_MAX {
            return Err(malformed(format!("it has more than {TEXT_LEN_MAX} characters")));
        }
        let mut parser = Parser { rest: text };
        let term = parser.sum().map_err(malformed)?;
        match parser.peek() {
            None => Ok(Self { text: text.to_owned(), term }),
            Some(other) => Err(malformed(format!("{other:?} was not expected"))),
        }
    }

    /// Evaluates the expression for these sizes of the dimensions.
    pub fn value(&self, dimensions: &BTreeMap<String, u32>) -> Result<i128, ExpressionError> {
        self.evaluate(&self.term, dimensions)
    }

    /// Returns the names of the dimensions in the expression. A name can occur more than once.
    pub fn dimensions(&self) -> impl Iterator<Item = &str> {
        let mut left = vec![&self.term];
        std::iter::from_fn(move || {
            loop {
                match left.pop()? {
                    Term::Number(_) => {}
                    Term::Dimension(name) => return Some(name.as_str()),
                    Term::Of(_, both) => left.extend([&both.0, &both.1]),
                }
            }
        })
    }

    /// Returns the number if the expression is a plain number.
    #[must_use]
    pub fn as_number(&self) -> Option<i128> {
        match self.term {
            Term::Number(number) => Some(number),
            _ => None,
        }
    }

    /// Returns the name of the dimension if the expression is a plain dimension.
    #[must_use]
    pub fn as_dimension(&self) -> Option<&str> {
        match &self.term {
            Term::Dimension(name) => Some(name),
            _ => None,
        }
    }

    /// Evaluates the expression without dimensions, so that errors are reported before the inputs
    /// are known.
    ///
    /// Returns `None` if the value depends on a dimension.
    pub fn constant(&self) -> Result<Option<i128>, ExpressionError> {
        self.fold(&self.term)
    }

    fn fold(&self, term: &Term) -> Result<Option<i128>, ExpressionError> {
        let (operator, both) = match term {
            Term::Number(number) => return Ok(Some(*number)),
            Term::Dimension(_) => return Ok(None),
            Term::Of(operator, both) => (*operator, both),
        };
        match (self.fold(&both.0)?, self.fold(&both.1)?) {
            (Some(a), Some(b)) => self.apply(operator, a, b).map(Some),
            // Check the right operand for every left operand, such as a division by zero.
            (None, Some(b)) => self.apply(operator, 0, b).map(|_| None),
            (_, None) => Ok(None),
        }
    }

    fn evaluate(&self, term: &Term, dimensions: &BTreeMap<String, u32>) -> Result<i128, ExpressionError> {
        let (operator, both) = match term {
            Term::Number(number) => return Ok(*number),
            Term::Dimension(name) => {
                let size = dimensions.get(name).copied().map(i128::from);
                return size.ok_or_else(|| ExpressionError::UnknownDimension {
                    text: self.text.clone(),
                    name: name.clone(),
                });
            }
            Term::Of(operator, both) => (*operator, both),
        };
        let a = self.evaluate(&both.0, dimensions)?;
        let b = self.evaluate(&both.1, dimensions)?;
        self.apply(operator, a, b)
    }

    fn apply(&self, operator: Operator, a: i128, b: i128) -> Result<i128, ExpressionError> {
        if matches!(operator, Operator::Divide | Operator::CeilDiv) && b <= 0 {
            return Err(ExpressionError::Division(self.text.clone()));
        }
        let value = match operator {
            Operator::Add => a.checked_add(b),
            Operator::Subtract => a.checked_sub(b),
            Operator::Multiply => a.checked_mul(b),
            Operator::Divide => Some(a.div_euclid(b)),
            // Rounded up for negative dividends as well.
            Operator::CeilDiv => a.div_euclid(b).checked_add(i128::from(a.rem_euclid(b) > 0)),
            Operator::Min => Some(a.min(b)),
            Operator::Max => Some(a.max(b)),
        };
        let value = value.filter(|value| (VALUE_MIN..=VALUE_MAX).contains(value));
        value.ok_or_else(|| ExpressionError::Overflow(self.text.clone()))
    }
}

impl std::fmt::Display for Expression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Expression {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.term {
            Term::Number(number) => match (i64::try_from(number), u64::try_from(number)) {
                (Ok(number), _) => to.serialize_i64(number),
                (_, Ok(number)) => to.serialize_u64(number),
                _ => to.serialize_str(&self.text),
            },
            Term::Dimension(_) | Term::Of(..) => to.serialize_str(&self.text),
        }
    }
}

impl<'de> Deserialize<'de> for Expression {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a whole number, or a size such as \"ceil_div(n, 16)\"")]
        enum NumberOrText {
            Signed(i64),
            Unsigned(u64),
            Text(String),
        }
        match NumberOrText::deserialize(from)? {
            NumberOrText::Signed(number) => Ok(Self::number(number)),
            NumberOrText::Unsigned(number) => Ok(Self::number(number)),
            NumberOrText::Text(text) => Self::parse(&text).map_err(D::Error::custom),
        }
    }
}

/// Recursive-descent parser. The nesting of parentheses is bounded by the length of the text.
struct Parser<'a> {
    rest: &'a str,
}

impl Parser<'_> {
    fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start();
        self.rest.chars().next()
    }

    fn take(&mut self, wanted: char) -> bool {
        let is_there = self.peek() == Some(wanted);
        if is_there {
            self.rest = self.rest.get(wanted.len_utf8()..).unwrap_or_default();
        }
        is_there
    }

    fn expect(&mut self, wanted: char) -> Result<(), String> {
        if self.take(wanted) { Ok(()) } else { Err(format!("a {wanted:?} is missing")) }
    }

    fn sum(&mut self) -> Result<Term, String> {
        let mut term = self.product()?;
        loop {
            let operator = match self.peek() {
                Some('+') => Operator::Add,
                Some('-') => Operator::Subtract,
                _ => return Ok(term),
            };
            self.rest = self.rest.get(1..).unwrap_or_default();
            term = Term::Of(operator, Box::new((term, self.product()?)));
        }
    }

    fn product(&mut self) -> Result<Term, String> {
        let mut term = self.factor()?;
        loop {
            let operator = match self.peek() {
                Some('*') => Operator::Multiply,
                Some('/') => Operator::Divide,
                _ => return Ok(term),
            };
            self.rest = self.rest.get(1..).unwrap_or_default();
            term = Term::Of(operator, Box::new((term, self.factor()?)));
        }
    }

    fn factor(&mut self) -> Result<Term, String> {
        match self.peek() {
            None => Err("it ends too early".to_owned()),
            Some('(') => {
                self.expect('(')?;
                let term = self.sum()?;
                self.expect(')')?;
                Ok(term)
            }
            Some(c) if c.is_ascii_digit() => {
                let digits = self.word(|c| c.is_ascii_digit());
                digits
                    .parse::<u64>()
                    .map(|number| Term::Number(number.into()))
                    .map_err(|_| format!("{digits} is too large"))
            }
            Some(c) if is_name_start(c) => {
                let word = self.word(|c| is_name_start(c) || c.is_ascii_digit());
                let operator = match &*word {
                    "ceil_div" => Operator::CeilDiv,
                    "min" => Operator::Min,
                    "max" => Operator::Max,
                    _ => return Ok(Term::Dimension(word)),
                };
                self.expect('(')?;
                let first = self.sum()?;
                self.expect(',')?;
                let second = self.sum()?;
                self.expect(')')?;
                Ok(Term::Of(operator, Box::new((first, second))))
            }
            Some(other) => Err(format!("{other:?} was not expected")),
        }
    }

    fn word(&mut self, is_part: impl Fn(char) -> bool) -> String {
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at_checked(end).unwrap_or((self.rest, ""));
        self.rest = rest;
        word.to_owned()
    }
}

fn is_name_start(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value(text: &str) -> Result<i128, ExpressionError> {
        let dimensions = BTreeMap::from([("n".to_owned(), 100), ("m".to_owned(), 7)]);
        Expression::parse(text)?.value(&dimensions)
    }

    #[test]
    fn expressions_follow_arithmetic_rules() {
        for (text, expected) in [
            ("7", 7),
            (" n ", 100),
            ("n + m * 2", 114),
            ("(n + m) * 2", 214),
            ("n - m - 1", 92),
            ("n / m / 2", 7),
            ("ceil_div(n, 16)", 7),
            ("ceil_div(0 - n, 16)", -6),
            ("min(n, m) + max(n, m)", 107),
            ("ceil_div(n * m, (16))", 44),
        ] {
            assert_eq!(value(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn constant_expressions_evaluate_without_dimensions() {
        let constant = |text: &str| Expression::parse(text).unwrap().constant();
        assert_eq!(constant("2 * (3 + 4)"), Ok(Some(14)));
        assert_eq!(constant("n * 0"), Ok(None));
        for text in ["n / 0", "ceil_div(n, 3 - 3)", "max(n, 1 / 0)", "18446744073709551615 + 1 - n"] {
            assert!(constant(text).is_err(), "{text}");
        }
    }

    #[test]
    fn invalid_expressions_report_the_reason() {
        for (text, why) in [
            ("", "ends too early"),
            ("n +", "ends too early"),
            ("n n", "'n' was not expected"),
            ("(n", "')' is missing"),
            ("min(n)", "',' is missing"),
            ("99999999999999999999", "too large"),
            ("n % 2", "'%' was not expected"),
            ("é", "'é' was not expected"),
            ("k", "which no input has"),
            ("n / (m - 7)", "divides by"),
            ("18446744073709551615 + n", "beyond 64 bits"),
        ] {
            let error = value(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert!(Expression::parse(&"(".repeat(TEXT_LEN_MAX)).is_err());
        assert!(Expression::parse(&"1".repeat(TEXT_LEN_MAX + 1)).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in ".{0,40}") {
            let _ = value(&text);
        }

        #[test]
        fn json_round_trip_preserves_expression(a in 0_u32..1000, b in 1_u32..1000) {
            let text = format!("ceil_div(n * {a}, {b}) - m");
            let expression = Expression::parse(&text).unwrap();
            let json = serde_json::to_string(&expression).unwrap();
            prop_assert_eq!(serde_json::from_str::<Expression>(&json).unwrap(), expression);
        }
    }
}
