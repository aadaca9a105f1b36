//! Opens the deployed content of a node: components, functions, models, workflows, asynchronous
//! invocations and objects.

use super::devices;
use super::storage::{BLOB_FOLDERS, MODELS, Storage};
use crate::config::NodeConfig;
use anyhow::{Context, bail};
use std::sync::Arc;
use tokio::sync::mpsc;
use weir_asynchronous::Invocations;
use weir_backup::{BackupMaker, BackupOrigin, BackupSource, BlobFolder};
use weir_control::keys::ApiKeys;
use weir_control::models::Models;
use weir_control::objects::{self, Objects};
use weir_control::registry::{ComponentChange, FunctionParts, Registry};
use weir_control::secrets::Secrets;
use weir_control::workflows::{Catalog, WorkflowRegistry, Workflows};
use weir_datastore::{Datastore, Revision};
use weir_device::Arena;
use weir_outbound::Connector;
use weir_sandbox::component::{CompileCache, Components, Recompiler};
use weir_sandbox::{CompileCacheConfig, Engines};
use weir_storage::blobs::Blobs;
use weir_telemetry::Metrics;
use weir_telemetry::logs::Logs;
use weir_triggers::{TriggerDeps, Triggers};

/// Deployed content of a node.
pub(super) struct DeployedContent {
    /// The components.
    pub(super) blobs: Blobs,
    pub(super) components: Arc<Components>,
    pub(super) registry: Arc<Registry>,
    pub(super) models: Arc<Models>,
    pub(super) workflows: Arc<WorkflowRegistry>,
    pub(super) invocations: Arc<Invocations>,
    pub(super) objects: Arc<Objects>,
    pub(super) keys: Arc<ApiKeys>,
    pub(super) secrets: Arc<Secrets>,
    pub(super) triggers: Arc<Triggers>,
    pub(super) backups: BackupMaker,
    pub(super) begin: FollowStart,
}

/// The datastore, the revisions from which the background tasks follow it, and events collected
/// since.
pub(super) struct FollowStart {
    pub(super) datastore: Arc<dyn Datastore>,
    pub(super) functions: Revision,
    pub(super) models: Revision,
    pub(super) workflows: Revision,
    pub(super) invocations: Revision,
    pub(super) objects: Revision,
    pub(super) keys: Revision,
    pub(super) secrets: Revision,
    pub(super) triggers: Revision,
    /// Changes of functions by other nodes.
    pub(super) component_changes: mpsc::Receiver<ComponentChange>,
}

impl DeployedContent {
    /// Reads the state of the datastore and starts the node's devices.
    pub(super) async fn open(
        config: &NodeConfig,
        storage: &Storage,
        metrics: &Arc<Metrics>,
        arena: &Arena,
        connector: &Arc<Connector>,
    ) -> anyhow::Result<Self> {
        let datastore = &storage.datastore;
        let changes = &storage.changes;
        let blobs = storage.blobs("components")?;
        let components = components(config, storage, &blobs)?;
        let (functions, component_changes) =
            FunctionParts::new(metrics.clone(), Logs::new(config.logs.clone()));
        let (registry, functions_as_of) = Registry::open(datastore.clone(), functions, changes.clone())
            .await
            .context("cannot read the registry")?;
        let devices = devices::start(config, arena, &metrics.gpus)?;
        let (models, models_as_of) = Models::open(
            datastore.clone(),
            storage.blobs(MODELS)?,
            devices,
            metrics.clone(),
            changes.clone(),
        )
        .await
        .context("cannot read the models")?;
        let (workflows, workflows_as_of) =
            Registry::open(datastore.clone(), Workflows::new(metrics.clone()), changes.clone())
                .await
                .context("cannot read the workflows")?;
        let invocation_blobs = storage.blobs("invocations")?;
        let (invocations, invocations_as_of) = Invocations::open(weir_asynchronous::InvocationDeps {
            config: config.asynchronous.clone(),
            datastore: datastore.clone(),
            blobs: invocation_blobs.clone(),
            metrics: metrics.clone(),
            connector: connector.clone(),
            changes: changes.clone(),
            is_alone: config.cluster.is_none(),
        })
        .await
        .context("cannot read the asynchronous invocations")?;
        let (objects, objects_as_of) = open_objects(config, storage, metrics, arena).await?;
        let (keys, keys_as_of) = ApiKeys::open(datastore.clone(), changes.clone(), config.cluster.is_none())
            .await
            .context("cannot read the API keys")?;
        let (secrets, secrets_as_of) = open_secrets(config, storage).await?;
        let (triggers, triggers_as_of) =
            open_triggers(config, storage, metrics, connector, &invocations, &secrets).await?;
        let folders = [&blobs, models.blobs(), &invocation_blobs, objects.blobs()];
        let backups = backup_maker(config, storage, folders);
        let begin = FollowStart {
            datastore: datastore.clone(),
            functions: functions_as_of,
            models: models_as_of,
            workflows: workflows_as_of,
            invocations: invocations_as_of,
            objects: objects_as_of,
            keys: keys_as_of,
            secrets: secrets_as_of,
            triggers: triggers_as_of,
            component_changes,
        };
        Ok(Self {
            blobs,
            components,
            registry,
            models,
            workflows,
            invocations,
            objects,
            keys,
            secrets,
            triggers,
            backups,
            begin,
        })
    }

