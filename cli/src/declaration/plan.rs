//! The changes that turn a node's state into the declared state. Pure.

mod function;
mod order;

use super::current::{Current, CurrentModel, CurrentWorkflow};
use super::declared::{Aliased, Content, Declared, DeclaredAliases, DeclaredModel, DeclaredWorkflow, Kind};
use super::fields::{FieldChange, changes};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use weir_types::api::TriggerSpec;
use weir_types::{Alias, ModelManifest, ModelRef, Name};

/// Changes in the order in which they are made.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    /// Number of declared items that are as declared.
    pub(crate) unchanged: usize,
}

/// A change of an item.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Step {
    pub(crate) kind: Kind,
    pub(crate) name: Name,
    pub(crate) action: Action,
    /// Settings that differ, for an existing item.
    pub(crate) fields: Vec<FieldChange>,
    /// Length of the file to upload; 0 if the node has the content already.
    pub(crate) upload_bytes: u64,
    /// Path segment of the collection of the item whose aliases change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) of: Option<&'static str>,
}

/// How an item changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Action {
    Create,
    /// A new version.
    Update,
    /// A new version of a function that gets a share of the calls, or another share of the same
    /// version.
    Canary,
    /// The canary of a function becomes the active version.
    Promote,
    Delete,
}

impl Action {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Canary => "canary",
            Self::Promote => "promote",
            Self::Delete => "delete",
        }
    }
}

