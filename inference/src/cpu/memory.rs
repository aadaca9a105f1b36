//! The C library's allocator, which ONNX Runtime uses for what a model keeps. Left alone, it keeps most of an unloaded model for good.
#![allow(unsafe_code, reason = "calls into the C library")]

/// Blocks from this size on go back to the system when they are freed.
#[cfg(target_env = "gnu")]
const LARGE_BYTES: libc::c_int = 1 << 20;

/// Free memory that may lie at the end of each of the allocator's arenas.
#[cfg(target_env = "gnu")]
const IDLE_BYTES_MAX: libc::c_int = 2 << 20;

/// Have large blocks go back to the system when they are freed, for good: the allocator would otherwise, from the first time on that one is
/// freed, keep blocks of up to 32 MiB, at ends of its arenas that [`release_free`] does not reach.
pub(super) fn return_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes no pointers; it may be made at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, IDLE_BYTES_MAX);
    }
}

/// Give back what lies free between smaller blocks.
pub(super) fn release_free() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes no pointers; it may be made at any time, from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
