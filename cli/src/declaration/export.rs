//! A node's state as a declaration.

use super::current::{CurrentWorkflow, is_up_to_date};
use super::fields::leaves;
use crate::client::Client;
use anyhow::Result;
use serde::Serialize;
use serde_json::{Map, Value, json};
use weir_types::api::{
    Aliases, Function, MISSED_AGE_MS_DEFAULT, MissedPolicy, Model, OverlapPolicy, Trigger, TriggerRequest,
    TriggerSource, TriggerSpec, TriggerTarget, Workflow,
};
use weir_types::{FunctionManifest, ModelManifest};

/// A declaration, and the files to which it refers.
#[derive(Debug)]
pub(crate) struct Export {
    /// Text of the declaration, in YAML.
    pub(crate) text: String,
    /// Workflow documents, by their file names.
    pub(crate) documents: Vec<(String, String)>,
    /// Environment variables that an apply of the declaration needs.
    pub(crate) variables: Vec<String>,
    /// Functions and models with a canary, which the declaration leaves out.
    pub(crate) canaries: Vec<String>,
}

impl Export {
    /// Reads everything that a declaration can list.
    pub(crate) fn read(client: &Client) -> Result<Self> {
        let mut variables = Vec::new();
        let mut canaries = Vec::new();
        let mut functions = Map::new();
        for function in client.get::<Vec<Function>>("/v1/functions", "list the functions")? {
            let active = function.active;
            canaries.extend(function.canary.map(|_| active.name.to_string()));
            let mut entry = settings(&active.manifest, &FunctionManifest::default());
            entry.insert("digest".to_owned(), json!(active.digest));
            if !active.env_names.is_empty() {
                let reference = |name: &String| (name.clone(), Value::from(format!("${{{name}}}")));
                entry.insert("env".to_owned(), active.env_names.iter().map(reference).collect());
                variables.extend(active.env_names);
            }
            add_aliases(&mut entry, &function.aliases);
            functions.insert(active.name.to_string(), entry.into());
        }
        let mut models = Map::new();
        for model in client.get::<Vec<Model>>("/v1/models", "list the models")? {
            // Lists leave out the labels.
            let name = &model.active.name;
            canaries.extend(model.canary.map(|_| name.to_string()));
            let model: Model = client.get(&format!("/v1/models/{name}"), &format!("show {name}"))?;
            let mut entry = settings(&model.active.manifest, &ModelManifest::default());
            entry.insert("digest".to_owned(), json!(model.active.digest));
            add_aliases(&mut entry, &model.aliases);
            models.insert(name.to_string(), entry.into());
        }
        let mut workflows = Map::new();
        let mut documents = Vec::new();
        for workflow in client.get::<Vec<Workflow>>("/v1/workflows", "list the workflows")? {
            let active = workflow.active;
            let ending = if active.document.trim_start().starts_with('{') { "json" } else { "toml" };
            let file = format!("{}.{ending}", active.name);
            let mut entry = Map::from_iter([("file".to_owned(), Value::from(file.clone()))]);
            let document = weir_workflow::Document::parse(active.document.as_bytes()).unwrap_or_default();
            if active.slo_ms != document.slo_ms.map(Into::into) {
                entry.insert("slo_ms".to_owned(), json!(active.slo_ms));
            }
            if active.cost_slo != document.cost_slo {
                entry.insert("cost_slo".to_owned(), json!(active.cost_slo));
            }
            add_aliases(&mut entry, &workflow.aliases);
            let found = CurrentWorkflow::from_api(active.clone());
            if found.may_move() && !is_up_to_date(client, &active.name, &found)? {
                entry.insert("keep_versions".to_owned(), json!(true));
            }
            workflows.insert(active.name.to_string(), entry.into());
            documents.push((file, active.document));
        }
        let triggers = triggers(client)?;
        let all = json!({
            "models": models,
            "functions": functions,
            "workflows": workflows,
            "triggers": triggers,
        });
        variables.sort();
        variables.dedup();
        Ok(Self { text: yaml_serde::to_string(&all)?, documents, variables, canaries })
    }
}

/// Adds the aliases of an item, if it has some.
fn add_aliases(entry: &mut Map<String, Value>, aliases: &Aliases) {
    if !aliases.is_empty() {
        let versions = aliases.iter().map(|(alias, target)| (alias.to_string(), json!(target.version)));
        entry.insert("aliases".to_owned(), versions.collect());
    }
}

/// The triggers of a node, without settings that are defaults.
fn triggers(client: &Client) -> Result<Map<String, Value>> {
    let default = TriggerSpec {
        source: TriggerSource::default(),
        target: TriggerTarget::default(),
        request: TriggerRequest::default(),
        enabled: true,
        missed: MissedPolicy::default(),
        missed_age_ms_max: MISSED_AGE_MS_DEFAULT,
        overlap: OverlapPolicy::default(),
    };
    let mut triggers = Map::new();
    for listed in client.get::<Vec<Trigger>>("/v1/triggers", "list the triggers")? {
        // Lists leave out the bodies.
        let name = &listed.name;
        let Trigger { spec, .. } = client.get(&format!("/v1/triggers/{name}"), &format!("show {name}"))?;
        triggers.insert(name.to_string(), settings(&spec, &default).into());
    }
    Ok(triggers)
}

/// The settings of a manifest that differ from the defaults.
fn settings<T: Serialize>(manifest: &T, default: &T) -> Map<String, Value> {
    let default = leaves(default);
    let mut all = serde_json::to_value(manifest).unwrap_or(Value::Null);
    remove_equal(&mut all, "", &default);
    match all {
        Value::Object(settings) => settings,
        _ => Map::new(),
    }
}

/// Removes the values of `table` that equal those of `default`, and the tables that become empty.
fn remove_equal(table: &mut Value, path: &str, default: &std::collections::BTreeMap<String, Value>) {
    let Value::Object(table) = table else { return };
    table.retain(|key, value| {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        if default.get(&path) == Some(value) {
            return false;
        }
        remove_equal(value, &path, default);
        value.as_object().is_none_or(|inner| !inner.is_empty())
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_types::Reuse;

    #[test]
    fn defaults_are_left_out() {
        let mut manifest = FunctionManifest { slo_ms: Some(5), ..FunctionManifest::default() };
        manifest.limits.deadline_ms = 7;
        let default = FunctionManifest::default();
        assert_eq!(
            Value::from(settings(&manifest, &default)),
            json!({"slo_ms": 5, "limits": {"deadline_ms": 7}})
        );
        assert_eq!(settings(&default, &default), Map::new());
        manifest.reuse = Some(Reuse::default());
        let read: FunctionManifest = serde_json::from_value(settings(&manifest, &default).into()).unwrap();
        assert_eq!(read, manifest);
    }
}
