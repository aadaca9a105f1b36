//! What a compiler may be given: CUDA C that names no other file.
//!
//! Compilers open what a source includes and quote it in their errors, wherever on the node it is. So nothing is let
//! through that may name one.

/// The largest source.
const SOURCE_BYTES_MAX: usize = 1 << 20;
/// Words that name files, or ask about them, wherever a preprocessor may come to read them as such.
const WORDS: [&str; 8] = [
    "include",
    "include_next",
    "include_alias",
    "import",
    "embed",
    "__has_include",
    "__has_include_next",
    "__has_embed",
];
/// Directives that name no file.
const DIRECTIVES: [&str; 12] = [
    "define", "undef", "if", "ifdef", "ifndef", "elif", "elifdef", "elifndef", "else", "endif", "error",
    "pragma",
];
/// How a directive begins: also as a digraph, and as a trigraph.
const MARKS: [&str; 3] = ["#", "%:", "??="];

/// Why a source is not compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// It is too large.
    #[error("{name}: a source has at most {SOURCE_BYTES_MAX} bytes, this one has {bytes}")]
    TooLarge {
        /// The file.
        name: String,
        /// Its size.
        bytes: usize,
    },
    /// It has a zero, which ends a text for compilers.
    #[error("{name}: a source is text, and this one has a zero byte")]
    Zero {
        /// The file.
        name: String,
    },
    /// It may name a file.
    #[error(
        "{name}: line {line}: {what:?} is not allowed, not even in a comment: kernels are compiled by themselves, and see no files"
    )]
    NamesFile {
        /// The file.
        name: String,
        /// The line.
        line: usize,
        /// What may name one.
        what: String,
    },
}

/// Check that a source of CUDA C, in a file of this name, reads no other file when it is compiled.
///
/// Where comments and texts begin and end is for the compiler to know: what looks like a name of a file in one of them is refused, too.
pub fn check_source(name: &str, text: &str) -> Result<(), SourceError> {
    if text.len() > SOURCE_BYTES_MAX {
        return Err(SourceError::TooLarge { name: name.to_owned(), bytes: text.len() });
    }
    if text.contains('\0') {
        return Err(SourceError::Zero { name: name.to_owned() });
    }
    for (line, text) in lines(text) {
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let named = words.into_iter().find(|word| WORDS.contains(word)).map(str::to_owned);
        if let Some(what) = named.or_else(|| unknown_directive(&text)) {
            return Err(SourceError::NamesFile { name: name.to_owned(), line, what });
        }
    }
    Ok(())
}

/// A directive of a line that is not among those that are known, if there is one: at its start, or behind anything that may end a comment.
fn unknown_directive(line: &str) -> Option<String> {
    let behind_comments = line.match_indices("*/").filter_map(|(at, end)| line.get(at + end.len()..));
    std::iter::once(line).chain(behind_comments).find_map(|text| {
        let text = text.trim_start();
        let rest = MARKS.iter().find_map(|mark| text.strip_prefix(mark))?.trim_start();
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let directive = rest.get(..end).unwrap_or_default();
        // A mark by itself does nothing.
        (!rest.is_empty() && !DIRECTIVES.contains(&directive)).then(|| format!("#{}", first_word(rest)))
    })
}

fn first_word(text: &str) -> String {
    text.split_whitespace().next().unwrap_or_default().chars().take(40).collect()
}

/// The lines of a source as a preprocessor sees them, with the numbers that they begin at: those that end in a backslash go on in the next.
fn lines(text: &str) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    let (mut line, mut start, mut goes_on) = (String::new(), 1, false);
    for (number, part) in (1..).zip(text.split(['\n', '\r'])) {
        if !goes_on {
            start = number;
        }
        // Blanks behind the backslash are let pass by some; a trigraph stands for it, too.
        let end = part.trim_end();
        let continued = end.strip_suffix('\\').or_else(|| end.strip_suffix("??/"));
        goes_on = continued.is_some();
        line.push_str(continued.unwrap_or(part));
        if !goes_on {
            lines.push((start, std::mem::take(&mut line)));
        }
    }
    lines.push((start, line));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_with_macros_pass() {
        let text = "#define TILE 16\n#if TILE > 8\n#pragma unroll\n#endif\n#\nextern \"C\" __global__ void k(float* x) { x[0] = 1; }\n";
        assert_eq!(check_source("k.cu", text), Ok(()));
    }

    #[test]
    fn whatever_names_a_file_is_refused_however_it_is_written() {
        for text in [
            "#include \"/etc/passwd\"",
            "  # include </etc/passwd>",
            "\t#\tinclude_next <x>",
            "#import <x>",
            "#embed \"/etc/passwd\"",
            "#line 1 \"/etc/passwd\"",
            "#inc\\\nlude \"/etc/passwd\"",
            "#inc\\  \nlude \"/etc/passwd\"",
            "#inc??/\nlude \"/etc/passwd\"",
            "%:include \"/etc/passwd\"",
            "??=include \"/etc/passwd\"",
            "/* a */ #include \"/etc/passwd\"",
            "/*\n*/#include \"/etc/passwd\"",
            "/* a */ /* b */ #include \"/etc/passwd\"",
            "#/* a */include \"/etc/passwd\"",
            "#include/**/\"/etc/passwd\"",
            "int x;\r#include \"/etc/passwd\"",
            "#pragma include_alias(\"a\", \"b\")",
            "#1 \"/etc/passwd\"",
            "#/* if */include \"/etc/passwd\"",
            "#/*\n*/include \"/etc/passwd\"",
            "#/* if */line 1 \"/etc/passwd\"",
            "x */ #line 1 \"*/\"",
            "#if __has_include(\"/etc/passwd\")",
        ] {
            let found = check_source("k.cu", text);
            assert!(matches!(found, Err(SourceError::NamesFile { .. })), "{text:?}: {found:?}");
        }
        assert!(matches!(check_source("k.cu", "a\0b"), Err(SourceError::Zero { .. })));
        let huge = " ".repeat(SOURCE_BYTES_MAX + 1);
        assert!(matches!(check_source("k.cu", &huge), Err(SourceError::TooLarge { .. })));
        let Err(error) = check_source("k.cu", "int x;\n#include <x>\n") else { panic!("it was let pass") };
        assert!(error.to_string().contains("k.cu: line 2: \"include\""), "{error}");
    }
}
