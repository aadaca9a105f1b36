//! Finds the models and versions in the folder of a repository.

use super::config::{RepositoryConfig, VersionPolicy};
use crate::declaration::labels_file;
use crate::files::read_small;
use anyhow::{Context as _, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};
use weir_types::{ModelLabels, ModelManifest, Name};

/// The file with the settings of a model.
const CONFIG_FILE: &str = "config.pbtxt";
/// Largest size of that file.
const CONFIG_BYTES_MAX: usize = 1 << 20;
/// Largest number of models in a repository.
const MODELS_MAX: usize = 10_000;
/// Depth of the files below the repository: model, version, folder of a model with its weights.
const DEPTH_MAX: usize = 4;

/// A model of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RepositoryModel {
    pub(super) name: Name,
    /// The versions to serve, with their files or folders.
    pub(super) versions: BTreeMap<u32, PathBuf>,
    pub(super) manifest: ModelManifest,
    /// Settings of its configuration that have no effect.
    pub(super) without_effect: BTreeSet<String>,
}

/// Folder of a model, and its content or the reason why it cannot be served.
pub(super) type Found = (String, Result<RepositoryModel, String>);

/// Reads the repository in `folder`, by the names of its folders.
///
/// # Errors
/// The folder cannot be read, or has more than [`MODELS_MAX`] models.
pub(super) fn read(folder: &Path) -> Result<Vec<Found>> {
    let context = || format!("cannot read the model repository {}", folder.display());
    let names = subfolders(folder).with_context(context)?;
    if names.len() > MODELS_MAX {
        anyhow::bail!(
            "{} has {} folders, and a model repository at most {MODELS_MAX}",
            folder.display(),
            names.len()
        );
    }
    let model = |name: OsString| {
        let path = folder.join(&name);
        let name = name.to_string_lossy().into_owned();
        let model = RepositoryModel::read(&name, &path);
        (name, model)
    };
    Ok(names.into_iter().map(model).collect())
}

impl RepositoryModel {
    fn read(folder_name: &str, folder: &Path) -> Result<Self, String> {
        let name = folder_name.parse::<Name>().map_err(|error| format!("{error}; rename the folder"))?;
        let path = folder.join(CONFIG_FILE);
        let config = if path.exists() {
            let text = String::from_utf8(read_small(&path, CONFIG_BYTES_MAX)?);
            let text = text.map_err(|_| format!("{CONFIG_FILE} is not in UTF-8"))?;
            RepositoryConfig::parse(&text, folder_name).map_err(|why| format!("{CONFIG_FILE}, {why}"))?
        } else {
            RepositoryConfig::default()
        };
        let RepositoryConfig { file, versions: policy, mut manifest, labels, without_effect } = config;
        let labels = labels.into_iter().map(|(output, file)| Ok((output, labels_file(&folder.join(file))?)));
        manifest.labels = ModelLabels::ByOutput(labels.collect::<Result<_, String>>()?);
        let mut versions = BTreeMap::new();
        for version in policy.choose(&versions_in(folder)?)? {
            let model = folder.join(version.to_string()).join(&file);
            if !model.exists() {
                return Err(format!("version {version} has no file {file}"));
            }
            versions.insert(version, model);
        }
        Ok(Self { name, versions, manifest, without_effect })
    }
}

impl VersionPolicy {
    /// The versions to serve among `found`.
    fn choose(&self, found: &BTreeSet<u32>) -> Result<BTreeSet<u32>, String> {
        let chosen: BTreeSet<u32> = match self {
            Self::All => found.clone(),
            Self::Latest(count) => found.iter().rev().take(*count).copied().collect(),
            Self::Specific(versions) => {
                if let Some(missing) = versions.difference(found).next() {
                    return Err(format!("version_policy names version {missing}, which has no folder"));
                }
                versions.clone()
            }
        };
        if chosen.is_empty() {
            return Err("there is no version, a folder such as 1/ with the model".into());
        }
        Ok(chosen)
    }
}

/// The numbers among the names of the subfolders. As in Triton, names that start with a zero do not
/// count.
fn versions_in(folder: &Path) -> Result<BTreeSet<u32>, String> {
    let names = subfolders(folder).map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
    let numbers = names.iter().filter_map(|name| name.to_str()).filter(|name| !name.starts_with(['0', '+']));
    Ok(numbers.filter_map(|name| name.parse().ok()).collect())
}

