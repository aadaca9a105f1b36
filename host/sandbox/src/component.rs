//! Components on this node: compiled once, at deployment; loaded at the first call; kept in a
//! size-limited cache.

mod artefacts;
pub mod compile;
mod compile_cache;
pub(crate) mod inspect;
pub mod policy;
mod recompile;

pub use compile_cache::CompileCache;
pub use recompile::Recompiler;

use crate::engine::{Engines, Generation};
use crate::sources;
use artefacts::Artefacts;
use compile::{CompileError, CompiledComponent};
use compile_cache::CachedCompilation;
use moka::sync::Cache;
use std::collections::HashSet;
use std::hash::Hash as _;
use std::path::Path;
use std::sync::Arc;
use tempfile::NamedTempFile;
use wasmtime::component::{Component, Linker};
use weir_types::{ContentHash, FunctionKind, Hasher};

use crate::instance::{InstanceState, LinkedComponent, Needs, linker};
use weir_storage::blobs::{InUse, Sweep};

/// The limit of mapped machine code, over all components. The mappings are file-backed, so the
/// kernel drops unused pages.
const LOADED_BYTES_MAX: u64 = 4 << 30;

/// The reason why a deployed component cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum ComponentLoadError {
    /// There is no artefact for this build of Weir: the component has to be recompiled.
    #[error("the component has not been compiled for this build of Weir")]
    Missing,
    /// The artefact cannot be read or linked, or exceeds the engine's limits.
    #[error("cannot load the compiled component: {0:#}")]
    Broken(#[source] Arc<wasmtime::Error>),
}

impl ComponentLoadError {
    /// The error of a load whose task panicked.
    pub fn panicked(panic: &tokio::task::JoinError) -> Self {
        Self::Broken(Arc::new(wasmtime::Error::msg(panic.to_string())))
    }
}

/// The artefacts of one data folder, and the loaded components.
pub struct Components {
    engines: Arc<Engines>,
    linkers: [Linker<InstanceState>; 2],
    artefacts: [Arc<Artefacts>; 2],
    loaded: Cache<ContentHash, Arc<LinkedComponent>>,
    in_use: InUse,
    limits: weir_child::Limits,
    cache: Option<Arc<CompileCache>>,
}

impl Components {
    /// Opens the artefacts under `folder`, which is created if necessary. Artefacts are named by
    /// the digests of their components; those `in_use` are not removed. Components are compiled
    /// with `cache`, if there is one.
    pub fn open(
        folder: &Path,
        engines: Arc<Engines>,
        in_use: InUse,
        limits: weir_child::Limits,
        cache: Option<CompileCache>,
    ) -> anyhow::Result<Self> {
        let [p2, p3] = [Generation::P2, Generation::P3].map(|generation| {
            let engine = engines.get(generation);
            let folder = folder.join(format!("{}-{}", generation.as_str(), compatibility_hash(engine)));
            (linker(engine, generation), folder)
        });
        let loaded = Cache::builder()
            .max_capacity(LOADED_BYTES_MAX >> 10)
            .weigher(|_, entry: &Arc<LinkedComponent>| {
                u32::try_from(entry.image_bytes() >> 10).unwrap_or(u32::MAX)
            })
            .build();
        let linkers = [p2.0?, p3.0?];
        let artefacts = [Arc::new(Artefacts::open(p2.1)?), Arc::new(Artefacts::open(p3.1)?)];
        let cache = cache.map(Arc::new);
        Ok(Self { engines, linkers, artefacts, loaded, in_use, limits, cache })
    }

    /// The engines that run the components.
    pub fn engines(&self) -> &Arc<Engines> {
        &self.engines
    }

    /// Compiles the component in the file `blob` and stores the artefact. Durable on return;
    /// dropping the future kills the compiler. The caller bounds the number of concurrent
    /// compilations.
    pub async fn compile(&self, digest: ContentHash, blob: &Path) -> Result<CompiledComponent, CompileError> {
        let internal = |error: std::io::Error| CompileError::io("cannot keep the artefact", &error);
        // Both folders are on one file system, so the temporary file may be in either one.
        let staged = self.artefacts[0].stage().map_err(internal)?;
        let cached = compile_cache::begin(self.cache.as_ref()).await;
        let task = compile::CompileTask {
            component: blob.to_owned(),
            artefact: staged.path().to_owned(),
            cache: cached.as_ref().map(CachedCompilation::task),
        };
        let compiled = compile::compile(&task, self.limits).await?;
        if let Some(cached) = cached {
            cached.end().await;
        }
        let artefacts = self.artefacts_of(compiled.kind).clone();
        let sources = match compiled.has_debug_info {
            true => self.locate_sources(digest, blob).await.map_err(internal)?,
            false => None,
        };
        tokio::task::spawn_blocking(move || artefacts.keep(digest, staged, sources))
            .await
            .map_err(|panic| internal(std::io::Error::other(panic)))?
            .map_err(internal)?;
        Ok(compiled)
    }

