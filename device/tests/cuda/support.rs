//! A device of a fake driver, and its test kernels.

use std::sync::Arc;
use weir_device::cuda::{
    Allocation, BlockPool, Context, Devices, Function, KernelParameters, LaunchConfig, Module, PinnedRing,
    Priority, Search, Span, Stream, TransferEngine,
};
use weir_fake_cuda::{Fake, TEST_KERNELS};

/// Seeds of the orders in which the fake drains streams; 0 is the order in which work was added.
pub(crate) const SEEDS: std::ops::Range<u64> = 0..24;

/// A device, which drops before its fake driver.
pub(crate) struct TestDevice {
    pub(crate) context: Arc<Context>,
    pub(crate) stream: Arc<Stream>,
    pub(crate) fake: Fake,
}

impl TestDevice {
    pub(crate) fn new(seed: u64) -> Self {
        Self::from_fake(Fake::new(seed))
    }

    pub(crate) fn from_fake(fake: Fake) -> Self {
        let context = devices(&fake).open(0).unwrap();
        let stream = Arc::new(Stream::new(&context, Priority::Normal).unwrap());
        Self { context, stream, fake }
    }

    pub(crate) fn kernel(&self, name: &str) -> Function {
        Module::load(&self.context, TEST_KERNELS.as_bytes()).unwrap().function(name).unwrap()
    }

    pub(crate) fn allocate(&self, bytes: u64) -> Allocation {
        Allocation::new(&self.context, bytes).unwrap()
    }

    pub(crate) fn pool(&self, bytes: u64) -> Arc<BlockPool> {
        BlockPool::new(&self.context, bytes).unwrap()
    }

    /// With a ring of 8 blocks, and 2 copy threads.
    pub(crate) fn engine(&self) -> Arc<TransferEngine> {
        let ring = PinnedRing::new(&self.context, 8).unwrap();
        Arc::new(TransferEngine::new(&self.context, &ring, 2).unwrap())
    }

    pub(crate) fn read(&self, span: Span) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(span.bytes()).unwrap()];
        self.stream.read(span, &mut bytes).unwrap();
        bytes
    }
}

pub(crate) fn devices(fake: &Fake) -> Devices {
    Devices::discover(&search(fake)).unwrap()
}

pub(crate) fn search(fake: &Fake) -> Search {
    Search { driver: Some(fake.path().to_owned()), ..Search::default() }
}

/// Fills `to`, in words, on `stream`.
pub(crate) fn launch_fill(stream: &Stream, function: &Function, to: Span, value: u32) {
    let count = to.bytes() / 4;
    let mut parameters = KernelParameters::default();
    parameters.address(to.address()).u32(value).u64(count);
    let launch = LaunchConfig::linear(u32::try_from(count).unwrap(), 256);
    // SAFETY: the parameters are the kernel's; the callers keep the memory until the stream is
    // done.
    unsafe { stream.launch(function, &launch, &parameters) }.unwrap();
}

/// `y = y * by + x`, on `stream`.
pub(crate) fn launch_scale_add(stream: &Stream, function: &Function, y: Span, x: Span, by: f32) {
    let count = u32::try_from(y.bytes() / 4).unwrap();
    let mut parameters = KernelParameters::default();
    parameters.address(y.address()).address(x.address()).f32(by).u32(count);
    // SAFETY: as above.
    unsafe { stream.launch(function, &LaunchConfig::linear(count, 256), &parameters) }.unwrap();
}

pub(crate) fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

pub(crate) fn floats_of(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|four| f32::from_ne_bytes(four.try_into().unwrap())).collect()
}
