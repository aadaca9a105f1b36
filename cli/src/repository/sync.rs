//! Pushes the versions of a repository that a node does not have.

use super::folder::{FilesState, ModelFolder, RepositoryModel};
use super::source::{RepositoryAddress, RepositorySource};
use crate::client::Client;
use crate::declaration::hash;
use crate::error::{Problem, one_line};
use crate::files::Stoppable;
use crate::onnx;
use crate::output::OutputSettings;
use crate::uploads::{ModelUpload, manifest_fields};
use anyhow::Result;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weir_types::api::{Model, ModelPushed, ModelVersion};
use weir_types::{ContentHash, Name, Version};

/// A repository, and the node that serves its models.
pub(crate) struct RepositorySync {
    pub(super) source: RepositorySource,
    client: Client,
    pub(super) output: OutputSettings,
    allow_signature_change: bool,
    /// Set to stop before the next read or upload.
    stop: Arc<AtomicBool>,
    /// Models that need nothing until their files or the node change, by the name of their folder.
    settled: HashMap<String, Settled>,
}

/// A model whose files were read.
struct Settled {
    fingerprint: u64,
    /// Name and versions on the node; `None` if the folder has no usable model.
    on_node: Option<(Name, BTreeSet<Version>)>,
    synced: SyncedModel,
}

/// Result of a synchronisation, as `--json` prints it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct SyncReport {
    pub(crate) models: Vec<SyncedModel>,
}

/// A model of the repository.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct SyncedModel {
    /// Name of its folder.
    name: String,
    /// Versions that were sent.
    pushed: Vec<Version>,
    /// Versions that the node had before.
    unchanged: Vec<Version>,
    /// Versions that the node does not keep, because it has newer ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_kept: Vec<Version>,
    /// The version that requests without a version get, if it is newer than those of the repository.
    #[serde(skip_serializing_if = "Option::is_none")]
    newer_active: Option<Version>,
    /// Settings of `config.pbtxt` that have no effect, or not their whole effect.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    without_effect: Vec<String>,
    /// Why the node does not have everything.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<String>,
    /// Whether the same files may have no error later.
    #[serde(skip)]
    is_transient: bool,
}

impl RepositorySync {
    /// A repository at `address`. A folder may contain the data folder `data` of a node, which has the
    /// mirror of a bucket.
    pub(crate) fn new(
        address: RepositoryAddress,
        data: Option<PathBuf>,
        client: Client,
        output: OutputSettings,
        allow_signature_change: bool,
    ) -> Result<Self> {
        let stop: Arc<AtomicBool> = Arc::default();
        let source = RepositorySource::new(address, data, stop.clone())?;
        Ok(Self { source, client, output, allow_signature_change, stop, settled: HashMap::new() })
    }

    /// A flag that ends [`run`](Self::run) early when it is set.
    pub(super) fn stop(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }

    /// State of the files of all models.
    pub(super) fn files(&mut self) -> Result<Vec<(String, FilesState)>> {
        let models = self.source.models()?;
        Ok(models.into_iter().map(|model| (model.name.clone(), self.source.state(&model))).collect())
    }

    /// Pushes the versions that the node lacks. The report has the errors of models that cannot be
    /// pushed; the other models are pushed nevertheless. Does not read a model again while neither
    /// its files nor its versions on the node change.
    ///
    /// # Errors
    /// The repository cannot be read, or the node cannot be asked for its models.
    pub(crate) fn run(&mut self) -> Result<SyncReport> {
        let folders = self.source.models()?;
        let on_node: Vec<Model> = self.client.get("/v1/models", "list the models")?;
        let on_node: BTreeMap<_, _> =
            on_node.into_iter().map(|model| (model.active.name.clone(), model)).collect();
        let mut report = SyncReport::default();
        for folder in folders {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let before = self.source.state(&folder).fingerprint;
            if let Some(settled) = self.settled.get(&folder.name)
                && settled.fingerprint == before
                && settled.is_on(&on_node)
            {
                report.models.push(settled.synced.clone());
                continue;
            }
            let (on_node, mut synced) = self.sync(&folder, &on_node);
            for error in &mut synced.errors {
                *error = self.source.named(error);
            }
            if !synced.pushed.is_empty() && self.source.state(&folder).fingerprint != before {
                let text = "its files changed while they were sent, so the node may have a mixture: `weir models rm` removes the version";
                synced.errors.push(text.to_owned());
            } else if !synced.is_transient {
                let settled = Settled { fingerprint: before, on_node, synced: synced.settled() };
                self.settled.insert(folder.name, settled);
            }
            report.models.push(synced);
        }
        Ok(report)
    }