    /// Makes the table of source locations of a component with debug information. `None` if the
    /// debug information is not usable: then its stack traces lack source locations.
    async fn locate_sources(
        &self,
        digest: ContentHash,
        blob: &Path,
    ) -> std::io::Result<Option<NamedTempFile>> {
        let staged = self.artefacts[0].stage()?;
        let task = sources::LocateTask { component: blob.to_owned(), table: staged.path().to_owned() };
        Ok(match sources::locate(&task).await {
            // The component may have taken over the child, and with it the child's own limit.
            Ok(true) if staged.as_file().metadata()?.len() > sources::TABLE_BYTES_MAX as u64 => {
                tracing::warn!(%digest, "the source locations of a component exceed {} bytes", sources::TABLE_BYTES_MAX);
                None
            }
            Ok(has_locations) => has_locations.then_some(staged),
            Err(error) => {
                tracing::warn!(%digest, %error, "reading the debug information of a component failed");
                None
            }
        })
    }

    /// The component, if it is loaded: the fast path of nearly every call.
    pub fn loaded(&self, digest: ContentHash) -> Option<Arc<LinkedComponent>> {
        self.loaded.get(&digest)
    }

    /// Loads the component from its artefact. Blocks on the disk; concurrent calls for one
    /// component load it once.
    pub fn load(
        &self,
        digest: ContentHash,
        kind: FunctionKind,
    ) -> Result<Arc<LinkedComponent>, ComponentLoadError> {
        self.loaded.try_get_with(digest, || self.load_artefact(digest, kind)).map_err(
            |error: Arc<ComponentLoadError>| match error.as_ref() {
                ComponentLoadError::Missing => ComponentLoadError::Missing,
                ComponentLoadError::Broken(error) => ComponentLoadError::Broken(error.clone()),
            },
        )
    }

    /// Checks that the component can be started from its artefact, without keeping it loaded.
    /// Returns its needs.
    pub async fn try_out(
        self: &Arc<Self>,
        digest: ContentHash,
        kind: FunctionKind,
    ) -> Result<Needs, ComponentLoadError> {
        let components = self.clone();
        let tried = tokio::task::spawn_blocking(move || Ok(components.load_artefact(digest, kind)?.needs()));
        tried.await.unwrap_or_else(|panic| Err(ComponentLoadError::panicked(&panic)))
    }

    fn load_artefact(
        &self,
        digest: ContentHash,
        kind: FunctionKind,
    ) -> Result<Arc<LinkedComponent>, ComponentLoadError> {
        let artefacts = self.artefacts_of(kind);
        let verified = artefacts.verified_path(digest);
        let path = verified.map_err(|error| ComponentLoadError::Broken(Arc::new(error.into())))?;
        let path = path.ok_or(ComponentLoadError::Missing)?;
        let generation = Generation::for_kind(kind);
        let component = deserialize(self.engines.get(generation), &path);
        let entry = component.and_then(|component| {
            LinkedComponent::link(&self.linkers[generation as usize], &component, kind)
                .map_err(wasmtime::Error::from)
        });
        let entry = entry.map(|entry| Arc::new(entry.with_sources(artefacts.sources(digest))));
        entry.map_err(|error| ComponentLoadError::Broken(Arc::new(error)))
    }

    /// Removes artefacts and unloads components that are neither in use nor `wanted`.
    pub async fn sweep(&self, wanted: impl FnOnce() -> HashSet<ContentHash>) {
        let artefacts = self.artefacts.clone();
        let loaded = self.loaded.clone();
        let sweep = self.in_use.sweep(wanted);
        let swept = tokio::task::spawn_blocking(move || {
            for artefacts in &artefacts {
                sweep_folder(artefacts, &sweep, &loaded);
            }
        });
        if swept.await.is_err() {
            tracing::error!("sweeping artefacts failed");
        }
    }

    fn artefacts_of(&self, kind: FunctionKind) -> &Arc<Artefacts> {
        &self.artefacts[Generation::for_kind(kind) as usize]
    }
}

/// Removes the artefacts of a folder that the sweep does not spare. Blocks.
fn sweep_folder(artefacts: &Artefacts, sweep: &Sweep, loaded: &Cache<ContentHash, Arc<LinkedComponent>>) {
    for entry in std::fs::read_dir(artefacts.folder()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(digest) = name.to_str().and_then(Artefacts::component_of) else { continue };
        let removed = sweep.remove(digest, || {
            loaded.invalidate(&digest);
            artefacts.remove(digest)
        });
        if let Err(error) = removed {
            // The next sweep tries again.
            tracing::warn!(%error, %digest, "removing an artefact failed");
        }
    }
}

#[allow(unsafe_code, reason = "loading a precompiled component")]
fn deserialize(engine: &wasmtime::Engine, path: &Path) -> wasmtime::Result<Component> {
    // SAFETY: artefacts are machine code and must come from wasmtime unchanged. Only
    // `Components::compile` writes them, into the node's own data folder, by rename after fsync,
    // and `Artefacts::verified_path` has compared the contents with their hash. A process that can
    // write there can replace the node's binary as well.
    unsafe { Component::deserialize_file(engine, path) }
}

/// A hash of everything other than the component that an artefact's machine code depends on: the
/// version and settings of wasmtime.
pub(crate) fn compatibility_hash(engine: &wasmtime::Engine) -> String {
    /// Feeds `std::hash` into a hash that is the same in every run.
    #[derive(Default)]
    struct Stable(Hasher);
    impl std::hash::Hasher for Stable {
        fn write(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }
        fn finish(&self) -> u64 {
            0
        }
    }
    let mut stable = Stable::default();
    engine.precompile_compatibility_hash().hash(&mut stable);
    stable.0.finish().to_string()[..16].to_owned()
}
