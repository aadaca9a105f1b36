//! Long functions and wide structs, apart from tests.

use super::source::RustFile;
use std::collections::BTreeMap;

/// Lines of a function, from `fn` to its last brace.
const FUNCTION_LINES_MAX: usize = 80;
/// Named fields of a struct.
const STRUCT_FIELDS_MAX: usize = 20;

/// Permitted sizes of larger functions and structs, by `path:name`. A size may only be lowered.
const LARGER: [(&str, usize); 0] = [];

pub(super) fn check(sources: &[RustFile]) -> Vec<String> {
    let mut larger: BTreeMap<&str, usize> = LARGER.into_iter().collect();
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| !source.is_test()) {
        let functions = functions(&source.code).into_iter().map(|item| (item, FUNCTION_LINES_MAX, "lines"));
        let structs = structs(&source.code).into_iter().map(|item| (item, STRUCT_FIELDS_MAX, "fields"));
        for ((name, line, size), max, unit) in functions.chain(structs) {
            let key = format!("{}:{name}", source.path);
            if size <= max {
                continue;
            }
            match larger.remove(key.as_str()) {
                Some(allowed) if size <= allowed => {}
                allowed => findings.push(format!(
                    "{}:{line}: {name} has {size} {unit}, at most {} may be",
                    source.path,
                    allowed.unwrap_or(max)
                )),
            }
        }
    }
    let unused = larger.keys();
    findings.extend(
        unused.map(|key| format!("{key} is within the limits: remove it in xtask/src/check/sizes.rs")),
    );
    findings
}

/// Name, line and size of every function with a body.
fn functions(code: &str) -> Vec<(String, usize, usize)> {
    let functions = items(code, "fn").filter_map(|(name, at)| {
        // A type in the parameters may have a semicolon: `[u8; 4]`.
        let mut depth = 0_usize;
        let body = code[at..].char_indices().find(|(_, c)| {
            match c {
                '(' | '[' => depth += 1,
                ')' | ']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth == 0 && matches!(c, '{' | ';')
        });
        let open = at + body.filter(|(_, c)| *c == '{')?.0;
        let lines = code[at..close(code, open)].matches('\n').count() + 1;
        Some((name, line(code, at), lines))
    });
    functions.collect()
}

/// Name, line and number of fields of every struct with named fields.
fn structs(code: &str) -> Vec<(String, usize, usize)> {
    let structs = items(code, "struct").filter_map(|(name, at)| {
        let open = at + code[at..].find(['{', ';', '('])?;
        if !code[open..].starts_with('{') {
            return None;
        }
        let inside = &code[open + 1..close(code, open)];
        Some((name, line(code, at), fields(inside)))
    });
    structs.collect()
}

/// The names followed by one colon at the depth of a struct's own braces.
fn fields(inside: &str) -> usize {
    let mut depth = 0_i32;
    let mut count = 0;
    let bytes = inside.as_bytes();
    for (index, byte) in bytes.iter().enumerate() {
        match byte {
            b'(' | b'[' | b'{' | b'<' => depth += 1,
            b'>' if index > 0 && bytes[index - 1] == b'-' => {}
            b')' | b']' | b'}' | b'>' => depth -= 1,
            b':' if depth == 0 => {
                let is_path = bytes.get(index + 1) == Some(&b':') || (index > 0 && bytes[index - 1] == b':');
                count += usize::from(!is_path);
            }
            _ => {}
        }
    }
    count
}

/// The names after a keyword, and the positions of the keyword.
fn items<'a>(code: &'a str, keyword: &'a str) -> impl Iterator<Item = (String, usize)> + 'a {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(keyword).filter_map(move |(at, _)| {
        let rest = &code[at + keyword.len()..];
        let name: String = rest.trim_start().chars().take_while(|c| is_name(*c)).collect();
        let is_whole = !code[..at].ends_with(is_name) && rest.starts_with(char::is_whitespace);
        (is_whole && !name.is_empty()).then_some((name, at))
    })
}

/// Where the brace closes that is opened at `open`.
fn close(code: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (index, c) in code[open..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return open + index;
        }
    }
    code.len()
}

fn line(code: &str, at: usize) -> usize {
    code[..at].matches('\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_measured_from_name_to_brace() {
        let source = RustFile::new(
            "a.rs",
            "trait T { fn none(&self) -> [u8; 4]; }\nfn two(a: [u8; 2]) -> u8\nwhere\n{ if true { 1 } else { 2 }\n}\n",
        );
        assert_eq!(functions(&source.code), [("two".to_owned(), 2, 4)]);
    }

    #[test]
    fn fields_are_counted_without_those_of_types() {
        let code = "struct A<T: Clone> {\n    pub a: Vec<(u8, B::C)>,\n    r: fn(x: u8) -> u8,\n}\nstruct B(u8);\nstruct C;";
        assert_eq!(structs(code), [("A".to_owned(), 1, 2)]);
    }

    #[test]
    fn long_functions_are_reported_unless_in_tests() {
        let long = format!("fn long() {{{}}}", "\n".repeat(90));
        let findings = check(&[RustFile::new("a/src/b.rs", &long)]);
        assert!(findings[0].contains("a/src/b.rs:1: long has 91 lines, at most 80"), "{findings:?}");
        // What remains are the exceptions that these sources do not need.
        assert_eq!(check(&[RustFile::new("a/tests/b.rs", &long)]).len(), LARGER.len());
    }
}
