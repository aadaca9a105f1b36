//! The changes of a plan, one after the other.

use crate::client::Client;
use crate::commands::canary;
use crate::declaration::{Action, Content, Declared, DeclaredCanary, DeclaredModel, Kind, Plan, Step};
use crate::error::{Exit, Problem};
use crate::output::OutputSettings;
use crate::uploads::{Component, ComponentUpload, ModelUpload, WorkflowUpload, manifest_fields};
use anyhow::Result;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use ureq::SendBody;
use ureq::http::Method;
use weir_types::api::{AliasTarget, Canary, Deployed, Function, Trigger};
use weir_types::{ContentHash, Name, Version};

/// An apply of a declaration.
pub(super) struct Apply {
    pub(super) declared: Declared,
    pub(super) client: Client,
    pub(super) output: OutputSettings,
    /// Wait for the promotion of canaries.
    pub(super) wait: bool,
    pub(super) allow_signature_change: bool,
    /// Set to stop before the next change.
    pub(super) stop: Arc<AtomicBool>,
}

/// Result of an apply, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Applied {
    changes: Vec<AppliedStep>,
    unchanged: usize,
}

#[derive(Debug, Serialize)]
struct AppliedStep {
    #[serde(flatten)]
    step: Step,
    outcome: Outcome,
    /// The version that the change made or activated.
    version: Option<Version>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Outcome {
    Done,
    Failed,
    NotDone,
}

/// The result of an applied change.
struct Made {
    version: Option<Version>,
    /// A canary that the node will promote or roll back.
    canary: Option<Canary>,
}

impl Apply {
    /// Makes the changes of `plan`, until the first error, and prints the result.
    pub(super) fn run(self, plan: Plan) -> Result<()> {
        let Plan { steps, unchanged } = plan;
        let mut changes = Vec::with_capacity(steps.len());
        let mut failure = None;
        let mut canaries = Vec::new();
        for step in steps {
            let stopped = failure.is_none() && self.stop.load(Ordering::Relaxed);
            if stopped {
                failure = Some(Problem::new("interrupted").exit(Exit::Interrupted).into());
            }
            if failure.is_some() {
                changes.push(AppliedStep { step, outcome: Outcome::NotDone, version: None });
                continue;
            }
            match self.make(&step) {
                Ok(Made { version, canary }) => {
                    self.say(&step, version)?;
                    canaries.extend(canary.map(|canary| (step.name.clone(), canary)));
                    changes.push(AppliedStep { step, outcome: Outcome::Done, version });
                }
                Err(error) => {
                    failure = Some(error);
                    changes.push(AppliedStep { step, outcome: Outcome::Failed, version: None });
                }
            }
        }
        let applied = Applied { changes, unchanged };
        let waited = if failure.is_none() && self.wait { self.wait_for(canaries) } else { Ok(()) };
        self.output.result(&applied, |applied| text(applied, failure.is_some()))?;
        match failure {
            None => waited,
            Some(error) => Err(describe(error, &applied)),
        }
    }

    /// Reports a change that was made.
    fn say(&self, step: &Step, version: Option<Version>) -> Result<()> {
        if self.output.json {
            return Ok(());
        }
        let Step { kind, name, action, .. } = step;
        let version = version.map(|version| format!(" (version {version})")).unwrap_or_default();
        self.output.line(&format_args!("done: {} {kind} {name}{version}", action.as_str()))
    }

    fn wait_for(&self, canaries: Vec<(Name, Canary)>) -> Result<()> {
        for (name, canary) in canaries.into_iter().filter(|(_, canary)| canary.promote_after_ms.is_some()) {
            let function: Function = canary::wait(&name, canary, &self.client, self.output)?;
            self.output.note(format!("{name} is at version {} now", function.active.version));
        }
        Ok(())
    }

    /// Makes a change.
    fn make(&self, step: &Step) -> Result<Made> {
        let Step { kind, name, action, .. } = step;
        if *action == Action::Delete {
            let path = match kind {
                Kind::Model => format!("/v1/models/{name}"),
                Kind::Function => format!("/v1/functions/{name}"),
                Kind::Workflow => format!("/v1/workflows/{name}"),
                Kind::Trigger => format!("/v1/triggers/{name}"),
                // A plan has no such change.
                Kind::Aliases => return Ok(Made { version: None, canary: None }),
            };
            self.client.delete(&path, &format!("remove {kind} {name}"))?;
            return Ok(Made { version: None, canary: None });
        }
        match kind {
            Kind::Model => self.push(name),
            Kind::Function => self.deploy(step),
            Kind::Workflow => {
                let workflow = self.declared.workflows.get(name).ok_or_else(|| undeclared(step))?;
                let upload = WorkflowUpload {
                    name,
                    document: &workflow.document,
                    slo_ms: workflow.slo_ms,
                    cost_slo: workflow.cost_slo,
                    dry_run: false,
                };
                let deployed = upload.send(&self.client, self.output)?;
                Ok(Made { version: Some(deployed.workflow.version), canary: None })
            }
            Kind::Aliases => self.set_aliases(step),
            Kind::Trigger => {
                let spec = self.declared.triggers.get(name).ok_or_else(|| undeclared(step))?;
                let body = SendBody::from_json(spec)?;
                let what = format!("store the trigger {name}");
                self.client.call::<Trigger>(Method::PUT, &format!("/v1/triggers/{name}"), &what, body)?;
                Ok(Made { version: None, canary: None })
            }
        }
    }