impl Plan {
    /// Compares `declared` with `current`. Items of the kinds in `prune` that are not declared are
    /// deleted. The error lists what prevents a plan.
    pub(crate) fn new(
        declared: &Declared,
        current: &Current,
        prune: &BTreeSet<Kind>,
    ) -> Result<Self, Vec<String>> {
        let mut steps: Vec<Step> = Vec::new();
        let mut problems = Vec::new();
        for (name, model) in &declared.models {
            let step = model_step(name, model, current.models.get(name));
            step.map_or_else(|problem| problems.push(problem), |step| steps.extend(step));
        }
        for (name, function) in &declared.functions {
            let step = function::step(name, function, current.functions.get(name));
            step.map_or_else(|problem| problems.push(problem), |step| steps.extend(step));
        }
        steps.extend(alias_steps(declared, current, |of| of != Aliased::WORKFLOWS));
        match order::targets_first(&declared.workflows, |workflow| &workflow.runs) {
            Ok(names) => {
                // A changed alias may move a step.
                let is_new = |step: &&Step| step.action != Action::Canary;
                let changed: Vec<Name> = steps.iter().filter(is_new).map(|step| step.name.clone()).collect();
                let mut moved: BTreeSet<&Name> = changed.iter().collect();
                for name in names {
                    let workflow = &declared.workflows[name];
                    let step = workflow_step(name, workflow, current.workflows.get(name), &moved);
                    if step.is_some() {
                        moved.insert(name);
                    }
                    steps.extend(step);
                }
            }
            Err(cycle) => {
                let cycle: Vec<_> = cycle.iter().map(ToString::to_string).collect();
                problems.push(format!("these workflows run each other in a cycle: {}", cycle.join(", ")));
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        steps.extend(alias_steps(declared, current, |of| of == Aliased::WORKFLOWS));
        let triggers = declared.triggers.iter();
        steps
            .extend(triggers.filter_map(|(name, spec)| trigger_step(name, spec, current.triggers.get(name))));
        let all = declared.models.len() + declared.functions.len() + declared.workflows.len();
        let unchanged = all + declared.triggers.len() + declared.aliases.len() - steps.len();
        steps.extend(deletions(declared, current, prune));
        Ok(Self { steps, unchanged })
    }

    /// The names that the plan deletes.
    pub(crate) fn deletions(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(|step| step.action == Action::Delete)
    }
}

fn model_step(
    name: &Name,
    declared: &DeclaredModel,
    current: Option<&CurrentModel>,
) -> Result<Option<Step>, String> {
    let step = |action: Action, fields: Vec<FieldChange>| {
        let upload_bytes = declared.content.bytes().ok_or_else(|| {
            let why = match action {
                Action::Create => "the node has no such model",
                _ => "the node has another file or other settings, and a push needs the file",
            };
            format!("models.{name} has only a `digest`, and {why}: give `file`")
        })?;
        Ok(Some(Step { kind: Kind::Model, name: name.clone(), action, fields, upload_bytes, of: None }))
    };
    let Some(current) = current else { return step(Action::Create, Vec::new()) };
    let mut fields = content_change("file", &declared.content, current.digest);
    // A node names the outputs of labels. Labels that do not fit are sent, and the node explains why.
    let labels = declared.manifest.labels.clone();
    let labels = labels.clone().for_outputs(&current.outputs).unwrap_or(labels);
    let manifest = ModelManifest { labels, ..declared.manifest.clone() };
    fields.extend(changes(&current.manifest, &manifest));
    if fields.is_empty() { Ok(None) } else { step(Action::Update, fields) }
}

/// The changes of the declared aliases of some collections. A list of aliases is complete.
fn alias_steps(declared: &Declared, current: &Current, is_of: impl Fn(&'static str) -> bool) -> Vec<Step> {
    let none = BTreeMap::new();
    let chosen = declared.aliases.iter().filter(|(of, _)| is_of(of.collection));
    let step = |(of, aliases): (&Aliased, &DeclaredAliases)| {
        let before = current.aliases.get(of).unwrap_or(&none);
        let names: BTreeSet<_> = aliases.keys().chain(before.keys()).collect();
        let differing = names.into_iter().filter(|alias| aliases.get(*alias) != before.get(*alias));
        let change = |alias: &Alias| FieldChange::new(alias.as_str(), before.get(alias), aliases.get(alias));
        let fields: Vec<_> = differing.map(change).collect();
        let name = of.name.clone();
        let of = Some(of.collection);
        let step = Step { kind: Kind::Aliases, name, action: Action::Update, fields, upload_bytes: 0, of };
        (!step.fields.is_empty()).then_some(step)
    };
    chosen.filter_map(step).collect()
}

/// The change of a component or model, if its hash differs.
fn content_change(field: &str, declared: &Content, current: weir_types::ContentHash) -> Vec<FieldChange> {
    let digest = declared.digest();
    if digest == current { Vec::new() } else { vec![FieldChange::new(field, current, digest)] }
}

/// `moved`: the models, functions and workflows that get another version before.
fn workflow_step(
    name: &Name,
    declared: &DeclaredWorkflow,
    current: Option<&CurrentWorkflow>,
    moved: &BTreeSet<&Name>,
) -> Option<Step> {
    let upload_bytes = declared.document.len() as u64;
    let step = |action, fields| {
        Some(Step { kind: Kind::Workflow, name: name.clone(), action, fields, upload_bytes, of: None })
    };
    let Some(current) = current else { return step(Action::Create, Vec::new()) };
    let mut fields = Vec::new();
    if declared.document != current.document {
        fields.push(FieldChange::new("document", hash(&current.document), hash(&declared.document)));
    }
    if declared.slo_ms != current.slo_ms {
        fields.push(FieldChange::new("slo_ms", current.slo_ms, declared.slo_ms));
    }
    if declared.cost_slo != current.cost_slo {
        fields.push(FieldChange::new("cost_slo", current.cost_slo, declared.cost_slo));
    }
    // An alias may follow the new version.
    let is_free =
        |target: &&ModelRef| target.version.as_ref().is_none_or(|version| version.number().is_none());
    let targets = declared.runs.iter().filter(is_free);
    let mut targets = targets.filter(|target| moved.contains(&target.name)).peekable();
    if fields.is_empty() && !declared.keeps_versions && (targets.peek().is_some() || !current.is_up_to_date) {
        let targets: Vec<String> = targets.map(|target| target.name.to_string()).collect();
        let of = if targets.is_empty() { "what the steps run".to_owned() } else { targets.join(", ") };
        fields.push(FieldChange::new("steps", (), format!("the newest version of {of}")));
    }
    if fields.is_empty() { None } else { step(Action::Update, fields) }
}

fn trigger_step(name: &Name, declared: &TriggerSpec, current: Option<&TriggerSpec>) -> Option<Step> {
    let step = |action, fields| {
        Some(Step { kind: Kind::Trigger, name: name.clone(), action, fields, upload_bytes: 0, of: None })
    };
    let Some(current) = current else { return step(Action::Create, Vec::new()) };
    let fields = changes(current, declared);
    if fields.is_empty() { None } else { step(Action::Update, fields) }
}

fn hash(text: &str) -> weir_types::ContentHash {
    weir_types::ContentHash::from_content(text.as_bytes())
}

/// Deletions, in the reverse of the order in which items are made.
fn deletions(declared: &Declared, current: &Current, prune: &BTreeSet<Kind>) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut delete = |kind, name: &Name| {
        if prune.contains(&kind) {
            let action = Action::Delete;
            steps.push(Step {
                kind,
                name: name.clone(),
                action,
                fields: Vec::new(),
                upload_bytes: 0,
                of: None,
            });
        }
    };
    let triggers = current.triggers.keys().rev().filter(|name| !declared.triggers.contains_key(*name));
    triggers.for_each(|name| delete(Kind::Trigger, name));
    // Workflows of a node have no cycles.
    let workflows = order::targets_first(&current.workflows, |workflow| &workflow.runs).unwrap_or_default();
    let workflows = workflows.into_iter().rev().filter(|name| !declared.workflows.contains_key(*name));
    workflows.for_each(|name| delete(Kind::Workflow, name));
    let functions = current.functions.keys().rev().filter(|name| !declared.functions.contains_key(*name));
    functions.for_each(|name| delete(Kind::Function, name));
    let models = current.models.keys().rev().filter(|name| !declared.models.contains_key(*name));
    models.for_each(|name| delete(Kind::Model, name));
    steps
}

#[cfg(test)]
mod tests;
