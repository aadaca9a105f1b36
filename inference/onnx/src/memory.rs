//! Settings of the C library's allocator, which ONNX Runtime uses for a model's memory. By default,
//! the allocator keeps most of an unloaded model's memory forever.
#![allow(unsafe_code, reason = "calls into the C library")]

/// Blocks of at least this size return to the system when freed.
#[cfg(target_env = "gnu")]
const LARGE_BYTES: libc::c_int = 1 << 20;

/// The most free memory at the end of each of the allocator's arenas.
#[cfg(target_env = "gnu")]
const IDLE_BYTES_MAX: libc::c_int = 2 << 20;

/// Makes large blocks return to the system when freed, permanently. By default, the allocator
/// raises its threshold when a large block is freed: it then keeps free blocks of up to 32 MiB at
/// the ends of its arenas, which [`release_free`] does not reach.
pub(crate) fn return_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes no pointers and is allowed at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, IDLE_BYTES_MAX);
    }
}

/// Returns free memory between smaller blocks to the system.
pub(crate) fn release_free() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes no pointers and is allowed at any time, from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
