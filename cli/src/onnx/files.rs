//! Files of a model: an ONNX file and the other files of its folder or archive.

use super::archive::{Archive, Format};
use super::section::Section;
use crate::error::Problem;
use anyhow::Result;
use std::fmt;
use std::io;
use std::path::{Component, Path, PathBuf};

/// A file of a model.
#[derive(Debug, Clone)]
pub(super) enum StoredFile {
    /// A file on disk, which is opened when it is read: a model may have more files than a process
    /// may open.
    OnDisk(PathBuf),
    /// A file of an archive, with its path there.
    InArchive(String, Section),
}

impl StoredFile {
    pub(super) fn open(&self) -> io::Result<Section> {
        match self {
            Self::OnDisk(path) => Section::open(path),
            Self::InArchive(_, section) => Ok(section.clone()),
        }
    }
}

impl fmt::Display for StoredFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OnDisk(path) => path.display().fmt(f),
            Self::InArchive(name, _) => f.write_str(name),
        }
    }
}

/// A model and the other files of its folder or archive.
#[derive(Debug)]
pub(super) struct ModelFiles {
    pub(super) model: StoredFile,
    beside: Beside,
}

#[derive(Debug)]
enum Beside {
    Folder(PathBuf),
    Archive(Archive),
}

impl ModelFiles {
    /// Finds the model of `path`: the file itself, or the only ONNX file in a folder or archive.
    pub(super) fn find(path: &Path) -> Result<Self> {
        if let Some(format) = Format::from_name(path).filter(|_| !path.is_dir()) {
            let archive = Archive::unpack(path, format)?;
            let at_top = archive.names().filter(|name| !name.contains('/') && is_onnx(Path::new(name)));
            let name = only(at_top.map(str::to_owned).collect(), path).map_err(|problem| {
                problem.hint("the archive needs one .onnx file at its top: tar -C FOLDER -czf MODEL.tar.gz .")
            })?;
            let model = archive.get(&name).ok_or_else(|| Problem::new(format!("there is no {name}")))?;
            return Ok(Self { model, beside: Beside::Archive(archive) });
        }
        let model = in_folder(path)?;
        let folder = model.parent().unwrap_or(Path::new("")).to_owned();
        Ok(Self { model: StoredFile::OnDisk(model), beside: Beside::Folder(folder) })
    }

    /// The file at `location`, a path relative to the model; `None` if the location is outside the
    /// model's folder.
    pub(super) fn beside(&self, location: &str) -> Option<io::Result<StoredFile>> {
        let name = inside(location)?;
        Some(match &self.beside {
            Beside::Folder(folder) => Ok(StoredFile::OnDisk(folder.join(location))),
            Beside::Archive(archive) => {
                archive.get(&name).ok_or_else(|| io::Error::other(format!("the archive has no {name}")))
            }
        })
    }
}

/// Normalises a path within a folder; `None` if the path leads outside or to the folder itself.
pub(super) fn inside(path: &str) -> Option<String> {
    let mut names = Vec::new();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => names.push(name.to_str()?),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    (!names.is_empty()).then(|| names.join("/"))
}

/// The ONNX file of `path`: the file itself, or the model in a folder.
fn in_folder(path: &Path) -> Result<PathBuf> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let unreadable = |error| Problem::new(format!("cannot read {}", path.display())).because(error);
    let mut models = Vec::new();
    for entry in std::fs::read_dir(path).map_err(unreadable)? {
        let file = entry.map_err(unreadable)?.path();
        if is_onnx(&file) {
            models.push(file);
        }
    }
    Ok(only(models, path).map_err(|problem| problem.hint("name the file to push"))?)
}

fn is_onnx(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("onnx"))
}

/// The only model of a folder or archive.
fn only<Name: AsRef<Path> + Ord + Clone>(mut models: Vec<Name>, container: &Path) -> Result<Name, Problem> {
    models.sort();
    let text = match models.as_slice() {
        [one] => return Ok(one.clone()),
        [] => format!("{} has no .onnx file", container.display()),
        [first, second, ..] => {
            let names = format!("{}, {}, ...", first.as_ref().display(), second.as_ref().display());
            format!("{} has {} .onnx files: {names}", container.display(), models.len())
        }
    };
    Err(Problem::new(text))
}
