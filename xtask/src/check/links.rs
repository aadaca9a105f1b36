//! Links between the Markdown pages in version control, and the table of contents of the book.

use crate::process;
use crate::repo::Repo;
use anyhow::{Context as _, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// Table of contents of the book in `docs/`.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Pages by path, from the top folder.
type Pages = BTreeMap<String, Page>;

struct Page {
    /// Line, from 1, and target of each link.
    links: Vec<(usize, String)>,
    anchors: BTreeSet<String>,
}

pub(super) fn check(repo: &Repo) -> Result<Vec<String>> {
    let mut git = Command::new("git");
    let files = process::answer(git.args(["ls-files", "*.md"]).current_dir(repo.root()))?;
    let mut pages = Pages::new();
    for path in files.lines().filter(|path| repo.root().join(path).is_file()) {
        let text =
            std::fs::read_to_string(repo.root().join(path)).with_context(|| format!("cannot read {path}"))?;
        pages.insert(path.to_owned(), Page::new(&text));
    }
    let is_file = |path: &str| repo.root().join(path).exists();
    let mut findings: Vec<String> =
        pages.iter().flat_map(|(path, page)| broken(path, page, &pages, &is_file)).collect();
    findings.extend(missing_in_summary(&pages));
    Ok(findings)
}

/// Links of a page whose file or heading does not exist.
fn broken(path: &str, page: &Page, pages: &Pages, is_file: &dyn Fn(&str) -> bool) -> Vec<String> {
    let broken = page.links.iter().filter_map(|(line, link)| {
        let (file, anchor) =
            link.split_once('#').map_or((link.as_str(), None), |(file, anchor)| (file, Some(anchor)));
        let target = if file.is_empty() { path.to_owned() } else { resolve(path, file) };
        if !is_file(&target) {
            return Some(format!("{path}:{line}: {link} does not exist"));
        }
        let is_heading = match (anchor, pages.get(&target)) {
            (Some(anchor), Some(target)) => target.anchors.contains(anchor),
            _ => true,
        };
        (!is_heading)
            .then(|| format!("{path}:{line}: {target} has no heading for #{}", anchor.unwrap_or_default()))
    });
    broken.collect()
}

/// Pages in `docs/` that the table of contents does not list.
fn missing_in_summary(pages: &Pages) -> Vec<String> {
    let Some(summary) = pages.get(SUMMARY) else { return vec![format!("{SUMMARY} does not exist")] };
    let listed: BTreeSet<String> = summary.links.iter().map(|(_, link)| resolve(SUMMARY, link)).collect();
    let pages = pages.keys().filter(|path| path.starts_with("docs/") && *path != SUMMARY);
    pages
        .filter(|path| !listed.contains(*path))
        .map(|path| format!("{SUMMARY} does not list {path}"))
        .collect()
}

/// `link` as a path from the top folder, when it stands in `page`.
fn resolve(page: &str, link: &str) -> String {
    let mut path = PathBuf::from(page);
    path.pop();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(part) => path.push(part),
            _ => {}
        }
    }
    path.to_string_lossy().into_owned()
}

impl Page {
    fn new(text: &str) -> Self {
        let mut links = Vec::new();
        let mut anchors = BTreeSet::new();
        let mut fence = None;
        for (index, line) in text.lines().enumerate() {
            let marker = ["```", "~~~"].into_iter().find(|marker| line.trim_start().starts_with(marker));
            match (fence, marker) {
                (None, Some(_)) => fence = marker,
                (Some(open), Some(found)) if open == found => fence = None,
                (Some(_), _) => {}
                (None, None) => {
                    let line = without_code(line);
                    links.extend(targets(&line).into_iter().map(|target| (index + 1, target)));
                }
            }
            if let (None, Some(heading)) = (fence, heading(line)) {
                let slug = slug(heading);
                let again = (1..).map(|count| format!("{slug}-{count}"));
                let free = std::iter::once(slug.clone()).chain(again).find(|slug| !anchors.contains(slug));
                anchors.extend(free);
            }
        }
        Self { links, anchors }
    }
}

fn heading(line: &str) -> Option<&str> {
    let text = line.trim_start_matches('#');
    let level = line.len() - text.len();
    ((1..=6).contains(&level) && text.starts_with(' ')).then(|| text.trim())
}

/// The anchor of a heading, as GitHub and mdBook derive it.
fn slug(heading: &str) -> String {
    // Of a link, only the text counts.
    let mut text = String::new();
    let mut rest = heading;
    while let Some((before, link)) = rest.split_once('[') {
        let (name, after) = link.split_once(']').unwrap_or((link, ""));
        let after = after
            .strip_prefix('(')
            .and_then(|target| target.split_once(')'))
            .map_or(after, |(_, after)| after);
        text.extend([before, name]);
        rest = after;
    }
    text.push_str(rest);
    let kept =
        text.to_lowercase().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>();
    kept.replace(' ', "-")
}

/// The line without its inline code.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// Targets of the links in a line that stay in the repository.
fn targets(line: &str) -> Vec<String> {
    let targets = line.match_indices("](").filter_map(|(at, open)| {
        let target = line[at + open.len()..].split(')').next()?;
        let target = target.split_whitespace().next()?;
        let is_outside = target.contains("://") || target.starts_with("mailto:");
        (!is_outside).then(|| target.to_owned())
    });
    targets.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(pages: &[(&str, &str)]) -> Pages {
        pages.iter().map(|(path, text)| ((*path).to_owned(), Page::new(text))).collect()
    }

    fn findings(all: &Pages) -> Vec<String> {
        let is_file = |path: &str| all.contains_key(path) || path == "src/main.rs";
        all.iter().flat_map(|(path, page)| broken(path, page, all, &is_file)).collect()
    }

    #[test]
    fn links_to_files_and_headings_hold() {
        let all = pages(&[
            (
                "README.md",
                "# Weir\n[a](docs/a.md#the-weir-command) [main](src/main.rs) [top](#weir) [web](https://x.org/#y)",
            ),
            (
                "docs/a.md",
                "# The `weir` command\n[back](../README.md)\n```\n[not](a link)\n```\n`[nor](this)`",
            ),
        ]);
        assert_eq!(findings(&all), Vec::<String>::new());
    }

    #[test]
    fn broken_links_are_named_with_their_line() {
        let all = pages(&[("docs/a.md", "\n[gone](b.md)\n[gone](#nowhere)")]);
        let findings = findings(&all);
        assert_eq!(
            findings,
            ["docs/a.md:2: b.md does not exist", "docs/a.md:3: docs/a.md has no heading for #nowhere"]
        );
    }

    #[test]
    fn repeated_headings_are_numbered_and_links_in_headings_are_their_text() {
        let page = Page::new("## Limits\n## Limits\n## See [GPUs](gpu.md), now\n");
        let anchors: Vec<&str> = page.anchors.iter().map(String::as_str).collect();
        assert_eq!(anchors, ["limits", "limits-1", "see-gpus-now"]);
    }

    #[test]
    fn pages_missing_in_the_summary_are_reported() {
        let all = pages(&[("docs/SUMMARY.md", "- [A](a.md)"), ("docs/a.md", ""), ("docs/b.md", "")]);
        assert_eq!(missing_in_summary(&all), ["docs/SUMMARY.md does not list docs/b.md"]);
    }
}