/// Names of the folders in `folder` that are not hidden, sorted.
fn subfolders(folder: &Path) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let is_hidden = entry.file_name().to_string_lossy().starts_with('.');
        // Follows symbolic links.
        if !is_hidden && entry.path().is_dir() {
            names.push(entry.file_name());
        }
    }
    names.sort();
    Ok(names)
}

/// Changes with the names, sizes and times of the files in `folder`. Files that cannot be examined
/// count as absent.
pub(super) fn fingerprint(folder: &Path) -> u64 {
    let mut entries = Vec::new();
    collect(folder, DEPTH_MAX, &mut entries);
    entries.sort();
    let mut hasher = DefaultHasher::new();
    entries.hash(&mut hasher);
    hasher.finish()
}

fn collect(folder: &Path, depth: usize, entries: &mut Vec<(PathBuf, u64, Option<std::time::SystemTime>)>) {
    let Some(depth) = depth.checked_sub(1) else { return };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(metadata) = std::fs::metadata(&path) else { continue };
        if metadata.is_dir() {
            collect(&path, depth, entries);
            entries.push((path, 0, None));
        } else {
            entries.push((path, metadata.len(), metadata.modified().ok()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, path: &str, text: &str) {
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn found(folder: &Path) -> BTreeMap<String, Result<RepositoryModel, String>> {
        read(folder).unwrap().into_iter().collect()
    }

    #[test]
    fn models_have_the_versions_of_their_policy() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        for path in
            ["a/1/model.onnx", "a/2/model.onnx", "a/10/model.onnx", "a/010/model.onnx", "a/old/model.onnx"]
        {
            write(folder, path, "");
        }
        write(folder, "b/1/net.onnx/net.onnx", "");
        write(
            folder,
            "b/config.pbtxt",
            "default_model_filename: \"net.onnx\" output { name: \"y\" label_filename: \"l.txt\" }",
        );
        write(folder, "b/l.txt", "cat\ndog\n");
        write(folder, ".git/1/model.onnx", "");
        write(folder, "README.md", "");
        let models = found(folder);
        assert!(models.keys().eq(["a", "b"]), "{models:?}");
        assert_eq!(models["a"].as_ref().unwrap().versions, [(10, folder.join("a/10/model.onnx"))].into());
        let b = models["b"].as_ref().unwrap();
        assert_eq!(b.versions, [(1, folder.join("b/1/net.onnx"))].into());
        let ModelLabels::ByOutput(labels) = &b.manifest.labels else { panic!("{b:?}") };
        assert_eq!(labels["y"].get(1), Some("dog"));
        write(folder, "a/config.pbtxt", "version_policy { specific { versions: [ 1, 2 ] } }");
        assert!(found(folder)["a"].as_ref().unwrap().versions.keys().eq(&[1, 2]));
    }

    #[test]
    fn a_wrong_model_does_not_hide_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        write(folder, "good/1/model.onnx", "");
        write(folder, "Upper/1/model.onnx", "");
        write(folder, "empty/readme.txt", "");
        write(folder, "other/1/model.plan", "");
        write(folder, "typo/1/model.onnx", "");
        write(folder, "typo/config.pbtxt", "\nmax_batch: 3");
        write(folder, "gone/1/model.onnx", "");
        write(folder, "gone/config.pbtxt", "version_policy { specific { versions: 7 } }");
        let models = found(folder);
        assert!(models["good"].is_ok());
        for (name, expected) in [
            ("Upper", "rename the folder"),
            ("empty", "there is no version"),
            ("other", "version 1 has no file model.onnx"),
            ("typo", "config.pbtxt, line 2: unsupported setting max_batch"),
            ("gone", "names version 7, which has no folder"),
        ] {
            let error = models[name].as_ref().unwrap_err();
            assert!(error.contains(expected), "{name}: {error}");
        }
        assert!(
            read(&folder.join("nothing"))
                .unwrap_err()
                .to_string()
                .contains("cannot read the model repository")
        );
    }

    #[test]
    fn fingerprint_changes_with_every_file() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        write(folder, "a/1/model.onnx", "1");
        let first = fingerprint(folder);
        assert_eq!(first, fingerprint(folder));
        write(folder, "a/1/model.onnx", "12");
        let longer = fingerprint(folder);
        assert_ne!(first, longer);
        std::fs::create_dir(folder.join("a/2")).unwrap();
        assert_ne!(longer, fingerprint(folder));
    }
}
