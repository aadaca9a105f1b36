//! Finds the models and versions in the folder of a repository.

use super::config::{RepositoryConfig, VersionPolicy};
use crate::declaration::labels_file;
use crate::files::read_small;
use anyhow::{Context as _, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use weir_types::{ModelLabels, ModelManifest, Name};

/// The file with the settings of a model.
const CONFIG_FILE: &str = "config.pbtxt";
/// Largest size of that file.
pub(super) const CONFIG_BYTES_MAX: usize = 1 << 20;
/// Largest number of models in a repository.
const MODELS_MAX: usize = 10_000;
/// Depth of the files below the folder of a model: version, folder of a model with its weights, and
/// a folder of weights.
pub(super) const DEPTH_MAX: usize = 4;

/// A model of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RepositoryModel {
    pub(super) name: Name,
    /// The versions to serve, with their files or folders.
    pub(super) versions: BTreeMap<u32, PathBuf>,
    pub(super) manifest: ModelManifest,
    /// Settings of its configuration that have no effect, or not their whole effect.
    pub(super) without_effect: BTreeSet<String>,
    /// Why other versions that the policy selects cannot be served.
    pub(super) faults: Vec<String>,
}

/// Folder of a model.
#[derive(Debug)]
pub(super) struct ModelFolder {
    /// Name of the folder.
    pub(super) name: String,
    pub(super) path: PathBuf,
}

/// State of the files of a model, without their contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FilesState {
    /// Changes with the names, sizes and times of the files.
    pub(super) fingerprint: u64,
    /// Latest time at which a file or folder was modified.
    pub(super) newest: Option<SystemTime>,
}

/// Finds the folders of models in the repository `folder`, sorted by name. Ignores hidden folders,
/// and `data`, the data folder of a node.
///
/// # Errors
/// The repository cannot be read, or has more than [`MODELS_MAX`] models.
pub(super) fn models(folder: &Path, data: Option<&Path>) -> Result<Vec<ModelFolder>> {
    let data = data.and_then(|data| data.canonicalize().ok());
    let names = subfolders(folder);
    let names = names.with_context(|| format!("cannot read the model repository {}", folder.display()))?;
    let folders = names
        .into_iter()
        .map(|name| ModelFolder { name: name.to_string_lossy().into_owned(), path: folder.join(name) });
    let is_data = |path: &Path| data.is_some() && path.canonicalize().ok() == data;
    let folders: Vec<_> = folders.filter(|folder| !is_data(&folder.path)).collect();
    if folders.len() > MODELS_MAX {
        let count = folders.len();
        bail!("{} has {count} folders, and a model repository has at most {MODELS_MAX}", folder.display());
    }
    Ok(folders)
}

impl ModelFolder {
    /// Reads the configuration, and finds the files of the versions that it selects.
    pub(super) fn read(&self) -> Result<RepositoryModel, String> {
        let folder = &self.path;
        let name = self.name.parse::<Name>().map_err(|error| format!("{error}; rename the folder"))?;
        let RepositoryConfig { file, versions: policy, mut manifest, labels, without_effect } =
            self.config()?;
        let labels = labels.into_iter().map(|(output, file)| Ok((output, labels_file(&folder.join(file))?)));
        manifest.labels = ModelLabels::ByOutput(labels.collect::<Result<_, String>>()?);
        let (chosen, mut faults) = policy.choose(&versions_in(folder)?);
        let mut versions = BTreeMap::new();
        for version in chosen {
            let model = folder.join(version.to_string()).join(&file);
            if model.exists() {
                versions.insert(version, model);
            } else {
                faults.push(format!("version {version} has no file {file}"));
            }
        }
        if versions.is_empty() && faults.is_empty() {
            return Err("there is no version, a folder such as 1/ with the model".into());
        }
        Ok(RepositoryModel { name, versions, manifest, without_effect, faults })
    }

    fn config(&self) -> Result<RepositoryConfig, String> {
        let path = self.path.join(CONFIG_FILE);
        // A file that cannot be read must not mean that the model has no settings.
        if let Err(error) = std::fs::symlink_metadata(&path)
            && error.kind() == io::ErrorKind::NotFound
        {
            return Ok(RepositoryConfig::default());
        }
        let text = String::from_utf8(read_small(&path, CONFIG_BYTES_MAX)?);
        let text = text.map_err(|_| format!("{CONFIG_FILE} is not in UTF-8"))?;
        RepositoryConfig::parse(&text, &self.name).map_err(|why| format!("{CONFIG_FILE}, {why}"))
    }

    pub(super) fn state(&self) -> FilesState {
        let mut entries = Vec::new();
        collect(&self.path, DEPTH_MAX, &mut entries);
        entries.sort();
        let newest = entries.iter().filter_map(|(_, _, modified)| *modified).max();
        let mut hasher = DefaultHasher::new();
        entries.hash(&mut hasher);
        FilesState { fingerprint: hasher.finish(), newest }
    }
}

impl VersionPolicy {
    /// The versions to serve among `found`, and the faults of the policy.
    fn choose(&self, found: &BTreeSet<u32>) -> (BTreeSet<u32>, Vec<String>) {
        match self {
            Self::All => (found.clone(), Vec::new()),
            Self::Latest(count) => (found.iter().rev().take(*count).copied().collect(), Vec::new()),
            Self::Specific(versions) => {
                let fault = |version| format!("version_policy names version {version}, which has no folder");
                let faults = versions.difference(found).map(fault).collect();
                (versions.intersection(found).copied().collect(), faults)
            }
        }
    }
}

