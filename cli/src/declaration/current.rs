//! The part of a node's state that declarations describe.

use super::declared::{Aliased, Declared, DeclaredAliases, DeclaredFunction, DeclaredModel};
use crate::client::Client;
use crate::error::Problem;
use crate::output::OutputSettings;
use crate::uploads::{Component, ComponentUpload, WorkflowUpload};
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use weir_types::api::{
    Aliases, Canary, Function, FunctionVersion, Model, Secret, Trigger, TriggerSpec, Workflow,
    WorkflowVersion,
};
use weir_types::{
    ContentHash, Cost, ErrorCode, FunctionManifest, ModelManifest, ModelRef, Name, Port, SecretName, Version,
};

/// Functions, models, workflows and triggers of a tenant.
#[derive(Debug, Clone, Default)]
pub(crate) struct Current {
    pub(crate) models: BTreeMap<Name, CurrentModel>,
    pub(crate) functions: BTreeMap<Name, CurrentFunction>,
    pub(crate) workflows: BTreeMap<Name, CurrentWorkflow>,
    pub(crate) triggers: BTreeMap<Name, TriggerSpec>,
    pub(crate) aliases: BTreeMap<Aliased, DeclaredAliases>,
}

/// A function, with the versions that serve calls.
#[derive(Debug, Clone)]
pub(crate) struct CurrentFunction {
    pub(crate) active: FunctionState,
    pub(crate) canary: Option<(Canary, FunctionState)>,
}

/// A version of a function.
#[derive(Debug, Clone)]
pub(crate) struct FunctionState {
    pub(crate) version: Version,
    pub(crate) digest: ContentHash,
    /// The manifest without environment variables.
    pub(crate) manifest: FunctionManifest,
    pub(crate) env: EnvState,
}

/// Environment variables of a version. A node does not show their values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EnvState {
    /// The names. The values are unknown, or differ from the declared values.
    Names(BTreeSet<String>),
    /// The node confirmed these values.
    Values(BTreeMap<String, String>),
}

/// The newest version of a model.
#[derive(Debug, Clone)]
pub(crate) struct CurrentModel {
    pub(crate) digest: ContentHash,
    pub(crate) manifest: ModelManifest,
    pub(crate) outputs: Vec<Port>,
}

/// The active version of a workflow.
#[derive(Debug, Clone)]
pub(crate) struct CurrentWorkflow {
    pub(crate) document: String,
    pub(crate) slo_ms: Option<u64>,
    pub(crate) cost_slo: Option<Cost>,
    /// Models, functions and workflows that the steps run.
    pub(crate) runs: BTreeSet<ModelRef>,
    /// Whether the steps run the newest versions that the document permits.
    pub(crate) is_up_to_date: bool,
}

impl Current {
    /// Reads the state of a node, in detail for what `declared` names. Changes nothing.
    pub(crate) fn read(client: &Client, declared: &Declared) -> Result<Self> {
        check_secrets(client, declared)?;
        let mut current = Self::default();
        for function in client.get::<Vec<Function>>("/v1/functions", "list the functions")? {
            let name = function.active.name.clone();
            current.alias(Aliased::FUNCTIONS, &name, &function.aliases);
            let declared = declared.functions.get(&name);
            current.functions.insert(name, CurrentFunction::read(client, function, declared)?);
        }
        for model in client.get::<Vec<Model>>("/v1/models", "list the models")? {
            let name = model.active.name.clone();
            current.alias(Aliased::MODELS, &name, &model.aliases);
            let declared = declared.models.get(&name);
            current.models.insert(name, CurrentModel::read(client, model, declared)?);
        }
        for workflow in client.get::<Vec<Workflow>>("/v1/workflows", "list the workflows")? {
            let name = workflow.active.name.clone();
            current.alias(Aliased::WORKFLOWS, &name, &workflow.aliases);
            let mut found = CurrentWorkflow::from_api(workflow.active);
            if let Some(declared) = declared.workflows.get(&name)
                && !declared.keeps_versions
                && declared.document == found.document
                && (declared.slo_ms, declared.cost_slo) == (found.slo_ms, found.cost_slo)
            {
                found.is_up_to_date = is_up_to_date(client, &name, &found)?;
            }
            current.workflows.insert(name, found);
        }
        for trigger in client.get::<Vec<Trigger>>("/v1/triggers", "list the triggers")? {
            let Trigger { name, spec, .. } = trigger;
            // Lists leave out the bodies.
            let spec = match declared.triggers.get(&name) {
                Some(_) => client.get::<Trigger>(&format!("/v1/triggers/{name}"), "show a trigger")?.spec,
                None => spec,
            };
            current.triggers.insert(name, spec);
        }
        Ok(current)
    }

    fn alias(&mut self, collection: &'static str, name: &Name, aliases: &Aliases) {
        let versions = aliases.iter().map(|(alias, target)| (alias.clone(), target.version)).collect();
        self.aliases.insert(Aliased::new(collection, name), versions);
    }
}

