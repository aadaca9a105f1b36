//! Parser of PTX directives.

use super::tokens::{Token, tokens};
use super::{PARAMETERS_MAX, Parameter, PtxError, PtxKernel};

/// Parser that consumes directives in order.
pub(super) struct Reader<'a> {
    tokens: std::iter::Peekable<std::vec::IntoIter<Token<'a>>>,
    /// Line of the last token.
    line: usize,
    /// Number of open braces.
    depth: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { tokens: tokens(text).into_iter().peekable(), line: 1, depth: 0 }
    }

    /// Returns whether no brace is open.
    pub(super) fn is_outside(&self) -> bool {
        self.depth == 0
    }

    pub(super) fn next(&mut self) -> Option<Token<'a>> {
        let token = self.tokens.next()?;
        self.line = token.line;
        match token.text {
            "{" => self.depth += 1,
            "}" => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        Some(token)
    }

    /// Returns the text of the next token; empty at the end.
    pub(super) fn word(&mut self) -> &'a str {
        self.next().map_or("", |token| token.text)
    }

    fn peek(&mut self) -> &'a str {
        self.tokens.peek().map_or("", |token| token.text)
    }

    fn take(&mut self, wanted: &str) -> bool {
        let is_there = self.peek() == wanted;
        if is_there {
            self.next();
        }
        is_there
    }

    fn malformed(&self, why: impl Into<String>) -> PtxError {
        PtxError::Malformed { line: self.line, why: why.into() }
    }

    fn number(&mut self) -> Result<u64, PtxError> {
        let word = self.word();
        let digits = word.trim_end_matches('U');
        let number = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => digits.parse(),
        };
        number.map_err(|_| self.malformed(format!("{word:?} is no number")))
    }

    /// Parses `.version 7.0` and `.target sm_75`, which must come first.
    pub(super) fn head(&mut self) -> Result<((u32, u32), u32), PtxError> {
        let head = |why: &str| PtxError::Head(why.to_owned());
        if self.word() != ".version" {
            return Err(head("there is no .version at its start"));
        }
        let version = self.word();
        let parts = version
            .split_once('.')
            .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        let version = parts.ok_or_else(|| head(&format!(".version {version:?} is none")))?;
        if self.word() != ".target" {
            return Err(head("there is no .target after the .version"));
        }
        let target = self.word();
        // Includes architecture-specific and family-specific targets, such as `sm_90a`.
        let digits = target.strip_prefix("sm_").map(|digits| digits.trim_end_matches(['a', 'f']));
        let capability = digits.and_then(|digits| digits.parse().ok());
        Ok((
            version,
            capability
                .ok_or_else(|| head(&format!(".target {target:?} is not an architecture such as sm_75")))?,
        ))
    }

    /// Parses the declaration after `.extern`. Only dynamic shared memory, whose size a launch
    /// sets, is accepted.
    pub(super) fn external(&mut self) -> Result<(), PtxError> {
        let mut declared = Vec::new();
        while !matches!(self.peek(), ";" | "{" | "") {
            let word = self.word();
            if word == ".shared" {
                return Ok(());
            }
            declared.push(word);
        }
        let name = declared
            .iter()
            .rev()
            .find(|word| word.chars().next().is_some_and(|c| c.is_alphabetic() || c == '_'));
        // The name of a function precedes its parameters.
        let function = declared.iter().position(|word| *word == ".func").and_then(|at| {
            let mut behind = declared.iter().skip(at + 1);
            if declared.get(at + 1) == Some(&"(") {
                behind.by_ref().find(|word| **word == ")");
            }
            behind.next()
        });
        let what = function.or(name).map_or("something", |name| *name);
        Err(PtxError::Extern { what: what.to_owned() })
    }

    /// Parses the declaration after `.global` or `.const` up to the semicolon, and returns its size
    /// in bytes.
    pub(super) fn variable(&mut self) -> Result<u64, PtxError> {
        let mut element_bytes = 8_u64;
        let mut lanes = 1_u64;
        let mut bytes = 0_u64;
        let mut elements = 1_u64;
        let mut is_named = false;
        loop {
            let word = self.word();
            match word {
                "" => return Err(self.malformed("a variable does not end")),
                ".align" => _ = self.number()?,
                ".attribute" => self.skip_parentheses(),
                ".v2" => lanes = 2,
                ".v4" => lanes = 4,
                "[" => {
                    // An array without a length has at most as many elements as there are tokens in
                    // its initializer.
                    let count = if self.peek() == "]" { self.values_ahead() } else { self.number()? };
                    elements = elements.saturating_mul(count);
                    self.take("]");
                }
                "=" => self.skip_value(),
                "," | ";" => {
                    if !is_named {
                        return Err(self.malformed("a variable has no name"));
                    }
                    let declared = element_bytes.saturating_mul(lanes).saturating_mul(elements);
                    bytes = bytes.saturating_add(declared);
                    elements = 1;
                    is_named = false;
                    if word == ";" {
                        return Ok(bytes);
                    }
                }
                directive if directive.starts_with('.') => {
                    let digits: String = directive.chars().filter(char::is_ascii_digit).collect();
                    element_bytes = digits.parse::<u64>().map_or(8, |bits| bits.div_ceil(8));
                }
                _ => is_named = true,
            }
        }
    }

    /// Counts the tokens up to the semicolon without consuming them.
    fn values_ahead(&self) -> u64 {
        self.tokens.clone().take_while(|token| token.text != ";").count() as u64
    }

    fn skip_parentheses(&mut self) {
        if self.take("(") {
            while !matches!(self.word(), ")" | "") {}
        }
    }

    /// Skips the initializer after `=`, up to the comma or semicolon after it.
    fn skip_value(&mut self) {
        let depth = self.depth;
        while self.depth > depth || !matches!(self.peek(), "," | ";" | "") {
            if self.next().is_none() {
                return;
            }
        }
    }

    /// Parses the name, parameters and performance directives after `.entry`, up to the body.
    pub(super) fn entry(&mut self) -> Result<PtxKernel, PtxError> {
        let name = self.word().to_owned();
        if !name.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || matches!(c, '_' | '$')) {
            return Err(self.malformed(format!("{name:?} is no name of a kernel")));
        }
        let mut parameters = Vec::new();
        if self.take("(") {
            while !self.take(")") {
                parameters.push(self.parameter()?);
                self.take(",");
                if parameters.len() > PARAMETERS_MAX {
                    return Err(
                        self.malformed(format!("kernel {name} has more than {PARAMETERS_MAX} parameters"))
                    );
                }
            }
        }
        let mut threads_max: Option<u64> = None;
        loop {
            match self.peek() {
                "{" => return Ok(PtxKernel { name, parameters, threads_max }),
                ".maxntid" | ".reqntid" => {
                    self.next();
                    let mut threads = self.number()?;
                    while self.take(",") {
                        threads = threads.saturating_mul(self.number()?);
                    }
                    // The smallest of several limits counts.
                    threads_max = Some(threads_max.map_or(threads, |before| before.min(threads)));
                }
                ";" | "" | "}" => return Err(self.malformed(format!("kernel {name} has no body"))),
                _ => _ = self.next(),
            }
        }
    }

    /// Parses `.param .u64 .ptr .global .align 4 name` or `.param .align 8 .b8 name[24]`.
    fn parameter(&mut self) -> Result<Parameter, PtxError> {
        if self.word() != ".param" {
            return Err(self.malformed("a parameter begins with .param"));
        }
        let mut kind = Parameter::Other;
        loop {
            match self.peek() {
                "," | ")" => return Ok(kind),
                "" | "{" | "}" | ";" => return Err(self.malformed("the parameters of a kernel do not end")),
                "[" => kind = Parameter::Other,
                ".u32" | ".s32" | ".b32" => kind = Parameter::Integer32,
                ".u64" | ".s64" | ".b64" => kind = Parameter::Integer64,
                ".f32" => kind = Parameter::Float32,
                ".f64" => kind = Parameter::Float64,
                _ => {}
            }
            self.next();
        }
    }
}
