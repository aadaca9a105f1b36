//! One block of physical memory.
#![allow(unsafe_code, reason = "the driver is called")]

use crate::cuda::context::Context;
use crate::cuda::error::CudaError;
use cudarc::driver::sys::{
    CUmemAllocationHandleType_enum as HandleType, CUmemAllocationProp,
    CUmemAllocationProp_st__bindgen_ty_1 as AllocationFlags, CUmemAllocationType_enum as AllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType_enum as LocationType,
};
use std::ffi::c_int;
use std::sync::Arc;

/// How big a block is: what devices map at least, and copies need to reach the bus's full speed.
pub const BLOCK_BYTES: u64 = 2 << 20;

/// 2 MiB of a device, wherever they are mapped.
#[derive(Debug)]
pub(super) struct Block {
    context: Arc<Context>,
    handle: CUmemGenericAllocationHandle,
}

impl Block {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        let (mut handle, properties) = (0, properties(context));
        // SAFETY: both outlive the call; what is created is released on drop.
        context.call(|driver| unsafe {
            driver.cuMemCreate(&mut handle, BLOCK_BYTES as usize, &properties, 0)
        })?;
        Ok(Self { context: Arc::clone(context), handle })
    }

    pub(super) fn handle(&self) -> CUmemGenericAllocationHandle {
        self.handle
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: created in `new`; the driver keeps the memory for as long as it is mapped somewhere.
        self.context.release("memory block", |driver| unsafe { driver.cuMemRelease(self.handle) });
    }
}

/// Where a device's blocks are.
pub(super) fn location(context: &Context) -> CUmemLocation {
    CUmemLocation {
        type_: LocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: c_int::try_from(context.info().ordinal).unwrap_or(c_int::MAX),
    }
}

/// What a block is asked of the driver as.
pub(super) fn properties(context: &Context) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: AllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        // Shared with no other process.
        requestedHandleTypes: HandleType(0),
        location: location(context),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: AllocationFlags {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}
