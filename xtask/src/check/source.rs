//! Rust files in version control, separated into code and comments.

use crate::process;
use crate::repo::Repo;
use anyhow::{Context as _, Result};
use std::process::Command;

/// A Rust file.
pub(super) struct RustFile {
    /// From the top folder, with `/`.
    pub(super) path: String,
    /// The text with every comment, string and character literal replaced by spaces; lines are
    /// where they were.
    pub(super) code: String,
    /// Line numbers, from 1, and texts of the lines that are comments and nothing else.
    pub(super) comments: Vec<(usize, String)>,
}

impl RustFile {
    /// Every Rust file in version control, except generated files.
    pub(super) fn all(repo: &Repo) -> Result<Vec<Self>> {
        let mut git = Command::new("git");
        let files = process::answer(git.args(["ls-files", "*.rs"]).current_dir(repo.root()))?;
        let files = files.lines().filter(|path| !is_generated(path));
        // Deleted files stay listed until the deletion is committed.
        let files = files.filter(|path| repo.root().join(path).is_file());
        files
            .map(|path| {
                let text = std::fs::read_to_string(repo.root().join(path))
                    .with_context(|| format!("cannot read {path}"))?;
                Ok(Self::new(path, &text))
            })
            .collect()
    }

    pub(super) fn new(path: &str, text: &str) -> Self {
        let is_comment = |line: &&str| line.trim_start().starts_with("//");
        let lines = text.lines().enumerate().filter(|(_, line)| is_comment(line));
        let comments = lines.map(|(index, line)| (index + 1, line.trim().to_owned())).collect();
        Self { path: path.to_owned(), code: blank(text), comments }
    }

    /// Whether the file holds tests, benchmarks or examples.
    pub(super) fn is_test(&self) -> bool {
        let folders = ["tests", "benches", "examples"];
        let tops = ["bench/", "functions/", "fuzz/", "tests/"];
        self.path.split('/').any(|part| folders.contains(&part))
            || tops.iter().any(|top| self.path.starts_with(top))
            || self.path.ends_with("tests.rs")
    }
}

fn is_generated(path: &str) -> bool {
    path.contains("/bindings/") || path.ends_with("/generated.rs")
}

/// Replace comments and literals by spaces.
fn blank(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = literal_end(&chars, at);
        if end == at {
            code.push(chars[at]);
            at += 1;
        } else {
            code.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    code
}

/// The end of the comment or literal that starts at `at`; `at` where none does.
fn literal_end(chars: &[char], at: usize) -> usize {
    let rest = &chars[at..];
    let is_in_name = at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_');
    match rest {
        ['/', '/', ..] => at + rest.iter().position(|c| *c == '\n').unwrap_or(rest.len()),
        ['/', '*', ..] => at + 2 + find(&rest[2..], &['*', '/']),
        ['b', '"', ..] if !is_in_name => string_end(chars, at + 2),
        ['"', ..] => string_end(chars, at + 1),
        ['r', '#' | '"', ..] if !is_in_name => raw_end(chars, at, at + 1),
        ['b', 'r', '#' | '"', ..] if !is_in_name => raw_end(chars, at, at + 2),
        ['\'', '\\', _, ..] => at + 3 + find(&rest[3.min(rest.len())..], &['\'']),
        ['\'', _, '\'', ..] => at + 3,
        _ => at,
    }
}

/// The end of the string whose first character is at `at`.
fn string_end(chars: &[char], mut at: usize) -> usize {
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}

/// The end of the raw string from `start` whose `#` or quote is at `at`; `start` for a raw name.
fn raw_end(chars: &[char], start: usize, at: usize) -> usize {
    let hashes = chars[at..].iter().take_while(|c| **c == '#').count();
    if chars.get(at + hashes) != Some(&'"') {
        return start;
    }
    let end: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
    let inside = at + hashes + 1;
    inside + find(&chars[inside..], &end)
}

/// Where `what` ends first in `chars`; the length where it does not occur.
fn find(chars: &[char], what: &[char]) -> usize {
    let start = chars.windows(what.len()).position(|window| window == what);
    start.map_or(chars.len(), |start| start + what.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_become_spaces() {
        let text = "let a = \"{ \\\" }\"; // {\nlet b = r#\"}\"\"#; /* } */ let c = ('{', '\\'', b\"{\");";
        let code = RustFile::new("a.rs", text).code;
        assert_eq!(code.len(), text.len());
        assert!(!code.contains(['{', '}', '"', '\'']), "{code}");
        assert!(code.contains("let b =") && code.contains("let c ="), "{code}");
    }

    #[test]
    fn lifetimes_and_raw_names_stay() {
        let text = "fn f<'a>(x: &'a str, r#type: u8) {}";
        assert_eq!(RustFile::new("a.rs", text).code, text);
    }

    #[test]
    fn comment_lines_are_numbered_from_one() {
        let source = RustFile::new("a.rs", "fn f() {}\n    /// One.\nlet x = 1; // not a line\n");
        assert_eq!(source.comments, [(2, "/// One.".to_owned())]);
    }
}
