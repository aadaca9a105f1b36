//! Texts of licences, each once, with the packages that it covers.

use super::metadata::LinkedPackage;
use anyhow::{Context as _, Result, bail};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Beginnings of the names of files with licences, in upper case.
const NAMES: [&str; 6] = ["COPYING", "COPYRIGHT", "LICENCE", "LICENSE", "NOTICE", "UNLICENSE"];

/// The MIT licence without its copyright line, for packages that name it and ship no text.
const MIT: &str = include_str!("mit.txt");

/// Texts of licences with the packages that they cover.
#[derive(Default)]
pub(super) struct Licences(BTreeMap<String, Vec<String>>);

impl Licences {
    /// Collects the texts that the packages ship. Of the packages without a text, those of wasmtime
    /// have the text of its other packages, and those that the MIT licence may be chosen for have its
    /// text with their authors. Fails for others.
    pub(super) fn from_packages(packages: &[LinkedPackage]) -> Result<Self> {
        let mut all = Self::default();
        let mut apache = None;
        let mut without_text = Vec::new();
        for package in packages {
            let texts = texts(package)?;
            if texts.is_empty() {
                without_text.push(package);
            }
            if package.licence == APACHE_LLVM {
                apache = texts.first().cloned().or(apache);
            }
            texts.iter().for_each(|text| all.add(text, &label(package)));
        }
        for package in without_text {
            let text = match (package.licence.as_str(), &apache) {
                (APACHE_LLVM, Some(apache)) => apache.clone(),
                (licence, _) if licence.split(" OR ").any(|choice| choice == "MIT") => {
                    format!("Copyright (c) {}\n\n{MIT}", package.authors.join(", "))
                }
                (licence, _) => bail!("{} ships no text of its licence, {licence}", label(package)),
            };
            all.add(&text, &label(package));
        }
        Ok(all)
    }

    /// Adds a text that covers a package.
    pub(super) fn add(&mut self, text: &str, package: &str) {
        let text = text.trim().replace("\r\n", "\n");
        let covered = self.0.entry(text).or_default();
        if !covered.iter().any(|other| other == package) {
            covered.push(package.to_owned());
        }
    }
}

/// Licence of wasmtime's packages, some of which ship no text.
const APACHE_LLVM: &str = "Apache-2.0 WITH LLVM-exception";

fn label(package: &LinkedPackage) -> String {
    format!("{} {}", package.name, package.version)
}

fn texts(package: &LinkedPackage) -> Result<Vec<String>> {
    let cannot = || format!("cannot read the sources of {}", label(package));
    let mut files: Vec<PathBuf> = Vec::new();
    for file in std::fs::read_dir(&package.folder).with_context(cannot)? {
        let file = file.with_context(cannot)?.path();
        let name = file.file_name().map(|name| name.to_string_lossy().to_uppercase()).unwrap_or_default();
        if file.is_file() && NAMES.iter().any(|start| name.starts_with(start)) {
            files.push(file);
        }
    }
    files.sort();
    let read = |file: &PathBuf| std::fs::read(file).with_context(cannot);
    files.iter().map(|file| Ok(String::from_utf8_lossy(&read(file)?).into_owned())).collect()
}

impl fmt::Display for Licences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Weir contains the packages below. Each text covers the packages listed above it.")?;
        for (text, packages) in &self.0 {
            write!(f, "\n{}\n", "=".repeat(80))?;
            packages.iter().try_for_each(|package| writeln!(f, "{package}"))?;
            writeln!(f, "{}\n\n{text}", "-".repeat(80))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, licence: &str, folder: &std::path::Path) -> LinkedPackage {
        LinkedPackage {
            registry: "cargo",
            name: name.into(),
            version: "1.0.0".into(),
            licence: licence.into(),
            authors: vec!["A. Author".into()],
            folder: folder.to_owned(),
            checksum: None,
        }
    }

    #[test]
    fn equal_texts_are_printed_once_with_all_packages() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("LICENSE-MIT"), "the text\r\n").unwrap();
        let packages = [package("one", "MIT", folder.path()), package("two", "MIT", folder.path())];
        let printed = Licences::from_packages(&packages).unwrap().to_string();
        assert_eq!(printed.matches("the text").count(), 1, "{printed}");
        assert!(printed.contains("one 1.0.0\ntwo 1.0.0\n"), "{printed}");
    }

    #[test]
    fn package_without_a_text_gets_the_mit_licence_or_is_refused() {
        let empty = tempfile::tempdir().unwrap();
        let mit = Licences::from_packages(&[package("one", "MIT", empty.path())]).unwrap().to_string();
        assert!(mit.contains("Copyright (c) A. Author") && mit.contains("Permission is hereby granted"));
        for licence in ["MIT OR Apache-2.0", "Apache-2.0 OR MIT"] {
            let chosen = Licences::from_packages(&[package("one", licence, empty.path())]).unwrap();
            assert_eq!(chosen.to_string(), mit, "{licence}");
        }
        let refused = Licences::from_packages(&[package("one", "MPL-2.0", empty.path())]).map(|_| ());
        assert!(refused.unwrap_err().to_string().contains("one 1.0.0 ships no text"));
    }
}
