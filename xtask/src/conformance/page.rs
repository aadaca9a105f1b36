//! The tables of `docs/conformance.md`.

use super::expectations::Expectations;
use anyhow::{Context as _, Result, bail};
use std::fmt::Write as _;
use std::path::Path;

/// The markers of the generated part.
const BEGIN: &str = "<!-- written by `cargo xtask conformance` -->\n";
const END: &str = "<!-- end -->\n";

/// The results of one suite.
pub(super) struct Row {
    /// The suite and its version.
    pub(super) suite: String,
    /// The part of Weir that it ran on.
    pub(super) part: &'static str,
    /// The number of cases that passed.
    pub(super) passed: usize,
    /// The number of all cases.
    pub(super) cases: usize,
    /// The known failures.
    pub(super) known: Expectations,
}

/// Replaces the generated part of the page.
pub(super) fn write(page: &Path, rows: &[Row]) -> Result<()> {
    let text = std::fs::read_to_string(page).with_context(|| format!("cannot read {}", page.display()))?;
    let parts = text.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let Some((before, after)) = parts else { bail!("{} has no generated part", page.display()) };
    let text = format!("{before}{BEGIN}{}{END}{after}", tables(rows));
    std::fs::write(page, text).with_context(|| format!("cannot write {}", page.display()))
}

fn tables(rows: &[Row]) -> String {
    let mut text = "\n| suite | part | passed | cases |\n|---|---|---|---|\n".to_owned();
    for Row { suite, part, passed, cases, .. } in rows {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {suite} | {part} | {passed} | {cases} |");
    }
    for Row { suite, part, known, .. } in rows {
        let _ = write!(text, "\n## {suite}, {part}\n\n| cases | outcome | reason |\n|---|---|---|\n");
        for (failure, cases) in known.failures() {
            let reason = failure.reason.replace('|', "\\|");
            let _ = writeln!(text, "| {cases} | {} | {reason} |", failure.outcome);
        }
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_part_is_replaced_and_the_rest_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("page.md");
        std::fs::write(&page, format!("before\n{BEGIN}old\n{END}after\n")).unwrap();
        let known = Expectations::parse("[values] Rounding.\na\n").unwrap();
        let row = Row { suite: "S 1".into(), part: "processor", passed: 9, cases: 10, known };
        write(&page, &[row]).unwrap();
        let text = std::fs::read_to_string(&page).unwrap();
        assert!(text.starts_with("before\n") && text.ends_with("after\n") && !text.contains("old"), "{text}");
        assert!(text.contains("| S 1 | processor | 9 | 10 |"), "{text}");
        assert!(
            text.contains("## S 1, processor\n") && text.contains("| 1 | values | Rounding. |"),
            "{text}"
        );
        std::fs::write(&page, "nothing").unwrap();
        assert!(write(&page, &[]).is_err());
    }
}
