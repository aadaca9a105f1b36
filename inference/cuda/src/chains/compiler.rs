//! Compilation of a chain to a kernel.

use std::sync::Arc;
use weir_device::cuda::{CompileTarget, Context, CudaSource, Function, Module, Nvrtc};
use weir_kernels::Chain;

/// NVRTC with the target of one device.
pub(super) struct Compiler {
    nvrtc: Nvrtc,
    target: CompileTarget,
    context: Arc<Context>,
}

impl Compiler {
    /// Opens the compiler for the device of a context. Returns the reason if NVRTC does not support
    /// the device.
    pub(super) fn new(nvrtc: Nvrtc, context: &Arc<Context>, compute_capability: u32) -> Result<Self, String> {
        let target = nvrtc.target(compute_capability).ok_or_else(|| {
            let version = nvrtc.version();
            format!("version {version} compiles for no device of compute capability {compute_capability}")
        })?;
        Ok(Self { nvrtc, target, context: context.clone() })
    }

    /// Compiles and loads the kernel of a chain. Returns the reason of a failure. Takes tens of
    /// milliseconds.
    pub(super) fn compile(&self, chain: &Chain) -> Result<Function, String> {
        let text = chain.source();
        let source = CudaSource { name: "chain.cu", text: &text, headers: &Chain::HEADERS };
        let compiled = self.nvrtc.compile(&source, self.target, &Chain::OPTIONS)?;
        let module = Module::load(&self.context, &compiled.image).map_err(|error| error.to_string())?;
        module.function(Chain::KERNEL).map_err(|error| error.to_string())
    }
}
