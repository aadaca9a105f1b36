//! Descriptors that the library creates for a product. Each is destroyed on drop, and is
//! independent of any device.

use super::Products;
use super::functions::CublasLtFunctions;
use crate::cuda::error::CudaError;
use cudarc::cublaslt::sys::{
    cublasComputeType_t, cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, cublasLtMatmulPreference_t,
    cublasLtMatmulPreferenceAttributes_t, cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t,
    cudaDataType_t,
};
use std::ptr;
use std::sync::Arc;

macro_rules! held {
    ($(#[$doc:meta])* $name:ident($handle:ty), $destroy:ident, $set:ident($attribute:ty)) => {
        $(#[$doc])*
        pub(super) struct $name {
            pub(super) handle: $handle,
            products: Arc<Products>,
        }

        // SAFETY: the descriptor is host memory, which any thread may use.
        unsafe impl Send for $name {}

        impl $name {
            /// Sets an attribute; `T` must be the type that the library's documentation states.
            pub(super) fn set<T: Copy>(&self, attribute: $attribute, value: T) -> Result<(), CudaError> {
                let functions = self.products.functions();
                // SAFETY: the handle is valid until the drop; the value outlives the call, which
                // copies it.
                unsafe { functions.$set(self.handle, attribute, (&raw const value).cast(), size_of::<T>()) }
            }

            fn made(
                products: &Arc<Products>,
                make: impl FnOnce(&CublasLtFunctions, *mut $handle) -> Result<(), CudaError>,
            ) -> Result<Self, CudaError> {
                let mut handle = ptr::null_mut();
                make(products.functions(), &mut handle)?;
                Ok(Self { handle, products: products.clone() })
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: created in `made`.
                let _ = unsafe { self.products.functions().$destroy(self.handle) };
            }
        }
    };
}

held! {
    /// The operation.
    Descriptor(cublasLtMatmulDesc_t), cublasLtMatmulDescDestroy, cublasLtMatmulDescSetAttribute(cublasLtMatmulDescAttributes_t)
}
held! {
    /// Layout of matrices, in column-major order.
    Layout(cublasLtMatrixLayout_t), cublasLtMatrixLayoutDestroy, cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayoutAttribute_t)
}
held! {
    /// Constraints on the selection of an algorithm.
    Preference(cublasLtMatmulPreference_t), cublasLtMatmulPreferenceDestroy, cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreferenceAttributes_t)
}

// SAFETY: a layout is not changed after its creation.
unsafe impl Sync for Layout {}

impl Descriptor {
    pub(super) fn new(products: &Arc<Products>, compute: cublasComputeType_t) -> Result<Self, CudaError> {
        // SAFETY: the handle outlives the call.
        Self::made(products, |functions, handle| unsafe {
            functions.cublasLtMatmulDescCreate(handle, compute, cudaDataType_t::CUDA_R_32F)
        })
    }
}

impl Layout {
    /// `batch` matrices, `batch_stride` elements apart; columns are `stride` elements apart.
    pub(super) fn new(
        products: &Arc<Products>,
        element_type: cudaDataType_t,
        [rows, columns]: [u64; 2],
        stride: i64,
        (batch, batch_stride): (i32, i64),
    ) -> Result<Self, CudaError> {
        // SAFETY: the handle outlives the call.
        let layout = Self::made(products, |functions, handle| unsafe {
            functions.cublasLtMatrixLayoutCreate(handle, element_type, rows, columns, stride)
        })?;
        use cublasLtMatrixLayoutAttribute_t as Attribute;
        layout.set(Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, batch)?;
        layout.set(Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, batch_stride)?;
        Ok(layout)
    }
}

impl Preference {
    pub(super) fn new(products: &Arc<Products>) -> Result<Self, CudaError> {
        // SAFETY: the handle outlives the call.
        Self::made(products, |functions, handle| unsafe { functions.cublasLtMatmulPreferenceCreate(handle) })
    }
}