    fn set_aliases(&self, step: &Step) -> Result<Made> {
        let Step { name, fields, of, .. } = step;
        let collection = of.ok_or_else(|| undeclared(step))?;
        for change in fields {
            let path = format!("/v1/{collection}/{name}/aliases/{}", change.field);
            let what = format!("set the alias {} of {name}", change.field);
            if change.to.is_null() {
                self.client.delete(&path, &what)?;
            } else {
                let request = serde_json::json!({ "version": change.to });
                self.client.put_json::<AliasTarget>(&path, &what, &request)?;
            }
        }
        Ok(Made { version: None, canary: None })
    }

    fn push(&self, name: &Name) -> Result<Made> {
        let Some(DeclaredModel { content: Content::File { path: file, digest, .. }, manifest }) =
            self.declared.models.get(name)
        else {
            return Err(Problem::new(format!("model {name} has no file to push")).into());
        };
        let query = if self.allow_signature_change { "?allow_signature_change=true" } else { "" };
        let path = format!("/v1/models/{name}{query}");
        let upload = ModelUpload { path: &path, name, file, fields: manifest_fields(manifest)?, stop: None };
        let pushed = upload.send(&self.client, self.output)?;
        check_digest(name, *digest, pushed.model.digest)?;
        Ok(Made { version: Some(pushed.model.version), canary: None })
    }

    fn deploy(&self, step: &Step) -> Result<Made> {
        let name = &step.name;
        let function = self.declared.functions.get(name).ok_or_else(|| undeclared(step))?;
        if step.action == Action::Promote {
            let path = format!("/v1/functions/{name}/promote");
            let what = format!("promote the canary of {name}");
            let promoted: Function = self.client.call(Method::POST, &path, &what, SendBody::none())?;
            return Ok(Made { version: Some(promoted.active.version), canary: None });
        }
        let digest = function.content.digest();
        let component = match &function.content {
            Content::File { path, .. } if step.upload_bytes > 0 => Component::File(path),
            _ => Component::Stored(digest),
        };
        let upload = ComponentUpload {
            name,
            component,
            manifest: &function.manifest,
            strict: false,
            role: function.canary.map(DeclaredCanary::query).unwrap_or_default(),
        };
        let deployed: Deployed = upload.send(&self.client, self.output)?;
        check_digest(name, digest, deployed.function.digest)?;
        deployed.warnings.iter().for_each(|warning| self.output.note(format!("{name}: {warning}")));
        Ok(Made { version: Some(deployed.function.version), canary: deployed.canary })
    }
}

/// The file may change between the plan and the upload.
fn check_digest(name: &Name, planned: ContentHash, sent: ContentHash) -> Result<()> {
    if planned == sent {
        return Ok(());
    }
    let text =
        format!("the file of {name} changed while it was sent, so the node has another file than planned");
    Err(Problem::new(text).hint("run the command again when no build writes the file").into())
}

fn undeclared(step: &Step) -> Problem {
    Problem::new(format!("{} {} is not in the declaration", step.kind, step.name))
}

/// The last lines of the result.
fn text(applied: &Applied, has_failed: bool) -> String {
    let lines = applied.changes.iter().filter(|change| change.outcome != Outcome::Done).map(|change| {
        let what = if change.outcome == Outcome::Failed { "failed" } else { "not done" };
        let Step { kind, name, action, .. } = &change.step;
        format!("{what}: {} {kind} {name}\n", action.as_str())
    });
    let mut text: String = lines.collect();
    if !has_failed && !applied.changes.is_empty() {
        text.push_str(&format!("applied {} of {} changes\n", done(applied), applied.changes.len()));
    }
    text
}

fn done(applied: &Applied) -> usize {
    applied.changes.iter().filter(|change| change.outcome == Outcome::Done).count()
}

/// Adds the progress to the error that ended an apply.
fn describe(error: anyhow::Error, applied: &Applied) -> anyhow::Error {
    let count = applied.changes.len();
    let done = done(applied);
    error.context(format!("{done} of {count} changes were made; the same command continues with the others"))
}
