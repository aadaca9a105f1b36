//! One thing that is given to a stream, with its addresses.

use crate::cuda::program::Place;
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
    Kernel { function: Function, launch: Launch, arguments: Vec<Argument<Address>> },
    /// Have the library compute a product of matrices.
    Product(Box<(Product, ProductBuffers<Address>)>),
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
        let weir_kernels::Launch { grid, block, shared_bytes, arguments, .. } = launch;
        Self::Kernel { function, launch: Launch { grid, block, shared_bytes }, arguments }
    }
}

impl Step {
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
            Work::Kernel { function, launch, arguments } => (function, launch, arguments),
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
        unsafe { stream.launch(function, launch, parameters) }
    }
}
