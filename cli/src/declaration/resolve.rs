//! Completes the entries of a declaration by the files and variables that they name.

use super::declared::{
    Aliased, Content, Declared, DeclaredAliases, DeclaredCanary, DeclaredFunction, DeclaredModel,
    DeclaredWorkflow,
};
use super::document::{
    CanaryEntry, Document, FunctionEntry, LabelsEntry, LabelsSource, ModelEntry, ReuseEntry, WorkflowEntry,
};
use super::environment::expand;
use crate::error::{Problem, one_line};
use crate::files::{cannot_read, read_small};
use crate::onnx;
use crate::project::{Project, check_component};
use crate::settings::ConfigFile;
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use weir_types::api::Canary;
use weir_types::{
    ContentHash, FunctionManifest, Hasher, LABELS_BYTES_MAX, Labels, ModelLabels, ModelManifest, Name,
};
use weir_workflow::{DOCUMENT_BYTES_MAX, Plan};

/// Number of bytes that are hashed at a time.
const PIECE_BYTES: usize = 1 << 20;
/// The configuration file of a project.
const PROJECT_FILE: &str = "weir.toml";

/// A file of the declaration.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// Name of the file for messages.
    pub(super) label: String,
    /// Folder at which relative paths in the file start.
    pub(super) folder: PathBuf,
}

/// Collects the entries of all files, and their problems.
#[derive(Debug, Default)]
pub(super) struct Resolver {
    declared: Declared,
    /// The file that lists an item, by a text such as `functions.hello`.
    places: BTreeMap<String, String>,
    problems: Vec<String>,
}

impl Resolver {
    /// Adds a document of the file `place`.
    pub(super) fn add(&mut self, document: Document, place: &Place) {
        let Document { models, functions, workflows, triggers } = document;
        for (name, entry) in models.0 {
            self.alias(Aliased::MODELS, &name, entry.aliases.as_ref());
            if let Some(model) = self.resolved("models", &name, place, || model(entry, place)) {
                self.declared.models.insert(name, model);
            }
        }
        for (name, entry) in functions.0 {
            self.alias(Aliased::FUNCTIONS, &name, entry.aliases.as_ref());
            if let Some(function) = self.resolved("functions", &name, place, || function(&entry, place)) {
                self.declared.functions.insert(name, function);
            }
        }
        for (name, entry) in workflows.0 {
            self.alias(Aliased::WORKFLOWS, &name, entry.aliases.as_ref());
            if let Some(workflow) = self.resolved("workflows", &name, place, || workflow(entry, place)) {
                self.declared.workflows.insert(name, workflow);
            }
        }
        for (name, spec) in triggers.0 {
            if let Some(spec) = self.resolved("triggers", &name, place, || Ok(spec)) {
                self.declared.triggers.insert(name, spec);
            }
        }
    }

    /// The declared state, or all problems in one error.
    pub(super) fn finish(mut self) -> Result<Declared> {
        // Calls at /v2/models/NAME must be unambiguous, so a node refuses such a workflow.
        for name in self.declared.workflows.keys() {
            for kind in ["models", "functions"] {
                if let Some(label) = self.places.get(&format!("{kind}.{name}")) {
                    self.problems.push(format!("{label}: {kind}.{name} has the name of a workflow"));
                }
            }
        }
        match &self.problems[..] {
            [] => Ok(self.declared),
            [only] => Err(Problem::usage(only).into()),
            several => {
                let text =
                    format!("the declaration has {} problems:\n  {}", several.len(), several.join("\n  "));
                Err(Problem::usage(text).into())
            }
        }
    }

    fn alias(&mut self, collection: &'static str, name: &Name, aliases: Option<&DeclaredAliases>) {
        let Some(aliases) = aliases else { return };
        self.declared.aliases.insert(Aliased::new(collection, name), aliases.clone());
    }

    fn resolved<T>(
        &mut self,
        kind: &str,
        name: &Name,
        place: &Place,
        resolve: impl FnOnce() -> Result<T, String>,
    ) -> Option<T> {
        let path = format!("{kind}.{name}");
        if let Some(earlier) = self.places.insert(path.clone(), place.label.clone()) {
            self.problems.push(format!("{}: {path} is listed in {earlier}, too", place.label));
            return None;
        }
        let resolved = resolve().map_err(|why| self.problems.push(format!("{}: {path}: {why}", place.label)));
        resolved.ok()
    }
}

