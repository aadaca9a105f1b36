//! One thing that is given to a stream, with its addresses.

use crate::cuda::chains::{ChainKernel, Chains};
use crate::cuda::program::Place;
use std::sync::{Arc, OnceLock};
use weir_device::cuda::{CudaError, Function, Launch, Parameters, Product, ProductBuffers, Span, Stream};
use weir_kernels::Argument;

/// A step that is ready.
pub(super) struct Step {
    pub(super) work: Work,
    /// The weights and constants that no step before it reads: what it waits for as long as they are on their way.
    pub(super) arrivals: Vec<Place>,
}

/// What it does.
pub(super) enum Work {
    /// Run a kernel.
    Kernel { function: Function, launch: Launch, arguments: Vec<Argument<Address>>, chain: Option<ChainStep> },
    /// Have the library compute a product of matrices.
    Product(Box<(Product, ProductBuffers<Address>)>),
}

/// What a kernel interprets, and the one that takes its place once it was compiled.
pub(super) struct ChainStep {
    pub(super) chain: Arc<weir_kernels::Chain>,
    /// Not set as long as it is on its way; none if there will be none.
    pub(super) compiled: OnceLock<Option<Function>>,
}

/// Where a buffer is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Address {
    At(u64),
    /// So far into the memory of the slot.
    InArena(u64),
}

impl Address {
    /// So many bytes behind it.
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

impl Work {
    pub(super) fn kernel(function: Function, launch: weir_kernels::Launch<Address>) -> Self {
        let weir_kernels::Launch { grid, block, shared_bytes, arguments, chain, .. } = launch;
        let chain = chain.map(|chain| ChainStep { chain, compiled: OnceLock::new() });
        Self::Kernel { function, launch: Launch { grid, block, shared_bytes }, arguments, chain }
    }
}

impl Step {
    /// Have the kernel of its own run it that was compiled, if that is there. Gives whether it is settled what runs it.
    pub(super) fn settle(&self, chains: &Chains) -> bool {
        let Work::Kernel { chain: Some(ChainStep { chain, compiled }), .. } = &self.work else { return true };
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

    /// Whether a kernel runs it that was compiled for its chain alone.
    pub(super) fn is_compiled(&self) -> bool {
        let Work::Kernel { chain: Some(ChainStep { compiled, .. }), .. } = &self.work else { return false };
        matches!(compiled.get(), Some(Some(_)))
    }

    /// Give it to `stream`.
    ///
    /// # Safety
    /// As for [`Bound::launch`](super::Bound::launch).
    pub(super) unsafe fn launch(
        &self,
        stream: &Stream,
        arena: Span,
        parameters: &mut Parameters,
    ) -> Result<(), CudaError> {
        let (function, launch, arguments) = match &self.work {
            Work::Kernel { function, launch, arguments, chain } => {
                let compiled = chain.as_ref().and_then(|chain| chain.compiled.get()?.as_ref());
                match compiled {
                    // It has its registers to itself.
                    Some(compiled) => (compiled, Launch { shared_bytes: 0, ..*launch }, arguments),
                    None => (function, *launch, arguments),
                }
            }
            Work::Product(product) => {
                let (product, buffers) = &**product;
                let buffers = buffers.map(|address| address.within(arena));
                // SAFETY: the buffers are those of the operation; the memory is the caller's part.
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
        // SAFETY: the arguments are those that `weir-kernels` says the kernel takes; the memory is the caller's part.
        unsafe { stream.launch(function, &launch, parameters) }
    }
}