/// The numbers among the names of the subfolders. As in Triton, names that start with a zero do not
/// count.
fn versions_in(folder: &Path) -> Result<BTreeSet<u32>, String> {
    let names = subfolders(folder).map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
    let mut versions = BTreeSet::new();
    for name in names.iter().filter_map(|name| name.to_str()) {
        if name.starts_with('0') || !name.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let too_high = |_| format!("version {name} is above {}; rename the folder", u32::MAX);
        versions.insert(name.parse().map_err(too_high)?);
    }
    Ok(versions)
}

/// Names of the folders in `folder` that are not hidden, sorted.
fn subfolders(folder: &Path) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        // Follows symbolic links.
        if !is_hidden(&entry.file_name()) && entry.path().is_dir() {
            names.push(entry.file_name());
        }
    }
    names.sort();
    Ok(names)
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

/// Adds the files below `folder` that are not hidden, with their sizes and times. Files that cannot
/// be examined count as absent.
fn collect(folder: &Path, depth: usize, entries: &mut Vec<(PathBuf, u64, Option<SystemTime>)>) {
    let Some(depth) = depth.checked_sub(1) else { return };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(metadata) = std::fs::metadata(&path) else { continue };
        if is_hidden(&entry.file_name()) {
            continue;
        }
        let mut bytes = metadata.len();
        if metadata.is_dir() {
            collect(&path, depth, entries);
            bytes = 0;
        }
        entries.push((path, bytes, metadata.modified().ok()));
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
        let models = models(folder, None).unwrap();
        models.into_iter().map(|model| (model.name.clone(), model.read())).collect()
    }

    #[test]
    fn models_have_the_versions_of_their_policy() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        for version in ["1", "2", "10", "010", "old"] {
            write(folder, &format!("a/{version}/model.onnx"), "");
        }
        write(folder, "b/1/net.onnx/net.onnx", "");
        let config = "default_model_filename: \"net.onnx\" output { name: \"y\" label_filename: \"l.txt\" }";
        write(folder, "b/config.pbtxt", config);
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
        write(folder, "typo/1/model.onnx", "");
        write(folder, "typo/config.pbtxt", "\nmax_batch: 3");
        write(folder, "dates/20240115123000/model.onnx", "");
        let models = found(folder);
        assert!(models["good"].is_ok());
        for (name, expected) in [
            ("Upper", "rename the folder"),
            ("empty", "there is no version"),
            ("typo", "config.pbtxt, line 2: unsupported setting max_batch"),
            ("dates", "version 20240115123000 is above 4294967295"),
        ] {
            let error = models[name].as_ref().unwrap_err();
            assert!(error.contains(expected), "{name}: {error}");
        }
        let missing = super::models(&folder.join("nothing"), None).unwrap_err().to_string();
        assert!(missing.contains("cannot read the model repository"), "{missing}");
    }

    #[test]
    fn missing_versions_do_not_hide_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        write(folder, "m/1/model.onnx", "");
        write(folder, "m/2/model.plan", "");
        write(folder, "m/config.pbtxt", "version_policy { specific { versions: [ 1, 2, 7 ] } }");
        let model = found(folder).remove("m").unwrap().unwrap();
        assert!(model.versions.keys().eq(&[1]));
        let expected =
            ["version_policy names version 7, which has no folder", "version 2 has no file model.onnx"];
        assert_eq!(model.faults, expected);
    }

    #[test]
    fn settings_that_cannot_be_read_are_not_the_default_ones() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "m/1/model.onnx", "");
        std::os::unix::fs::symlink("nowhere", folder.path().join("m/config.pbtxt")).unwrap();
        let error = found(folder.path()).remove("m").unwrap().unwrap_err();
        assert!(error.contains("cannot read"), "{error}");
    }

    #[test]
    fn data_folder_of_a_node_is_no_model() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        write(folder, "m/1/model.onnx", "");
        write(folder, "weir-data/registry", "");
        let models = models(folder, Some(&folder.join("weir-data"))).unwrap();
        assert_eq!(models.iter().map(|model| &*model.name).collect::<Vec<_>>(), ["m"]);
    }

    #[test]
    fn state_changes_with_every_file() {
        let folder = tempfile::tempdir().unwrap();
        let model = ModelFolder { name: "a".into(), path: folder.path().join("a") };
        let mut states = BTreeSet::from([model.state().fingerprint]);
        let mut is_new = || states.insert(model.state().fingerprint);
        write(folder.path(), "a/1/model.onnx", "1");
        assert!(is_new() && !is_new());
        write(folder.path(), "a/1/model.onnx", "12");
        assert!(is_new(), "a longer file");
        std::fs::create_dir(folder.path().join("a/2")).unwrap();
        assert!(is_new(), "another version");
        write(folder.path(), "a/.cache", "1");
        std::fs::remove_file(folder.path().join("a/1/model.onnx")).unwrap();
        assert!(is_new(), "a removed file");
        assert!(model.state().newest.is_some());
    }
}