fn model(entry: ModelEntry, place: &Place) -> Result<DeclaredModel, String> {
    let content = match (entry.file, entry.digest) {
        (Some(file), None) => model_file(place.folder.join(file))?,
        (None, Some(digest)) => Content::Stored(digest),
        _ => {
            return Err(
                "needs either `file`, a path, or `digest`, the SHA-256 of the file that the node has".into(),
            );
        }
    };
    let labels =
        entry.labels.map_or_else(|| Ok(ModelLabels::default()), |labels| read_labels(labels, place))?;
    let manifest = ModelManifest {
        slots: entry.slots,
        device: entry.device,
        precision: entry.precision,
        slo_ms: entry.slo_ms,
        cost_slo: entry.cost_slo,
        batching: entry.batching,
        autosize: entry.autosize,
        cache_ttl_ms: entry.cache_ttl_ms,
        keep_alive_ms: entry.keep_alive_ms,
        copies_min: entry.copies_min,
        labels,
    };
    Ok(DeclaredModel { content, manifest })
}

/// The model in a file, or in a folder or archive with its weights.
fn model_file(path: PathBuf) -> Result<Content, String> {
    let parts = onnx::open(&path).map_err(|error| one_line(&error))?;
    let bytes = parts.length_bytes();
    let digest = hash(parts.reader()).map_err(|error| cannot_read(&path, &error))?;
    Ok(Content::File { path, digest, bytes })
}

/// The labels in a file with one per line.
pub(crate) fn labels_file(path: &Path) -> Result<Labels, String> {
    let text = String::from_utf8(read_small(path, LABELS_BYTES_MAX)?);
    Ok(Labels::from_lines(&text.map_err(|error| cannot_read(path, &error))?))
}

fn read_labels(labels: LabelsEntry, place: &Place) -> Result<ModelLabels, String> {
    let read = |source: LabelsSource| match source {
        // As a node reads the lines of a form: empty labels at the end have no meaning.
        LabelsSource::List(labels) => Ok(Labels::from_lines(&labels.join("\n"))),
        LabelsSource::File(file) => labels_file(&place.folder.join(file)),
    };
    Ok(match labels {
        LabelsEntry::OnlyOutput(source) => ModelLabels::OnlyOutput(read(source)?),
        LabelsEntry::ByOutput(outputs) => {
            let outputs = outputs.into_iter().map(|(output, source)| Ok((output, read(source)?)));
            ModelLabels::ByOutput(outputs.collect::<Result<_, String>>()?)
        }
    })
}

fn function(entry: &FunctionEntry, place: &Place) -> Result<DeclaredFunction, String> {
    let env = expand_all(&entry.env)?;
    let canary = entry.canary.as_ref().map(canary).transpose()?;
    let (content, manifest) = match (&entry.component, &entry.project, entry.digest) {
        (Some(component), None, None) => (component_file(place.folder.join(component))?, entry.manifest()),
        (None, None, Some(digest)) => (Content::Stored(digest), entry.manifest()),
        (None, Some(folder), None) => {
            let keys = entry.manifest_keys();
            if !keys.is_empty() {
                return Err(format!(
                    "{} cannot be set beside `project`: weir.toml of the project has the manifest, and only `env`, `canary` and `aliases` can be added to it",
                    keys.join(", ")
                ));
            }
            project(&place.folder.join(folder))?
        }
        _ => {
            return Err(
                "needs one of `component`, a path, `project`, a folder with a weir.toml, and `digest`, the SHA-256 of a component that the node has".into(),
            );
        }
    };
    let mut manifest = manifest;
    manifest.env.extend(env);
    Ok(DeclaredFunction { content, manifest, canary })
}

impl FunctionEntry {
    /// The manifest, without environment variables.
    fn manifest(&self) -> FunctionManifest {
        // All fields are listed, so that a new manifest key causes a compile error here.
        FunctionManifest {
            models: self.models.clone().unwrap_or_default(),
            env: BTreeMap::new(),
            secrets: self.secrets.clone().unwrap_or_default(),
            outbound_hosts: self.outbound_hosts.clone().unwrap_or_default(),
            objects: self.objects.clone().unwrap_or_default(),
            idempotent: self.idempotent.unwrap_or_default(),
            public: self.public.unwrap_or_default(),
            cache_ttl_ms: self.cache_ttl_ms,
            reuse: self.reuse.as_ref().and_then(|ReuseEntry(reuse)| reuse.clone()),
            slo_ms: self.slo_ms,
            cost_slo: self.cost_slo,
            limits: self.limits.clone().unwrap_or_default(),
        }
    }

