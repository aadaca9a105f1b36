//! Where a declaration is read from: files, folders and standard input.

use super::declared::Declared;
use super::document::Document;
use super::resolve::{Place, Resolver};
use crate::error::Problem;
use anyhow::Result;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The file that is read without `-f`.
const FILE_DEFAULT: &str = "weir.yaml";
/// Longest file. It may contain the labels of models.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// The most files of a folder.
const FILES_MAX: usize = 1_000;
/// Name of standard input as a file.
const STDIN: &str = "-";

/// Reads the declaration in `files`, and the files that it names.
pub(crate) fn read(files: &[PathBuf]) -> Result<Declared> {
    let default = [PathBuf::from(FILE_DEFAULT)];
    let files = if files.is_empty() { &default[..] } else { files };
    let mut resolver = Resolver::default();
    for file in files {
        for (place, text) in texts(file)? {
            let documents = Document::parse(&text, &place.label).map_err(|error| {
                Problem::usage(error).hint("docs/guides/apply.md describes the format of the file")
            })?;
            for document in documents {
                resolver.add(document, &place);
            }
        }
    }
    resolver.finish()
}

/// The texts of a file, of the files of a folder, or of standard input.
fn texts(path: &Path) -> Result<Vec<(Place, String)>> {
    if path.as_os_str() == STDIN {
        let place = Place { label: "standard input".to_owned(), folder: PathBuf::new() };
        return Ok(vec![(place, text(std::io::stdin(), path)?)]);
    }
    let files = if path.is_dir() { files_of(path)? } else { vec![path.to_owned()] };
    let read = |path: PathBuf| {
        let file = fs::File::open(&path).map_err(|error| unreadable(&path, error))?;
        let folder = path.parent().map_or_else(PathBuf::new, Path::to_owned);
        Ok((Place { label: path.display().to_string(), folder }, text(file, &path)?))
    };
    files.into_iter().map(read).collect()
}

/// The YAML files of a folder, by name.
fn files_of(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in folder.read_dir().map_err(|error| unreadable(folder, error))? {
        let path = entry.map_err(|error| unreadable(folder, error))?.path();
        let is_yaml = path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
        if is_yaml && path.is_file() {
            files.push(path);
        }
    }
    let shown = folder.display();
    if files.is_empty() {
        return Err(Problem::usage(format!("the folder {shown} has no file *.yaml or *.yml")).into());
    }
    if files.len() > FILES_MAX {
        let text = format!("the folder {shown} has {} YAML files, at most {FILES_MAX} are read", files.len());
        return Err(Problem::usage(text).into());
    }
    files.sort();
    Ok(files)
}

fn text(source: impl Read, path: &Path) -> Result<String> {
    let mut text = String::new();
    source.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| unreadable(path, error))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        let text = format!("{} has more than {FILE_BYTES_MAX} bytes", path.display());
        return Err(Problem::usage(text).into());
    }
    Ok(text)
}

fn unreadable(path: &Path, error: std::io::Error) -> Problem {
    let problem = Problem::new(format!("cannot read {}", path.display())).because(error);
    if path == Path::new(FILE_DEFAULT) {
        return problem
            .hint("-f FILE names the file with the declaration; docs/guides/apply.md describes it");
    }
    problem
}
