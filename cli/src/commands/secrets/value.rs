//! Values of secrets: from a file, standard input, or a prompt that does not show them.

use crate::error::Problem;
use anyhow::{Context, Result};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::fs::File;
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::Path;
use weir_types::{SECRET_BYTES_MAX, SecretName};

/// A value, which is not shown.
pub(super) struct Value(Vec<u8>);

impl Value {
    /// Reads a file, as it is.
    pub(super) fn from_file(path: &Path) -> Result<Self> {
        let unreadable = || format!("cannot read {}", path.display());
        read(File::open(path).with_context(unreadable)?).with_context(unreadable)
    }

    /// Reads standard input without its last line ending, or asks at a terminal.
    pub(super) fn from_input(name: &SecretName) -> Result<Self> {
        let stdin = io::stdin();
        let Self(bytes) = if stdin.is_terminal() {
            ask(name)?
        } else {
            let Self(bytes) = read(stdin.lock()).context("cannot read standard input")?;
            Self(without_line_ending(bytes))
        };
        if bytes.is_empty() {
            let hint = format!("pipe the value to `weir secrets set {name}`, or give --from-file FILE");
            return Err(Problem::usage("the value is empty").hint(hint).into());
        }
        Ok(Self(bytes))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Reads up to one byte more than the longest value, so that the node refuses a longer one.
fn read(source: impl Read) -> io::Result<Value> {
    let mut bytes = Vec::new();
    source.take(SECRET_BYTES_MAX as u64 + 3).read_to_end(&mut bytes)?;
    Ok(Value(bytes))
}

fn ask(name: &SecretName) -> Result<Value> {
    let hidden = HiddenInput::begin().context("cannot hide the input of the terminal")?;
    write!(io::stderr(), "Value of {name} (hidden): ")?;
    let mut line = Vec::new();
    let read = io::stdin().lock().take(SECRET_BYTES_MAX as u64 + 3).read_until(b'\n', &mut line);
    drop(hidden);
    writeln!(io::stderr())?;
    read?;
    Ok(Value(without_line_ending(line)))
}

fn without_line_ending(mut text: Vec<u8>) -> Vec<u8> {
    if text.last() == Some(&b'\n') {
        text.pop();
        if text.last() == Some(&b'\r') {
            text.pop();
        }
    }
    text
}

/// Hides the input of the terminal until it is dropped.
struct HiddenInput(Termios);

impl HiddenInput {
    fn begin() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        tcsetattr(io::stdin(), OptionalActions::Flush, &hidden)?;
        Ok(Self(before))
    }
}

impl Drop for HiddenInput {
    fn drop(&mut self) {
        // The command ends soon, and shells restore the modes, too.
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_line_ending_is_left_out() {
        for (text, value) in
            [("a", "a"), ("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), ("a\nb\n", "a\nb"), ("\n", "")]
        {
            assert_eq!(without_line_ending(text.into()), value.as_bytes(), "{text:?}");
        }
    }

    #[test]
    fn file_is_read_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("value");
        std::fs::write(&path, "-----BEGIN-----\n").unwrap();
        assert_eq!(Value::from_file(&path).unwrap().bytes(), b"-----BEGIN-----\n");
        assert!(Value::from_file(&folder.path().join("missing")).is_err());
    }
}
