//! Checks of CUDA C sources before compilation: a source must not name other files.
//!
//! A compiler opens the files that a source includes and quotes them in its errors, wherever on the
//! node they are. Therefore every construct that can name a file is rejected.

/// Maximum size of a source in bytes.
const SOURCE_BYTES_MAX: usize = 1 << 20;
/// Words that name or query files wherever a preprocessor can interpret them.
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
/// Start of a directive, including the digraph and the trigraph.
const MARKS: [&str; 3] = ["#", "%:", "??="];

/// Reason for rejecting a source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The source exceeds the maximum size.
    #[error("{name}: the source has {bytes} bytes; the limit is {SOURCE_BYTES_MAX} bytes")]
    TooLarge {
        /// Name of the source.
        name: String,
        /// Size in bytes.
        bytes: usize,
    },
    /// The source has a zero byte, which ends the text for compilers.
    #[error("{name}: the source contains a zero byte; a source must be text")]
    Zero {
        /// Name of the source.
        name: String,
    },
    /// The source may name a file.
    #[error(
        "{name}: line {line}: {what:?} is not allowed, also in comments: the compiler reads only this source and no other files; remove it"
    )]
    NamesFile {
        /// Name of the source.
        name: String,
        /// Line number.
        line: usize,
        /// Rejected word or directive.
        what: String,
    },
}

/// Checks that compiling this CUDA C source reads no other file.
///
/// Only the compiler knows where comments and strings begin and end. Therefore words that can name
/// a file are rejected in comments and strings as well.
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

/// Returns a directive of the line that is not on the list of allowed directives.
///
/// A directive can stand at the start of the line, or after any `*/`, which may end a comment.
fn unknown_directive(line: &str) -> Option<String> {
    let behind_comments = line.match_indices("*/").filter_map(|(at, end)| line.get(at + end.len()..));
    std::iter::once(line).chain(behind_comments).find_map(|text| {
        let text = text.trim_start();
        let rest = MARKS.iter().find_map(|mark| text.strip_prefix(mark))?.trim_start();
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let directive = rest.get(..end).unwrap_or_default();
        // A lone mark is a null directive, which has no effect.
        (!rest.is_empty() && !DIRECTIVES.contains(&directive)).then(|| format!("#{}", first_word(rest)))
    })
}

fn first_word(text: &str) -> String {
    text.split_whitespace().next().unwrap_or_default().chars().take(40).collect()
}

/// Splits a source into logical lines as a preprocessor does: a backslash continues a line. Returns
/// each line with the number of its first physical line.
fn lines(text: &str) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut start = 1;
    let mut goes_on = false;
    for (number, part) in (1..).zip(text.split(['\n', '\r'])) {
        if !goes_on {
            start = number;
        }
        // Some compilers accept blanks after the backslash. The trigraph `??/` stands for a
        // backslash.
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
    fn sources_with_macros_are_accepted() {
        let text = "#define TILE 16\n#if TILE > 8\n#pragma unroll\n#endif\n#\nextern \"C\" __global__ void k(float* x) { x[0] = 1; }\n";
        assert_eq!(check_source("k.cu", text), Ok(()));
    }

    #[test]
    fn sources_that_name_files_are_rejected() {
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
