//! `wasi:io/error` for guests: describes the error without the node's own stack, which wasmtime's
//! implementation includes if `RUST_BACKTRACE` is set.

use super::{Inference, InferenceView};
use crate::instance::InstanceState;
use wasmtime::component::{Linker, Resource};
use wasmtime_wasi_io::bindings::wasi::io::error::{self, Host, HostError};
use wasmtime_wasi_io::streams::Error;

/// Links this implementation in place of wasmtime's.
pub(super) fn add_to_linker(linker: &mut Linker<InstanceState>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    error::add_to_linker::<_, Inference>(linker, InstanceState::inference)?;
    linker.allow_shadowing(false);
    Ok(())
}

impl Host for InferenceView<'_> {}

impl HostError for InferenceView<'_> {
    fn to_debug_string(&mut self, error: Resource<Error>) -> wasmtime::Result<String> {
        let layers: Vec<String> = self.table.get(&error)?.chain().map(ToString::to_string).collect();
        Ok(layers.join(": "))
    }

    fn drop(&mut self, error: Resource<Error>) -> wasmtime::Result<()> {
        self.table.delete(error)?;
        Ok(())
    }
}
