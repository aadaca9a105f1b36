//! Reports: on the terminal, in a page between markers, and as JSON.

use anyhow::{Context as _, Result, bail};
use comfy_table::{CellAlignment, ColumnConstraint, Width, presets};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;

/// Metadata of all measurements.
#[derive(Debug, Serialize)]
pub(crate) struct Heading {
    pub(crate) machine: String,
    pub(crate) command: String,
    pub(crate) commit: String,
}

/// Results of one suite.
#[derive(Debug, Serialize)]
pub(crate) struct Section {
    /// Name of its markers in the page.
    pub(crate) key: &'static str,
    /// Description of the measurement and its disturbances, one paragraph each.
    pub(crate) notes: Vec<String>,
    pub(crate) tables: Vec<TextTable>,
    /// All samples.
    pub(crate) samples: serde_json::Value,
}

/// Text table. The first column is left-aligned, the other columns right-aligned.
#[derive(Debug, Serialize)]
pub(crate) struct TextTable {
    title: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Heading {
    pub(crate) fn print(&self) {
        println!("{}\ncommit {}", self.machine, self.commit);
    }
}

impl Section {
    pub(crate) fn print(&self) {
        for note in &self.notes {
            println!("\n{note}");
        }
        for table in &self.tables {
            println!("\n{}\n{}", table.title, table.text());
        }
    }

    /// Replaces the text between this section's markers in the page at `path`.
    pub(crate) fn write(&self, heading: &Heading, path: &Path) -> Result<()> {
        let page =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let page = replace(&page, self.key, &self.markdown(heading))
            .with_context(|| format!("{} has no section {}", path.display(), self.key))?;
        std::fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))
    }

    fn markdown(&self, heading: &Heading) -> String {
        let Heading { machine, command, commit } = heading;
        let date = jiff::Timestamp::now().strftime("%Y-%m-%d");
        let mut text = format!("Measured {date} with `{command}` at commit {commit}, on a {machine}.\n");
        for note in &self.notes {
            let _ = write!(text, "\n{note}\n");
        }
        for table in &self.tables {
            let _ = write!(text, "\n**{}**\n\n{}", table.title, table.markdown());
        }
        text
    }
}

impl TextTable {
    pub(crate) fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|&column| column.to_owned()).collect();
        Self { title: title.into(), columns, rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    fn text(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_header(&self.columns).add_rows(&self.rows);
        for (index, column) in table.column_iter_mut().enumerate() {
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(6)));
            column.set_cell_alignment(if index == 0 { CellAlignment::Left } else { CellAlignment::Right });
        }
        table.to_string()
    }

    fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rule =
            std::iter::once("|---|").chain(self.columns.iter().skip(1).map(|_| "---:|")).collect::<String>();
        line(&self.columns) + &rule + "\n" + &self.rows.iter().map(|row| line(row)).collect::<String>()
    }
}

/// Writes all measurements so far to `path`.
pub(crate) fn write_json(path: &Path, heading: &Heading, sections: &[Section]) -> Result<()> {
    let all = serde_json::json!({ "heading": heading, "sections": sections });
    std::fs::write(path, serde_json::to_string_pretty(&all)? + "\n")
        .with_context(|| format!("cannot write {}", path.display()))
}

fn replace(page: &str, key: &str, content: &str) -> Result<String> {
    let begin = format!("<!-- bench:{key} -->\n");
    let end = format!("<!-- /bench:{key} -->");
    let Some((before, rest)) = page.split_once(&begin) else {
        bail!("there is no line `{}`", begin.trim_end())
    };
    let Some((_, after)) = rest.split_once(&end) else { bail!("there is no `{end}` after it") };
    Ok(format!("{before}{begin}{content}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replace_changes_only_text_between_the_markers() {
        let page = "a\n<!-- bench:x -->\nold\n<!-- /bench:x -->\n<!-- bench:y -->\n<!-- /bench:y -->\nb\n";
        let once = replace(page, "x", "new\n").unwrap();
        assert_eq!(once, page.replace("old", "new"));
        assert_eq!(replace(&once, "x", "new\n").unwrap(), once);
        assert!(replace(page, "z", "").is_err());
    }

    #[test]
    fn table_renders_as_markdown() {
        let mut table = TextTable::new("t", &["a", "b"]);
        table.row(["x".to_owned(), "1".to_owned()]);
        assert_eq!(table.markdown(), "| a | b |\n|---|---:|\n| x | 1 |\n");
    }
}
