//! Advice for the owner of a deployed function: denied imports, and possible improvements.

use crate::NodeState;
use weir_sandbox::component::policy::{self, ImportVerdict};
use weir_types::api::FunctionVersion;
use weir_types::{FunctionManifest, imports_whole_runtime};

/// Component size above which a deployment gets advice.
const LARGE_COMPONENT_BYTES: u64 = 8 << 20;
/// The same for components with an interpreter, which alone has some 20 MiB.
const LARGE_INTERPRETER_BYTES: u64 = 64 << 20;

/// Returns the imports that are linked to denying implementations.
pub(super) fn denied_imports(imports: &[String], manifest: &FunctionManifest) -> Vec<String> {
    imports.iter().filter(|name| policy::verdict(name, manifest) == ImportVerdict::Denied).cloned().collect()
}

/// Returns the imports for which the manifest grants nothing: denied imports, and models and
/// objects if the manifest names none.
pub(super) fn ungranted_imports(imports: &[String], manifest: &FunctionManifest) -> Vec<String> {
    let grants_nothing = |name: &String| match name.split('@').next() {
        Some("weir:inference/models") => manifest.models.is_empty(),
        Some("weir:inference/objects") => manifest.objects.is_empty(),
        _ => policy::verdict(name, manifest) == ImportVerdict::Denied,
    };
    imports.iter().filter(|name| grants_nothing(name)).cloned().collect()
}

/// Returns advice on settings that work, but could work better.
pub(super) fn advice(node: &NodeState, function: &FunctionVersion, imports: &[String]) -> Vec<String> {
    let mut advice = Vec::new();
    for model in &function.manifest.models {
        let version = node.models.resolve(&function.tenant, &model.name, model.version.as_ref());
        if version.and_then(|version| node.models.get(&function.tenant, &model.name, version)).is_err() {
            advice.push(format!(
                "model {model} is granted but not on this node yet: weir models push {} FILE.onnx",
                model.name
            ));
        }
    }
    let uses = |interface: &str| imports.iter().any(|name| name.split('@').next() == Some(interface));
    let manifest = &function.manifest;
    let has_interpreter = imports_whole_runtime(imports);
    let uses_models = uses("weir:inference/models") || uses("wasi:nn/graph");
    // The log of a script that opens a model without a grant has the reason.
    if uses_models
        && !has_interpreter
        && manifest.limits.loaded_model_bytes == 0
        && manifest.models.is_empty()
    {
        advice.push(
            "the component can use models, and the manifest grants none: if it does, add models = [\"NAME\"]"
                .to_owned(),
        );
    }
    if !uses_models && !manifest.models.is_empty() {
        advice.push("the manifest grants models, but the component does not use any".to_owned());
    }
    if !uses("weir:inference/objects") && !manifest.objects.is_empty() {
        advice.push("the manifest grants named objects, but the component does not use any".to_owned());
    }
    if !uses("wasi:cli/environment") && (!manifest.env.is_empty() || !manifest.secrets.is_empty()) {
        let text = "the manifest sets environment variables or secrets, but the component reads no variables";
        advice.push(text.to_owned());
    }
    let calls_out = uses("wasi:http/outgoing-handler") || uses("wasi:http/client");
    if !calls_out && !manifest.outbound_hosts.is_empty() {
        advice.push("the manifest grants outbound hosts, but the component does not call any".to_owned());
    }
    for host in &manifest.outbound_hosts {
        let refused = node.dispatch.connector.refusal(&function.tenant, host);
        advice.extend(refused.map(|refused| format!("outbound_hosts grants {host:?}, and {refused}")));
    }
    if manifest.reuse.is_some() && node.config.sandbox.instances_idle_max == 0 {
        let text = "the manifest asks for reuse, and this node gives every call a new instance (sandbox.instances_idle_max = 0)";
        advice.push(text.to_owned());
    }
    let large_bytes = if has_interpreter { LARGE_INTERPRETER_BYTES } else { LARGE_COMPONENT_BYTES };
    if function.component_bytes > large_bytes {
        let mib = function.component_bytes >> 20;
        let what = if has_interpreter {
            "packages of requirements.txt first"
        } else {
            "debug information first (strip in Rust, -ldflags=-s in Go)"
        };
        advice.push(format!("the component has {mib} MiB, which takes long to compile and to load: leave out what it does not need, {what}"));
    }
    advice
}
