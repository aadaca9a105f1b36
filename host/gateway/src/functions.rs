//! `/v1/functions`: deploying functions, and their logs. `versions.rs` has the other routes.

mod advice;
mod component;
mod deploy;
mod logs;

pub(super) use deploy::deploy;
pub(super) use logs::logs;

use super::versions::VersionedResource;
use super::visibility::Collection;
use crate::NodeState;
use std::sync::Arc;
use weir_control::registry::{ActiveVersion, DeployedFunction, FunctionEntry, FunctionParts, Registry};
use weir_types::Version;
use weir_types::api::{Function, FunctionVersion};
use weir_workflow::TargetKind;

impl VersionedResource for FunctionParts {
    type Summary = Function;
    type Version = FunctionVersion;

    const TARGET: TargetKind = TargetKind::Function;
    const COLLECTION: Collection = Collection::Functions;

    fn registry(node: &NodeState) -> &Arc<Registry<Self>> {
        &node.registry
    }

    fn describe(_: &NodeState, entry: &FunctionEntry, version: &DeployedFunction) -> FunctionVersion {
        entry.describe(version)
    }

    fn summary(active: FunctionVersion, versions: Vec<Version>, head: &ActiveVersion) -> Function {
        Function { active, versions, canary: head.canary, shadow: head.shadow, aliases: head.aliases.clone() }
    }

    fn rolled_back(node: &NodeState) {
        node.sweep_instances();
    }

    async fn removed(node: &NodeState) {
        node.sweep_components().await;
    }
}
