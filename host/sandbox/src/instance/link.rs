//! Links everything that a guest can import, once per engine, and provides typed calls of its
//! exports.

use super::{InstanceState, lengths};
use crate::engine::Generation;
use crate::hostcalls;
use crate::sources::SourceTable;
use std::sync::Arc;
use wasmtime::component::{Component, Linker};
use wasmtime::{Engine, ResourcesRequired};
use wasmtime_wasi_http::p2::bindings::ProxyPre;
use wasmtime_wasi_http::p3::bindings::ServicePre;
use weir_types::FunctionKind;

/// The size of a page of linear memory.
const PAGE_BYTES: u64 = 64 << 10;

/// A linked component, ready to be instantiated.
pub struct LinkedComponent {
    pub(super) exports: LinkedExports,
    sources: Option<Arc<SourceTable>>,
}

/// The exports of a linked component, by which it is called.
pub(super) enum LinkedExports {
    /// `wasi:http/incoming-handler@0.2`.
    Http02(ProxyPre<InstanceState>),
    /// `wasi:http/handler@0.3`.
    Http03(ServicePre<InstanceState>),
    /// `weir:inference/stage@0.1`.
    Tensor(hostcalls::StagePre<InstanceState>),
}

/// The reason why a component does not fit this node.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// An import is missing or has another type.
    #[error("{0:#}")]
    Import(wasmtime::Error),
    /// An export does not have the type of the interface that it names.
    #[error("{0:#}")]
    Export(wasmtime::Error),
}

impl LinkedComponent {
    /// Links `component`.
    pub fn link(
        linker: &Linker<InstanceState>,
        component: &Component,
        kind: FunctionKind,
    ) -> Result<Self, LinkError> {
        let pre = linker.instantiate_pre(component).map_err(LinkError::Import)?;
        let exports = match kind {
            FunctionKind::Http02 => ProxyPre::new(pre).map(LinkedExports::Http02),
            FunctionKind::Http03 => ServicePre::new(pre).map(LinkedExports::Http03),
            FunctionKind::Tensor => hostcalls::StagePre::new(pre).map(LinkedExports::Tensor),
        };
        Ok(Self { exports: exports.map_err(LinkError::Export)?, sources: None })
    }

    /// Sets the table of source locations.
    pub(crate) fn with_sources(self, sources: Option<SourceTable>) -> Self {
        Self { sources: sources.map(Arc::new), ..self }
    }

    /// The source locations of the component's instructions, if they are known.
    pub(super) fn sources(&self) -> Option<&Arc<SourceTable>> {
        self.sources.as_ref()
    }
}

/// The resources that every instance of a component needs at its start, as declared by the
/// component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// The size of its largest linear memory.
    pub memory_bytes: u64,
    /// The size of its largest table.
    pub table_elements: u64,
}

impl LinkedComponent {
    /// The size of its mapped machine code and data.
    pub fn image_bytes(&self) -> usize {
        let image = self.component().image_range();
        (image.end as usize).saturating_sub(image.start as usize)
    }

    /// The resources that every instance needs at its start.
    pub fn needs(&self) -> Needs {
        let required = self.component().resources_required();
        let largest = |of: fn(&ResourcesRequired) -> Option<u64>| required.as_ref().and_then(of).unwrap_or(0);
        Needs {
            memory_bytes: largest(|required| required.max_initial_memory_size).saturating_mul(PAGE_BYTES),
            table_elements: largest(|required| required.max_initial_table_size),
        }
    }

    fn component(&self) -> &Component {
        match &self.exports {
            LinkedExports::Http02(pre) => pre.instance_pre().component(),
            LinkedExports::Http03(pre) => pre.instance_pre().component(),
            LinkedExports::Tensor(pre) => pre.instance_pre().component(),
        }
    }
}

/// Links all interfaces that guests of `generation` may import.
pub(crate) fn linker(engine: &Engine, generation: Generation) -> wasmtime::Result<Linker<InstanceState>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker)?;
    hostcalls::add_to_linker(&mut linker)?;
    if generation == Generation::P3 {
        wasmtime_wasi::p3::add_to_linker(&mut linker)?;
        wasmtime_wasi_http::p3::add_to_linker(&mut linker)?;
    }
    lengths::accept_equal(&mut linker, generation)?;
    Ok(linker)
}
