//! One block of physical memory.
#![allow(unsafe_code, reason = "the driver is called")]

use crate::cuda::context::Context;
use crate::cuda::error::CudaError;
use cudarc::driver::sys::{
    CUmemAllocationHandleType_enum as HandleType, CUmemAllocationProp,
    CUmemAllocationProp_st__bindgen_ty_1 as AllocationFlags, CUmemAllocationType_enum as AllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType_enum as LocationType,
};
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

/// How big a block is: what devices map at least, and copies need to reach the bus's full speed.
pub const BLOCK_BYTES: u64 = 2 << 20;

/// What a block is exported as.
const FILE: HandleType = HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// 2 MiB of a device, wherever they are mapped.
#[derive(Debug)]
pub(super) struct Block {
    context: Arc<Context>,
    handle: CUmemGenericAllocationHandle,
}

impl Block {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        Self::with_bytes(context, BLOCK_BYTES)
    }

    /// A block of another size, a multiple of [`BLOCK_BYTES`]: only [`mapping_cost`](super::mapping_cost) makes such blocks.
    pub(super) fn with_bytes(context: &Arc<Context>, bytes: u64) -> Result<Self, CudaError> {
        let bytes = usize::try_from(bytes).map_err(|error| CudaError::Invalid(error.to_string()))?;
        let (mut handle, properties) = (0, properties(context));
        // SAFETY: both outlive the call; what is created is released on drop.
        context.call(|driver| unsafe { driver.cuMemCreate(&mut handle, bytes, &properties, 0) })?;
        Ok(Self { context: Arc::clone(context), handle })
    }

    /// A file by which another process can have it. Only devices that [can](crate::cuda::DeviceInfo::exports_memory) give one.
    pub(super) fn export(&self) -> Result<OwnedFd, CudaError> {
        let mut file: c_int = -1;
        // SAFETY: for this kind of handle the driver writes the number of a file, which outlives the call.
        self.context.call(|driver| unsafe {
            driver.cuMemExportToShareableHandle(ptr::from_mut(&mut file).cast(), self.handle, FILE, 0)
        })?;
        // SAFETY: the driver has opened it for us.
        Ok(unsafe { OwnedFd::from_raw_fd(file) })
    }

    /// The block of another process that `file` is, of whichever device.
    pub(super) fn import(context: &Arc<Context>, file: &OwnedFd) -> Result<Self, CudaError> {
        let (mut handle, number) = (0, file.as_raw_fd());
        // The driver takes the number itself where a pointer stands.
        let number = ptr::without_provenance_mut::<c_void>(usize::try_from(number).unwrap_or_default());
        // SAFETY: the file is open, and stays its owner's; `handle` outlives the call; what is imported is released on drop.
        context.call(|driver| unsafe { driver.cuMemImportFromShareableHandle(&mut handle, number, FILE) })?;
        Ok(Self { context: Arc::clone(context), handle })
    }

    pub(super) fn handle(&self) -> CUmemGenericAllocationHandle {
        self.handle
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: created in `new`, or imported; the driver keeps the memory for as long as it is mapped somewhere.
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
        // So that a part of it can be read by the process of another device. No other process has it before it is exported.
        requestedHandleTypes: if context.info().exports_memory { FILE } else { HandleType(0) },
        location: location(context),
        win32HandleMetaData: ptr::null_mut(),
        allocFlags: AllocationFlags {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}