impl CurrentFunction {
    fn read(client: &Client, function: Function, declared: Option<&DeclaredFunction>) -> Result<Self> {
        let Function { active, canary, .. } = function;
        let name = active.name.clone();
        let mut state = Self { active: FunctionState::from_api(active), canary: None };
        let Some(declared) = declared else { return Ok(state) };
        state.active.confirm_env(client, &name, declared, None)?;
        if let Some(canary) = canary {
            let what = format!("show version {} of {name}", canary.version);
            let version = client.get(&format!("/v1/functions/{name}/versions/{}", canary.version), &what)?;
            let mut version = FunctionState::from_api(version);
            version.confirm_env(client, &name, declared, Some(canary))?;
            state.canary = Some((canary, version));
        }
        Ok(state)
    }
}

impl FunctionState {
    fn from_api(version: FunctionVersion) -> Self {
        let FunctionVersion { version, digest, manifest, env_names, .. } = version;
        Self { version, digest, manifest, env: EnvState::Names(env_names.into_iter().collect()) }
    }

    /// Whether everything is as declared that the node shows.
    fn is_visibly(&self, declared: &DeclaredFunction) -> bool {
        let manifest = FunctionManifest { env: BTreeMap::new(), ..declared.manifest.clone() };
        let has_names = match &self.env {
            EnvState::Names(names) => names.iter().eq(declared.manifest.env.keys()),
            EnvState::Values(values) => *values == declared.manifest.env,
        };
        self.digest == declared.content.digest() && self.manifest == manifest && has_names
    }

    /// Asks the node whether the version has the declared values, if the rest is as declared.
    fn confirm_env(
        &mut self,
        client: &Client,
        name: &Name,
        declared: &DeclaredFunction,
        canary: Option<Canary>,
    ) -> Result<()> {
        if !self.is_visibly(declared) {
            return Ok(());
        }
        let is_equal = declared.manifest.env.is_empty() || {
            let upload = ComponentUpload {
                name,
                component: Component::Stored(self.digest),
                manifest: &declared.manifest,
                strict: false,
                role: canary.map(|canary| ("canary", canary.percent.to_string())).into_iter().collect(),
            };
            upload.dry_run(client)?.function.version == self.version
        };
        if is_equal {
            self.env = EnvState::Values(declared.manifest.env.clone());
        }
        Ok(())
    }
}

impl CurrentModel {
    fn read(client: &Client, model: Model, declared: Option<&DeclaredModel>) -> Result<Self> {
        // Lists leave out the labels.
        let model = match declared {
            Some(_) => client.get(&format!("/v1/models/{}", model.active.name), "show a model")?,
            None => model,
        };
        let Model { active, .. } = model;
        Ok(Self { digest: active.digest, manifest: active.manifest, outputs: active.signature.outputs })
    }
}

impl CurrentWorkflow {
    /// Whether a newer version may replace a version that the steps run.
    pub(super) fn may_move(&self) -> bool {
        self.runs
            .iter()
            .any(|target| target.version.as_ref().is_none_or(|version| version.number().is_none()))
    }

    pub(super) fn from_api(active: WorkflowVersion) -> Self {
        let document = weir_workflow::Document::parse(active.document.as_bytes()).unwrap_or_default();
        Self {
            slo_ms: active.slo_ms,
            cost_slo: active.cost_slo,
            runs: document.steps.iter().filter_map(|(_, step)| step.run.clone()).collect(),
            document: active.document,
            is_up_to_date: true,
        }
    }
}

/// Checks that the node has the secrets that the declared functions get. A declaration has no values.
fn check_secrets(client: &Client, declared: &Declared) -> Result<()> {
    let functions = declared.functions.values();
    let mut wanted: BTreeSet<&SecretName> =
        functions.flat_map(|function| function.manifest.secrets.iter().map(|(_, name)| name)).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    for secret in client.get::<Vec<Secret>>("/v1/secrets", "list the secrets")? {
        wanted.remove(&secret.name);
    }
    let missing: Vec<_> = wanted.into_iter().map(SecretName::as_str).collect();
    let Some(first) = missing.first() else { return Ok(()) };
    let text = format!("the node lacks secrets that the declared functions get: {}", missing.join(", "));
    Err(Problem::new(text).hint(format!("store each of them, as with `weir secrets set {first}`")).into())
}

/// Whether deploying the document of a workflow again would change nothing.
pub(super) fn is_up_to_date(client: &Client, name: &Name, found: &CurrentWorkflow) -> Result<bool> {
    let CurrentWorkflow { document, slo_ms, cost_slo, .. } = found;
    let upload = WorkflowUpload { name, document, slo_ms: *slo_ms, cost_slo: *cost_slo, dry_run: true };
    match upload.send(client, OutputSettings { json: false, quiet: true }) {
        Ok(deployed) => Ok(deployed.workflow.active),
        // A target is missing or does not fit. If the declaration changes the target, the workflow is
        // deployed after it; otherwise a deploy could not help.
        Err(error) if refusal_of(&error) == Some(ErrorCode::InvalidWorkflow) => Ok(true),
        Err(error) => Err(error),
    }
}

fn refusal_of(error: &anyhow::Error) -> Option<ErrorCode> {
    error.downcast_ref::<Problem>().and_then(Problem::code)
}
