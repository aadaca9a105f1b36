//! What to tell the owner of a function that was deployed: what it may not do, and what would work better otherwise.

use crate::component::policy::{self, Verdict};
use crate::node::NodeState;
use weir_types::FunctionManifest;
use weir_types::api::FunctionVersion;

/// A component larger than this gets advice with its deployment.
const LARGE_COMPONENT_BYTES: u64 = 8 << 20;

/// The interfaces that are linked as denying.
pub(super) fn denied_imports(imports: &[String], manifest: &FunctionManifest) -> Vec<String> {
    imports.iter().filter(|name| policy::verdict(name, manifest) == Verdict::Denied).cloned().collect()
}

/// Things that will work, but not as well as they could.
pub(super) fn advice(node: &NodeState, function: &FunctionVersion, imports: &[String]) -> Vec<String> {
    let mut advice = Vec::new();
    for model in &function.manifest.models {
        if node.models.get(&function.tenant, &model.name, model.version).is_err() {
            advice.push(format!(
                "model {model} is granted but not on this node yet: weir models push {} FILE.onnx",
                model.name
            ));
        }
    }
    let uses_models = imports.iter().any(|name| name.starts_with("weir:inference/models@"));
    if uses_models && function.manifest.models.is_empty() {
        advice.push(
            "the component uses models, but the manifest grants none: add models = [\"NAME\"]".to_owned(),
        );
    }
    if !uses_models && !function.manifest.models.is_empty() {
        advice.push("the manifest grants models, but the component does not use any".to_owned());
    }
    if function.component_bytes > LARGE_COMPONENT_BYTES {
        let mib = function.component_bytes >> 20;
        advice.push(format!("the component has {mib} MiB; strip it, and build it with opt-level = \"s\" and lto = true, to load faster"));
    }
    advice
}
