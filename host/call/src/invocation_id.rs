//! Ids of invocations.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use weir_types::InvocationId;

/// Returns a new invocation id: a counter with a random start, mixed so that consecutive ids look
/// different. The random start separates the nodes of a cluster.
pub fn next_invocation_id() -> InvocationId {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    // The operating system seeds `RandomState`.
    static START: std::sync::LazyLock<u64> =
        std::sync::LazyLock::new(|| RandomState::new().build_hasher().finish());
    let count = START.wrapping_add(COUNTER.fetch_add(1, Ordering::Relaxed));
    // An odd factor is a bijection on 64 bits: no two counts share an id.
    InvocationId(count.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}
