//! The change of one function, with canaries.

use super::{Action, Step, content_change};
use crate::declaration::current::{CurrentFunction, EnvState, FunctionState};
use crate::declaration::declared::{DeclaredFunction, Kind};
use crate::declaration::fields::{FieldChange, changes};
use std::collections::{BTreeMap, BTreeSet};
use weir_types::{FunctionManifest, Name};

/// The change that makes a function as declared; `None` if it is so already. A function is as
/// declared if its active version is, or if its canary is and has the declared share.
pub(super) fn step(
    name: &Name,
    declared: &DeclaredFunction,
    current: Option<&CurrentFunction>,
) -> Result<Option<Step>, String> {
    let step = |action, fields, upload_bytes| {
        Some(Step { kind: Kind::Function, name: name.clone(), action, fields, upload_bytes, of: None })
    };
    let Some(current) = current else {
        let bytes = declared.content.bytes().ok_or_else(|| {
            format!(
                "functions.{name} has only a `digest`, and the node has no such function: give `component`"
            )
        })?;
        return Ok(step(Action::Create, Vec::new(), bytes));
    };
    let fields = differences(declared, &current.active);
    if fields.is_empty() {
        return Ok(None);
    }
    if let Some((canary, version)) = &current.canary
        && differences(declared, version).is_empty()
    {
        let Some(share) = declared.canary else {
            let field = FieldChange::new("active version", current.active.version, version.version);
            return Ok(step(Action::Promote, vec![field], 0));
        };
        if share.is_share_of(canary) {
            return Ok(None);
        }
        let mut fields = Vec::new();
        if canary.percent != share.percent {
            fields.push(FieldChange::new("canary.percent", canary.percent, share.percent));
        }
        if canary.promote_after_ms != share.promote_after_ms {
            let field = "canary.promote_after_ms";
            fields.push(FieldChange::new(field, canary.promote_after_ms, share.promote_after_ms));
        }
        return Ok(step(Action::Canary, fields, 0));
    }
    let mut fields = fields;
    if let Some((canary, _)) = &current.canary {
        fields.push(FieldChange::new("canary", format!("version {}", canary.version), ()));
    }
    let upload_bytes = match declared.content.bytes() {
        Some(bytes) if !is_stored(declared, current) => bytes,
        _ => 0,
    };
    let action = if declared.canary.is_some() { Action::Canary } else { Action::Update };
    Ok(step(action, fields, upload_bytes))
}

/// Whether a serving version has the declared component, so that no upload is necessary.
fn is_stored(declared: &DeclaredFunction, current: &CurrentFunction) -> bool {
    let canary = current.canary.iter().map(|(_, version)| version);
    let mut versions = canary.chain([&current.active]);
    versions.any(|version| version.digest == declared.content.digest())
}

fn differences(declared: &DeclaredFunction, current: &FunctionState) -> Vec<FieldChange> {
    let mut fields = content_change("component", &declared.content, current.digest);
    let manifest = FunctionManifest { env: BTreeMap::new(), ..declared.manifest.clone() };
    fields.extend(changes(&current.manifest, &manifest));
    fields.extend(env_differences(&declared.manifest.env, &current.env, fields.is_empty()));
    fields
}

/// The variables that differ. The node is asked about values only if the rest is as declared
/// (`is_rest_equal`), so unknown values are a difference only then, without their names.
fn env_differences(
    declared: &BTreeMap<String, String>,
    current: &EnvState,
    is_rest_equal: bool,
) -> Vec<FieldChange> {
    let names: BTreeSet<&String> = match current {
        EnvState::Values(values) if values == declared => return Vec::new(),
        EnvState::Values(values) => values.keys().collect(),
        EnvState::Names(names) => names.iter().collect(),
    };
    if names.iter().copied().eq(declared.keys()) {
        let change = FieldChange::hidden("env".to_owned(), true, true);
        return if is_rest_equal { vec![change] } else { Vec::new() };
    }
    let all: BTreeSet<&String> = declared.keys().chain(names.iter().copied()).collect();
    let differing = all.into_iter().filter(|name| names.contains(name) != declared.contains_key(*name));
    differing
        .map(|name| {
            FieldChange::hidden(format!("env.{name}"), names.contains(name), declared.contains_key(name))
        })
        .collect()
}