    /// The models, functions and workflows that workflow steps run and functions open.
    pub(super) fn catalog(&self) -> Catalog {
        Catalog {
            functions: self.registry.clone(),
            models: self.models.clone(),
            workflows: self.workflows.clone(),
        }
    }

    /// Recompiles components whose artefact this node cannot use.
    pub(super) fn recompiler(&self, config: &NodeConfig, metrics: &Arc<Metrics>) -> Recompiler {
        let compiles_max = config.sandbox.compiles_max as usize;
        Recompiler::new(self.components.clone(), self.blobs.clone(), metrics.clone(), compiles_max)
    }
}

/// Opens the named objects. Also returns the revision that was read.
async fn open_objects(
    config: &NodeConfig,
    storage: &Storage,
    metrics: &Arc<Metrics>,
    arena: &Arena,
) -> anyhow::Result<(Arc<Objects>, Revision)> {
    let opened = Objects::open(objects::ObjectDeps {
        config: config.objects.clone(),
        datastore: storage.datastore.clone(),
        blobs: storage.blobs("objects")?,
        changes: storage.changes.clone(),
        metrics: metrics.clone(),
        arena: arena.clone(),
    });
    opened.await.context("cannot read the objects")
}

/// Opens the secrets of functions. Also returns the revision that was read.
async fn open_secrets(config: &NodeConfig, storage: &Storage) -> anyhow::Result<(Arc<Secrets>, Revision)> {
    let alone_in = config.cluster.is_none().then_some(&*storage.folder);
    let datastore = storage.datastore.clone();
    let opened = Secrets::open(datastore, storage.changes.clone(), &config.sandbox.secrets, alone_in);
    opened.await.context("cannot read the secrets")
}

/// Opens the triggers. Also returns the revision that was read.
async fn open_triggers(
    config: &NodeConfig,
    storage: &Storage,
    metrics: &Arc<Metrics>,
    connector: &Arc<Connector>,
    invocations: &Arc<Invocations>,
    secrets: &Arc<Secrets>,
) -> anyhow::Result<(Arc<Triggers>, Revision)> {
    let opening = Triggers::open(TriggerDeps {
        config: config.asynchronous.triggers.clone(),
        datastore: storage.datastore.clone(),
        invocations: invocations.clone(),
        metrics: metrics.clone(),
        changes: storage.changes.clone(),
        connector: connector.clone(),
        secrets: secrets.clone(),
    });
    opening.await.context("cannot read the triggers")
}

/// Makes backups of the records and of these blobs.
fn backup_maker(config: &NodeConfig, storage: &Storage, blobs: [&Blobs; BLOB_FOLDERS.len()]) -> BackupMaker {
    let folders = BLOB_FOLDERS.into_iter().zip(blobs);
    BackupMaker::new(BackupSource {
        origin: if config.cluster.is_some() { BackupOrigin::Cluster } else { BackupOrigin::Node },
        datastore: storage.datastore.clone(),
        folders: folders.map(|(name, blobs)| BlobFolder { name, blobs: blobs.clone() }).collect(),
        transient: vec![weir_cluster::MEMBERSHIP],
    })
}

fn components(config: &NodeConfig, storage: &Storage, blobs: &Blobs) -> anyhow::Result<Arc<Components>> {
    let engines = config.sandbox.engines()?;
    let limits = config.sandbox.compile_limits();
    let folder = storage.folder.join("artefacts");
    let cache = compile_cache(config, storage, &engines)?;
    Ok(Arc::new(Components::open(&folder, Arc::new(engines), blobs.in_use().clone(), limits, cache)?))
}

/// The cache of compiled functions. Without a setting, a node has one if only its own user can reach
/// it.
fn compile_cache(
    config: &NodeConfig,
    storage: &Storage,
    engines: &Engines,
) -> anyhow::Result<Option<CompileCache>> {
    let CompileCacheConfig { enabled, folder, bytes_max } = &config.sandbox.compile_cache;
    let is_enabled = enabled.unwrap_or_else(|| config.is_private());
    if !is_enabled {
        return Ok(None);
    }
    if !config.is_private() {
        bail!(
            "sandbox.compile_cache.enabled: a node with a token file, in a cluster or beyond loopback cannot have a compile cache, because its tenants would share machine code; remove the setting"
        );
    }
    let folder = folder.clone().unwrap_or_else(|| storage.folder.join("compile-cache"));
    let cache = CompileCache::open(folder.clone(), engines, *bytes_max);
    let context = || format!("sandbox.compile_cache.folder: cannot use {}", folder.display());
    cache.map(Some).with_context(context)
}
