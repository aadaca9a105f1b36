//! The README of a release, whose pages are only in the repository.

use crate::repo::Repo;
use anyhow::{Context as _, Result};
use std::path::Path;

/// Address of the repository's files. `HEAD` is its default branch.
const FILES: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/");

/// Writes the README into `folder`, with absolute links.
pub(super) fn write(repo: &Repo, folder: &Path) -> Result<()> {
    let from = repo.root().join("README.md");
    let text = std::fs::read_to_string(&from).with_context(|| format!("cannot read {}", from.display()))?;
    let to = folder.join("README.md");
    std::fs::write(&to, with_absolute_links(&text)).with_context(|| format!("cannot write {}", to.display()))
}

/// The text with links to the repository instead of relative links. Code blocks stay unchanged.
fn with_absolute_links(text: &str) -> String {
    let mut is_code = false;
    let mut absolute = String::with_capacity(2 * text.len());
    for line in text.split_inclusive('\n') {
        is_code ^= line.starts_with("```");
        if is_code {
            absolute.push_str(line);
            continue;
        }
        let mut parts = line.split("](");
        absolute.extend(parts.next());
        for part in parts {
            absolute.push_str("](");
            if is_relative(part) {
                absolute.push_str(FILES);
            }
            absolute.push_str(part);
        }
    }
    absolute
}

/// Whether the target at the start of `link` is a file of the repository.
fn is_relative(link: &str) -> bool {
    let target = link.split(')').next().unwrap_or_default();
    !target.contains("://") && !target.starts_with("mailto:") && !target.starts_with('#')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_links_lead_to_the_repository() {
        let text =
            "[a](docs/a.md#b) and [c](functions)\n[d](https://x.org/y) [e](#f)\n```\n[g](h)\n```\n[i](j)";
        let expected = format!(
            "[a]({FILES}docs/a.md#b) and [c]({FILES}functions)\n[d](https://x.org/y) [e](#f)\n```\n[g](h)\n```\n[i]({FILES}j)"
        );
        assert_eq!(with_absolute_links(text), expected);
        assert!(FILES.starts_with("https://"), "{FILES}");
    }

    #[test]
    fn written_readme_has_no_relative_link() {
        let folder = tempfile::tempdir().unwrap();
        write(&Repo::find(), folder.path()).unwrap();
        let text = std::fs::read_to_string(folder.path().join("README.md")).unwrap();
        assert!(text.contains(&format!("]({FILES}docs/start.md")) && !text.contains("](docs/"), "{text}");
    }
}