    /// The keys of the manifest that the entry has, without `env`.
    fn manifest_keys(&self) -> Vec<&'static str> {
        let keys = [
            ("models", self.models.is_some()),
            ("secrets", self.secrets.is_some()),
            ("outbound_hosts", self.outbound_hosts.is_some()),
            ("objects", self.objects.is_some()),
            ("idempotent", self.idempotent.is_some()),
            ("public", self.public.is_some()),
            ("cache_ttl_ms", self.cache_ttl_ms.is_some()),
            ("reuse", self.reuse.is_some()),
            ("slo_ms", self.slo_ms.is_some()),
            ("cost_slo", self.cost_slo.is_some()),
            ("limits", self.limits.is_some()),
        ];
        keys.into_iter().filter(|(_, is_set)| *is_set).map(|(key, _)| key).collect()
    }
}

/// Replaces the references to variables of this process in the values.
fn expand_all(env: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, String> {
    let mut unset = BTreeSet::new();
    let lookup = |name: &str| std::env::var(name).ok();
    let mut expanded = BTreeMap::new();
    for (name, value) in env {
        let value = expand(value, &lookup, &mut unset).map_err(|why| format!("env.{name}: {why}"))?;
        expanded.insert(name.clone(), value);
    }
    if unset.is_empty() {
        return Ok(expanded);
    }
    let unset: Vec<_> = unset.into_iter().collect();
    Err(format!("env refers to variables that are not set here: {}", unset.join(", ")))
}

fn canary(entry: &CanaryEntry) -> Result<DeclaredCanary, String> {
    let CanaryEntry { percent, promote_after_ms } = *entry;
    let percents = Canary::PERCENT_MIN..=Canary::PERCENT_MAX;
    if !percents.contains(&percent) {
        let text =
            format!("canary.percent = {percent} is not from {} to {}", percents.start(), percents.end());
        return Err(text);
    }
    let times = 1..=Canary::PROMOTE_AFTER_MS_MAX;
    if let Some(after_ms) = promote_after_ms.filter(|after_ms| !times.contains(after_ms)) {
        return Err(format!("canary.promote_after_ms = {after_ms} is not from 1 to {}", times.end()));
    }
    Ok(DeclaredCanary { percent, promote_after_ms })
}

/// The component of the last build of a project, and the manifest in its `weir.toml`.
fn project(folder: &Path) -> Result<(Content, FunctionManifest), String> {
    let path = folder.join(PROJECT_FILE);
    let file = ConfigFile::read(&path).map_err(|error| one_line(&error))?;
    let project =
        Project::from_config(&file).ok_or_else(|| format!("{} has no [function]", path.display()))?;
    let component =
        project.built().map_err(|error| format!("{}; build it first with `weir build`", one_line(&error)))?;
    Ok((component_file(component)?, project.manifest()))
}

fn component_file(path: PathBuf) -> Result<Content, String> {
    let bytes = check_component(&path).map_err(|problem| one_line(&problem.into()))?;
    let file = File::open(&path).map_err(|error| cannot_read(&path, &error))?;
    let digest = hash(file).map_err(|error| cannot_read(&path, &error))?;
    Ok(Content::File { path, digest, bytes })
}

fn workflow(entry: WorkflowEntry, place: &Place) -> Result<DeclaredWorkflow, String> {
    let (text, shown) =
        match (entry.file, entry.document) {
            (Some(file), None) => {
                let path = place.folder.join(file);
                let text = String::from_utf8(read_small(&path, DOCUMENT_BYTES_MAX)?);
                (text.map_err(|error| cannot_read(&path, &error))?, path.display().to_string())
            }
            (None, Some(document)) => {
                let text = serde_json::to_string_pretty(&document).map_err(|error| error.to_string())?;
                (text, "document".to_owned())
            }
            _ => return Err(
                "needs either `file`, the path of a workflow document, or `document`, the document itself"
                    .into(),
            ),
        };
    let unsound = |error: &dyn Display| format!("{shown} is not a workflow: {error}");
    let document = weir_workflow::Document::parse(text.as_bytes()).map_err(|error| unsound(&error))?;
    Plan::new(&document, &|_, _| Ok(None)).map_err(|error| unsound(&error))?;
    Ok(DeclaredWorkflow {
        runs: document.steps.iter().filter_map(|(_, step)| step.run.clone()).collect(),
        slo_ms: entry.slo_ms.or(document.slo_ms).map(Into::into),
        cost_slo: entry.cost_slo.or(document.cost_slo),
        keeps_versions: entry.keep_versions,
        document: text,
    })
}

/// SHA-256 of everything that `source` contains.
pub(crate) fn hash(mut source: impl Read) -> std::io::Result<ContentHash> {
    let mut hasher = Hasher::default();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match source.read(&mut piece)? {
            0 => return Ok(hasher.finish()),
            count => hasher.update(&piece[..count]),
        }
    }
}
