//! Step of a bound program, with its addresses.

use crate::chains::{ChainKernel, Chains};
use crate::program::{BufferLocation, StepMemory};
use std::sync::{Arc, OnceLock};
use weir_device::cuda::{
    CudaError, Function, Gemm, KernelParameters, LaunchConfig, ProductBuffers, Span, Stream,
};
use weir_kernels::Argument;

/// Bound step.
pub(super) struct BoundStep {
    /// Kernel and its size, for profiles.
    pub(super) title: String,
    pub(super) work: BoundWork,
    /// Memory that the step uses.
    pub(super) memory: StepMemory,
    /// Weights and constants that this step is the first to read. The step waits for their
    /// transfer.
    pub(super) arrivals: Vec<BufferLocation>,
}

/// Work of a step.
pub(super) enum BoundWork {
    /// Kernel launch.
    Kernel {
        function: Function,
        launch: LaunchConfig,
        arguments: Vec<Argument<Address>>,
        chain: Option<ChainStep>,
    },
    /// Matrix product by the library.
    Product(Box<(Gemm, ProductBuffers<Address>)>),
}

/// Chain of a kernel that interprets it, and the compiled kernel that replaces the interpreter.
pub(super) struct ChainStep {
    pub(super) chain: Arc<weir_kernels::Chain>,
    /// Unset while the compilation is pending; `None` if the chain stays interpreted.
    pub(super) compiled: OnceLock<Option<Function>>,
}

/// Address of a buffer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Address {
    At(u64),
    /// Byte offset in the memory of the slot.
    InArena(u64),
}

impl Address {
    /// Returns the address at this many bytes after `self`.
    pub(super) fn further(self, bytes: u64) -> Self {
        match self {
            Self::At(address) => Self::At(address + bytes),
            Self::InArena(offset) => Self::InArena(offset + bytes),
        }
    }

    fn within(self, arena: Span) -> u64 {
        match self {
            Self::At(address) => address,
            Self::InArena(offset) => arena.address() + offset,
        }
    }
}

impl BoundWork {
    pub(super) fn kernel(function: Function, launch: weir_kernels::Launch<Address>) -> Self {
        let weir_kernels::Launch { grid, block, shared_bytes, arguments, chain, .. } = launch;
        let chain = chain.map(|chain| ChainStep { chain, compiled: OnceLock::new() });
        Self::Kernel { function, launch: LaunchConfig { grid, block, shared_bytes }, arguments, chain }
    }
}

impl BoundStep {
    /// Switches to the compiled kernel if it is ready. Returns whether the kernel of the step is
    /// final.
    pub(super) fn settle(&self, chains: &Chains) -> bool {
        let BoundWork::Kernel { chain: Some(ChainStep { chain, compiled }), .. } = &self.work else {
            return true;
        };
        if compiled.get().is_some() {
            return true;
        }
        let found = match chains.ask(chain) {
            ChainKernel::Pending => return false,
            ChainKernel::Compiled(function) => Some(function),
            ChainKernel::Interpreted => None,
        };
        compiled.get_or_init(|| found);
        true
    }

    /// Returns whether the step runs a kernel that was compiled for its chain.
    pub(super) fn is_compiled(&self) -> bool {
        let BoundWork::Kernel { chain: Some(ChainStep { compiled, .. }), .. } = &self.work else {
            return false;
        };
        matches!(compiled.get(), Some(Some(_)))
    }

    /// Enqueues the step on `stream`.
    ///
    /// # Safety
    /// Same as for [`Bound::launch`](super::Bound::launch).
    pub(super) unsafe fn launch(
        &self,
        stream: &Stream,
        arena: Span,
        parameters: &mut KernelParameters,
    ) -> Result<(), CudaError> {
        let (function, launch, arguments) = match &self.work {
            BoundWork::Kernel { function, launch, arguments, chain } => {
                let compiled = chain.as_ref().and_then(|chain| chain.compiled.get()?.as_ref());
                match compiled {
                    // A compiled kernel keeps values in registers and needs no dynamic shared
                    // memory.
                    Some(compiled) => (compiled, LaunchConfig { shared_bytes: 0, ..*launch }, arguments),
                    None => (function, *launch, arguments),
                }
            }
            BoundWork::Product(product) => {
                let (product, buffers) = &**product;
                let buffers = buffers.map(|address| address.within(arena));
                // SAFETY: the buffers match the operation; the caller guarantees the memory.
                return unsafe { product.launch(stream, &buffers) };
            }
        };
        parameters.clear();
        for argument in arguments {
            match argument {
                Argument::Address(address) => parameters.address(address.within(arena)),
                Argument::Null => parameters.address(0),
                Argument::U32(number) => parameters.u32(*number),
                Argument::U64(number) => parameters.u64(*number),
                Argument::F32(number) => parameters.f32(*number),
                Argument::Bytes(bytes) => parameters.bytes(bytes)?,
            };
        }
        // SAFETY: the arguments match the kernel's signature in `weir-kernels`; the caller
        // guarantees the memory.
        unsafe { stream.launch(function, &launch, parameters) }
    }
}
