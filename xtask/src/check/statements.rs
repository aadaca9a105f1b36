//! Constructors called `of`, and several bindings in one `let`.

use super::source::RustFile;

pub(super) fn check(sources: &[RustFile]) -> Vec<String> {
    sources.iter().flat_map(findings).collect()
}

fn findings(source: &RustFile) -> Vec<String> {
    let lines = source.code.lines().zip(1..);
    let finding = |(line, number): (&str, usize)| {
        let why = if has_function_of(line) {
            "is called `of`: name it after its input (`from_*`, `for_*`) or `new`"
        } else if binds_a_tuple(line) {
            "binds several values: use a `let` for each"
        } else {
            return None;
        };
        Some(format!("{}:{number}: {} {why}", source.path, line.trim()))
    };
    lines.filter_map(finding).collect()
}

fn has_function_of(line: &str) -> bool {
    line.split_once("fn of").is_some_and(|(_, rest)| rest.starts_with(['(', '<']))
}

/// Whether `line` is of the form `let (a, b) = (x, y);`.
fn binds_a_tuple(line: &str) -> bool {
    let line = line.trim();
    let pattern = line.strip_prefix("let (").and_then(|rest| rest.split_once(") = ("));
    pattern.is_some_and(|(pattern, values)| !pattern.contains('(') && values.ends_with(");"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_called_of_are_found() {
        assert!(has_function_of("    pub fn of(path: &Path) -> Self {"));
        assert!(has_function_of("fn of<T>(value: T) -> Self {"));
        assert!(!has_function_of("fn offset(&self) -> u64 {"));
    }

    #[test]
    fn bindings_of_several_values_are_found() {
        assert!(binds_a_tuple("    let (first, mut second) = (1, f(2));"));
        assert!(!binds_a_tuple("let (first, second) = pair();"));
        assert!(!binds_a_tuple("let ((a, b), c) = ((1, 2), 3);"));
    }
}
