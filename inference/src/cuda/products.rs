//! NVIDIA's library for products of matrices, where a node has found it: a tier above Weir's own kernels. Whatever is the matter with it, models run.

use super::libraries::LibraryState;
use super::program::{Place, Product, ProductTier};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use tracing::warn;
use weir_device::cuda::{self, Context, CublasLt, CudaError, Products};

/// Memory that one product may work in, at most: what NVIDIA recommends for its largest devices. Slots have it only while they run such products.
const WORKSPACE_BYTES_MAX: u64 = 32 << 20;
/// The share of a device's memory that it is at most, so that on a small one no run fails for want of it.
const WORKSPACE_SHARE: u64 = 256;

/// The library that is to be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LibraryConfig {
    /// Its file. Found by the node, which has the environment that says where to look; opened by whoever holds the device.
    pub(super) path: PathBuf,
    /// From how many operations on a product is its.
    pub(super) flops_min: u64,
}

/// The library on a device.
pub(super) struct ProductLibrary {
    products: Option<Arc<Products>>,
    tier: ProductTier,
    state: LibraryState,
}

impl ProductLibrary {
    /// Set it up, if there is one. Takes some hundred milliseconds, most of it the loader's.
    pub(super) fn open(config: Option<&LibraryConfig>, context: &Arc<Context>, capacity_bytes: u64) -> Self {
        let none = |state| Self { products: None, tier: ProductTier::Own, state };
        let Some(LibraryConfig { path, flops_min }) = config else { return none(LibraryState::None) };
        let library = match CublasLt::open(path) {
            Ok(library) => library,
            Err(why) => return none(LibraryState::Unusable(why.to_string())),
        };
        let version = library.version();
        match Products::new(library, context) {
            Ok(products) => Self {
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

    /// What computes products.
    pub(super) fn tier(&self) -> ProductTier {
        self.tier
    }

    /// What became of the library.
    pub(super) fn state(&self) -> &LibraryState {
        &self.state
    }

    /// Make a product ready; none where the library has nothing for it. An error says that the device is lost.
    pub(super) fn make(&self, product: &Product<Place>) -> Result<Option<cuda::Product>, CudaError> {
        let Some(products) = &self.products else { return Ok(None) };
        match cuda::Product::new(products, product.shape, product.workspace_bytes) {
            Err(error) if !error.is_context_lost() => {
                warn!(%error, shape = ?product.shape, "cuBLASLt fails to prepare a product: Weir's own kernels compute it");
                Ok(None)
            }
            made => made,
        }
    }
}
