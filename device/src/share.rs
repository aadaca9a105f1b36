//! Share of a memory for data that yields to requests.

/// `percent_max` of the free part of a memory of `capacity_bytes`, in bytes. The asking store holds
/// `own_bytes` of the `used_bytes`; memory that no other consumer uses counts as free. Free memory
/// is for bursts of requests, which must not collide with stored data (the rule of StreamBox's
/// elastic communication store, Wu et al., USENIX ATC 2024).
#[must_use]
pub fn share_of_free_bytes(capacity_bytes: u64, used_bytes: u64, own_bytes: u64, percent_max: u64) -> u64 {
    let others_bytes = used_bytes.saturating_sub(own_bytes);
    let free_bytes = capacity_bytes.saturating_sub(others_bytes);
    let share = u128::from(free_bytes) * u128::from(percent_max.min(100)) / 100;
    u64::try_from(share).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_excludes_only_other_users() {
        assert_eq!(share_of_free_bytes(1_000, 0, 0, 25), 250);
        assert_eq!(share_of_free_bytes(1_000, 600, 200, 50), 300);
        assert_eq!(share_of_free_bytes(1_000, 1_200, 100, 50), 0);
        assert_eq!(share_of_free_bytes(u64::MAX, 0, 0, 1_000), u64::MAX);
    }
}