    /// Pushes the missing versions of a model, the lowest first, and compares the others. Also
    /// returns the versions that the node has then.
    fn sync(
        &mut self,
        folder: &ModelFolder,
        on_node: &BTreeMap<Name, Model>,
    ) -> (Option<(Name, BTreeSet<Version>)>, SyncedModel) {
        let mut synced = SyncedModel { name: folder.name.clone(), ..SyncedModel::default() };
        let model = match folder.read() {
            Ok(model) => model,
            Err(why) => {
                synced.errors.push(why);
                return (None, synced);
            }
        };
        synced.without_effect = model.without_effect.iter().cloned().collect();
        synced.errors.clone_from(&model.faults);
        let on_node = on_node.get(&model.name);
        let known = on_node.map(|model| &*model.versions).unwrap_or_default();
        let mut now: BTreeSet<Version> = known.iter().copied().collect();
        for (&version, file) in &model.versions {
            let version = Version(version);
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            if known.contains(&version) {
                match self.compare((folder, &model), version, file, known) {
                    Ok(()) => synced.unchanged.push(version),
                    Err(error) => synced.fail(version, &error),
                }
            } else if known.iter().all(|known| *known > version) && !known.is_empty() {
                synced.not_kept.push(version);
            } else {
                match self.push((folder, &model), version, file) {
                    Ok(pushed) => {
                        now.insert(version);
                        now.retain(|version| !pushed.removed_versions.contains(version));
                        synced.note_push(version, &pushed.removed_versions);
                    }
                    Err(error) => synced.fail(version, &error),
                }
            }
        }
        let newest = model.versions.keys().next_back().copied().map(Version);
        let active = on_node.map(|on_node| on_node.active.version);
        synced.newer_active = active.filter(|active| newest.is_some_and(|newest| *active > newest));
        (Some((model.name, now)), synced)
    }

    fn push(
        &mut self,
        (folder, model): (&ModelFolder, &RepositoryModel),
        version: Version,
        file: &Path,
    ) -> Result<ModelPushed> {
        let _readable = self.source.fetch(folder, version.0)?;
        let query = if self.allow_signature_change { "?allow_signature_change=true" } else { "" };
        let name = &model.name;
        let path = format!("/v1/models/{name}/versions/{version}{query}");
        let fields = manifest_fields(&model.manifest)?;
        let stop = Some(self.stop.clone());
        let pushed = ModelUpload { path: &path, name, file, fields, stop }.send(&self.client, self.output)?;
        self.source.remember(folder, version.0, pushed.model.digest);
        self.output.note(format_args!("pushed {name}:{version}"));
        if !model.without_effect.is_empty() {
            let settings: Vec<_> = model.without_effect.iter().map(String::as_str).collect();
            self.output.note(format_args!("{name}: without full effect: {}", settings.join(", ")));
        }
        Ok(pushed)
    }

    /// Checks that the version on the node is that of the repository. The settings are those of the
    /// highest version: `config.pbtxt` may have changed since an earlier one was pushed.
    fn compare(
        &mut self,
        (folder, model): (&ModelFolder, &RepositoryModel),
        version: Version,
        file: &Path,
        known: &[Version],
    ) -> Result<()> {
        let RepositoryModel { name, manifest, versions, .. } = model;
        let path = format!("/v1/models/{name}/versions/{version}");
        let on_node: ModelVersion = self.client.get(&path, &format!("show {name}:{version}"))?;
        let digest = self.digest(folder, version, file)?;
        let highest = versions.keys().next_back().map(|version| Version(*version));
        let what = if digest != on_node.digest {
            "another file"
        } else if highest == Some(version) && *manifest != on_node.manifest {
            "other settings"
        } else {
            return Ok(());
        };
        let next = known.iter().copied().chain(highest).map(|Version(version)| version).max();
        let next = next.unwrap_or_default().saturating_add(1);
        let text = format!("the node has {what} for it, and a version does not change");
        let hint = format!(
            "add the model as version {next}/, or remove version {version}: `weir models rm {name} --version {version}`"
        );
        Err(Problem::new(text).hint(hint).into())
    }
}

impl RepositorySync {
    /// The hash that the node computes of a version when it is pushed.
    fn digest(&mut self, folder: &ModelFolder, version: Version, file: &Path) -> Result<ContentHash> {
        if let Some(digest) = self.source.digest(folder, version.0) {
            return Ok(digest);
        }
        let _readable = self.source.fetch(folder, version.0)?;
        let parts = onnx::open(file)?;
        let digest = hash(Stoppable::new(parts.reader(), self.stop.clone()));
        let digest =
            digest.map_err(|error| Problem::new(format!("cannot read {}", file.display())).because(error))?;
        self.source.remember(folder, version.0, digest);
        Ok(digest)
    }
}

impl Settled {
    /// Whether the node has the same versions as after the last run.
    fn is_on(&self, on_node: &BTreeMap<Name, Model>) -> bool {
        self.on_node.as_ref().is_none_or(|(name, versions)| {
            let now = on_node.get(name).map(|model| &*model.versions).unwrap_or_default();
            now.iter().eq(versions)
        })
    }
}

impl SyncReport {
    /// The number of models with an error.
    pub(crate) fn failed(&self) -> usize {
        self.models.iter().filter(|model| !model.errors.is_empty()).count()
    }

