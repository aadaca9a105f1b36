//! Blocks of physical memory.
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

/// Size of a block: the minimum mapping granularity of devices, and the smallest copy that reaches
/// the bus's full bandwidth.
pub const BLOCK_BYTES: u64 = 2 << 20;

/// Kind of handle that a block is exported as.
const FILE: HandleType = HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// 2 MiB of a device's memory, mapped or not.
#[derive(Debug)]
pub(super) struct DeviceBlock {
    context: Arc<Context>,
    handle: CUmemGenericAllocationHandle,
}

impl DeviceBlock {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        Self::with_bytes(context, BLOCK_BYTES)
    }

    /// Creates a block of a different size, a multiple of [`BLOCK_BYTES`]: only
    /// [`mapping_cost`](super::mapping_cost) uses such blocks.
    pub(super) fn with_bytes(context: &Arc<Context>, bytes: u64) -> Result<Self, CudaError> {
        let bytes = usize::try_from(bytes).map_err(|error| CudaError::Invalid(error.to_string()))?;
        let mut handle = 0;
        let properties = properties(context);
        // SAFETY: both outlive the call; the created block is released on drop.
        context.call(|driver| unsafe { driver.cuMemCreate(&mut handle, bytes, &properties, 0) })?;
        Ok(Self { context: context.clone(), handle })
    }

    /// A file that gives another process access to the block. Only devices that
    /// [can](crate::cuda::DeviceInfo::exports_memory) export support this.
    pub(super) fn export(&self) -> Result<OwnedFd, CudaError> {
        let mut file: c_int = -1;
        // SAFETY: for this kind of handle the driver writes a file descriptor to `file`, which
        // outlives the call.
        self.context.call(|driver| unsafe {
            driver.cuMemExportToShareableHandle(ptr::from_mut(&mut file).cast(), self.handle, FILE, 0)
        })?;
        // SAFETY: the driver has opened the descriptor for this process.
        Ok(unsafe { OwnedFd::from_raw_fd(file) })
    }

    /// Imports the block that another process exported as `file`, from any device.
    pub(super) fn import(context: &Arc<Context>, file: &OwnedFd) -> Result<Self, CudaError> {
        let mut handle = 0;
        let number = file.as_raw_fd();
        // The driver takes the descriptor itself in place of a pointer.
        let number = ptr::without_provenance_mut::<c_void>(usize::try_from(number).unwrap_or_default());
        // SAFETY: the file is open, and stays its owner's; `handle` outlives the call; the imported
        // block is released on drop.
        context.call(|driver| unsafe { driver.cuMemImportFromShareableHandle(&mut handle, number, FILE) })?;
        Ok(Self { context: context.clone(), handle })
    }

    pub(super) fn handle(&self) -> CUmemGenericAllocationHandle {
        self.handle
    }
}

impl Drop for DeviceBlock {
    fn drop(&mut self) {
        // SAFETY: created in `new`, or imported; the driver keeps the memory while it is mapped.
        self.context.release("memory block", |driver| unsafe { driver.cuMemRelease(self.handle) });
    }
}

/// Location of a device's blocks.
pub(super) fn location(context: &Context) -> CUmemLocation {
    CUmemLocation {
        type_: LocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: c_int::try_from(context.info().ordinal).unwrap_or(c_int::MAX),
    }
}

/// Properties of a new block.
pub(super) fn properties(context: &Context) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: AllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        // Exportable, so that the process of another device can read it. No other process has
        // access before the export.
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
