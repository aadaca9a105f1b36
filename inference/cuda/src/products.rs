//! cuBLASLt on a device, if the node found the library: an optional tier for matrix products above
//! Weir's own kernels. A failure of the library never prevents models from running.

use crate::ahead::AheadThread;
use crate::libraries::LibraryState;
use crate::program::{BufferLocation, LibraryGemm, ProductTier};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use tracing::warn;
use weir_device::cuda::{self, Context, CublasLt, CudaError, ProductMatrix, ProductShape, Products};
use weir_types::ElementType;

/// Maximum workspace of a product in bytes: NVIDIA's recommendation for its largest devices. A slot
/// has this memory only while it runs such products.
const WORKSPACE_BYTES_MAX: u64 = 32 << 20;
/// Maximum share of device memory for the workspace, as a divisor, so that the workspace cannot
/// exhaust a small device.
const WORKSPACE_SHARE: u64 = 256;

/// Configuration of the library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryConfig {
    /// Path of the library. The node finds the file, because only the node has the environment with
    /// the search path; the process that owns the device opens the file.
    pub path: PathBuf,
    /// Minimum number of floating-point operations of a product for the library.
    pub flops_min: u64,
}

/// cuBLASLt on a device.
pub struct ProductLibrary {
    ahead: Option<AheadThread>,
    products: Option<Arc<Products>>,
    tier: ProductTier,
    state: LibraryState,
}

impl ProductLibrary {
    /// Opens the library, if configured. Takes several hundred milliseconds, mostly in the dynamic
    /// loader.
    pub(crate) fn open(config: Option<&LibraryConfig>, context: &Arc<Context>, capacity_bytes: u64) -> Self {
        let none = |state| Self { ahead: None, products: None, tier: ProductTier::Own, state };
        let Some(LibraryConfig { path, flops_min }) = config else { return none(LibraryState::None) };
        let library = match CublasLt::open(path) {
            Ok(library) => library,
            Err(why) => return none(LibraryState::Unusable(why.to_string())),
        };
        let version = library.version();
        match Products::new(library, context) {
            Ok(products) => Self {
                ahead: None,
                products: Some(Arc::new(products)),
                tier: ProductTier::CublasLt {
                    flops_min: *flops_min,
                    workspace_bytes: WORKSPACE_BYTES_MAX.min(capacity_bytes / WORKSPACE_SHARE),
                },
                state: LibraryState::Used(version),
            },
            Err(why) => {
                let why = format!("{} (version {version}) does not start: {why}", path.display());
                none(LibraryState::Unusable(why))
            }
        }
    }

    /// Prepares a product of each element type in the background: the library takes up to
    /// 100 ms for the first product of a type.
    pub(crate) fn prepare_ahead(&mut self) {
        let Some(products) = self.products.clone() else { return };
        let mut types =
            [(ElementType::Fp32, true), (ElementType::Fp16, false), (ElementType::Bf16, false)].into_iter();
        let prepare = move || {
            // A product of a model reports a failure.
            types.next().is_some_and(|(element_type, tf32)| {
                cuda::Gemm::new(&products, small_product(element_type, tf32), 0).is_ok()
            })
        };
        self.ahead = AheadThread::start("weir-cublaslt", prepare);
    }

    /// Returns the tier that computes products.
    pub fn tier(&self) -> ProductTier {
        self.tier
    }

    /// Returns the state of the library.
    pub fn state(&self) -> &LibraryState {
        &self.state
    }

    /// Prepares a product. Returns `None` if the library has no algorithm for it; returns an error
    /// only if the device is lost.
    pub(crate) fn make(
        &self,
        product: &LibraryGemm<BufferLocation>,
    ) -> Result<Option<cuda::Gemm>, CudaError> {
        let Some(products) = &self.products else { return Ok(None) };
        match cuda::Gemm::new(products, product.shape, product.workspace_bytes) {
            Err(error) if !error.is_context_lost() => {
                warn!(%error, shape = ?product.shape, "cuBLASLt cannot prepare a matrix product: Weir's own kernels compute it");
                Ok(None)
            }
            made => made,
        }
    }
}

/// Small matrix product, which is prepared only to initialise the library.
fn small_product(element_type: ElementType, tf32: bool) -> ProductShape {
    const SIZE: u32 = 64;
    let matrix = ProductMatrix { transposed: false, row_stride: SIZE, batch_stride: 0, alignment_bytes: 16 };
    ProductShape {
        element_type,
        tf32,
        m: SIZE,
        n: SIZE,
        k: SIZE,
        batch: 1,
        a: matrix,
        b: matrix,
        alpha: 1.0,
        has_bias: false,
        has_residual: false,
        relu: false,
    }
}