    /// Whether anything was sent.
    pub(crate) fn has_pushed(&self) -> bool {
        self.models.iter().any(|model| !model.pushed.is_empty())
    }

    /// The errors, with the names of their models.
    pub(crate) fn errors(&self) -> impl Iterator<Item = String> {
        self.models.iter().flat_map(|SyncedModel { name, errors, .. }| {
            errors.iter().map(move |error| format!("model {name}: {error}"))
        })
    }

    /// The result for people, without models that did not change.
    pub(crate) fn text(&self) -> String {
        let mut text: String = self.errors().map(|error| format!("failed: {error}\n")).collect();
        for model in &self.models {
            // Writing to a string does not fail.
            let _ = model.describe(&mut text);
        }
        let count = |versions: fn(&SyncedModel) -> usize| self.models.iter().map(versions).sum::<usize>();
        let models = self.models.len();
        let pushed = count(|model| model.pushed.len());
        let unchanged = count(|model| model.unchanged.len());
        let _ = write!(text, "models: {models}, pushed versions: {pushed}, unchanged versions: {unchanged}");
        let failed = self.failed();
        let _ = if failed > 0 { writeln!(text, ", failed models: {failed}") } else { writeln!(text) };
        text
    }
}

impl SyncedModel {
    fn fail(&mut self, version: Version, error: &anyhow::Error) {
        let problem = error.downcast_ref::<Problem>();
        self.is_transient |= problem.is_some_and(Problem::is_transient);
        let advice = problem.and_then(Problem::advice);
        let advice = advice.map(|advice| format!("; {advice}")).unwrap_or_default();
        self.errors.push(format!("version {version}: {}{advice}", one_line(error)));
    }

    /// Notes that `version` was sent, and that the node removed older versions for it.
    fn note_push(&mut self, version: Version, removed: &[Version]) {
        self.pushed.push(version);
        for versions in [&mut self.pushed, &mut self.unchanged] {
            let not_kept = versions.extract_if(.., |version| removed.contains(version));
            self.not_kept.extend(not_kept);
        }
    }

    /// The same model at the next run, if nothing changes until then.
    fn settled(&self) -> Self {
        let mut settled = self.clone();
        settled.unchanged.append(&mut settled.pushed);
        settled
    }

    fn describe(&self, text: &mut String) -> std::fmt::Result {
        let Self { name, .. } = self;
        if !self.not_kept.is_empty() {
            let versions: Vec<_> = self.not_kept.iter().map(ToString::to_string).collect();
            let versions = versions.join(", ");
            writeln!(
                text,
                "{name}: the node has newer versions and does not keep {versions} (models.versions_keep)"
            )?;
        }
        if let Some(active) = self.newer_active {
            writeln!(
                text,
                "{name}: version {active} stays active; it is newer than those of the repository"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(name: &str) -> SyncedModel {
        SyncedModel { name: name.to_owned(), ..SyncedModel::default() }
    }

    #[test]
    fn report_names_failures_and_versions_that_are_not_kept() {
        let versions = |versions: &[u32]| versions.iter().copied().map(Version).collect::<Vec<_>>();
        let report = SyncReport {
            models: vec![
                SyncedModel { pushed: versions(&[2]), not_kept: versions(&[0, 1]), ..model("a") },
                SyncedModel { unchanged: versions(&[1]), newer_active: Some(Version(4)), ..model("c") },
                SyncedModel { errors: vec!["no".into(), "never".into()], ..model("d") },
            ],
        };
        let expected = "failed: model d: no\n\
            failed: model d: never\n\
            a: the node has newer versions and does not keep 0, 1 (models.versions_keep)\n\
            c: version 4 stays active; it is newer than those of the repository\n\
            models: 3, pushed versions: 1, unchanged versions: 1, failed models: 1\n";
        assert_eq!(report.text(), expected);
        assert!(report.has_pushed() && report.failed() == 1);
    }

    #[test]
    fn versions_that_the_node_removes_are_not_kept() {
        let mut synced = SyncedModel { unchanged: vec![Version(1)], ..model("a") };
        synced.note_push(Version(2), &[]);
        synced.note_push(Version(3), &[Version(1), Version(2)]);
        assert_eq!((&*synced.pushed, &*synced.unchanged), (&[Version(3)][..], &[][..]));
        synced.not_kept.sort();
        assert_eq!(synced.not_kept, [Version(1), Version(2)]);
    }

    #[test]
    fn only_failures_of_the_node_are_transient() {
        let mut synced = model("a");
        synced.fail(Version(3), &Problem::new("no model").hint("try another").into());
        assert_eq!(synced.errors, ["version 3: no model; try another"]);
        assert!(!synced.is_transient);
        let unreachable = Problem::new("no answer").exit(crate::error::Exit::Unreachable);
        synced.fail(Version(4), &unreachable.into());
        assert!(synced.is_transient);
    }
}
