//! Limits of a launch, and conversions to the number types of kernels.

use crate::KernelTarget;

/// Largest number of blocks in the second and third directions of a grid.
pub(super) const BLOCKS_MAX: u32 = 65_535;

/// Number of blocks per multiprocessor for a loop over elements: enough to occupy it, and few
/// enough to give each block several elements.
const BLOCKS_PER_MULTIPROCESSOR: u64 = 32;

/// `value` as a size in kernels: below 2^31, so that the sum of two sizes does not overflow.
pub(super) fn size(what: &str, value: usize) -> Result<u32, String> {
    u32::try_from(value)
        .ok()
        .filter(|value| *value <= i32::MAX as u32)
        .ok_or_else(|| format!("with a {what} of {value}, which is over {}", i32::MAX))
}

/// `value` as the number of blocks in the second or third direction of a grid.
pub(super) fn blocks(what: &str, value: usize) -> Result<u32, String> {
    size(what, value)?;
    u32::try_from(value)
        .ok()
        .filter(|value| *value <= BLOCKS_MAX)
        .ok_or_else(|| format!("with {value} {what}, which is over {BLOCKS_MAX}"))
}

/// An offset or a stride in elements.
pub(super) fn stride(value: usize) -> Result<i64, String> {
    i64::try_from(value).map_err(|_| format!("with a stride of {value}"))
}

/// Product of sizes that a kernel iterates over with 32-bit indices.
pub(super) fn product(what: &str, sizes: &[usize]) -> Result<usize, String> {
    let product = sizes.iter().try_fold(1_usize, |product, size| product.checked_mul(*size));
    let product = product.ok_or_else(|| format!("with too many {what}"))?;
    size(what, product)?;
    Ok(product)
}

/// Check that all elements of a block are among `elements`. The block begins at `offset`; `along`
/// has the size and the stride of each direction.
pub(super) fn all_there(
    offset: usize,
    along: impl IntoIterator<Item = (usize, usize)>,
    elements: usize,
) -> Result<(), String> {
    let last = along
        .into_iter()
        .try_fold(offset, |last, (size, stride)| last.checked_add(size.checked_sub(1)?.checked_mul(stride)?));
    match last {
        Some(last) if last < elements => Ok(()),
        _ => Err("of elements that are not there".to_owned()),
    }
}

/// Grid for threads that loop over `count` elements, with `per_block` of them per block and
/// iteration.
pub(super) fn walk(count: u64, per_block: u32, target: &KernelTarget) -> [u32; 3] {
    let most = u64::from(target.multiprocessors.max(1)) * BLOCKS_PER_MULTIPROCESSOR;
    let blocks = count.div_ceil(u64::from(per_block)).clamp(1, most);
    [u32::try_from(blocks).unwrap_or(u32::MAX), 1, 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_over_31_bits_are_rejected() {
        assert!(size("row", 1 << 31).is_err());
        assert!(blocks("groups", 65_536).is_err());
        assert_eq!(blocks("groups", 65_535), Ok(65_535));
        assert!(product("elements", &[1 << 20, 1 << 20, 1 << 40]).is_err());
    }

    #[test]
    fn block_past_end_of_buffer_is_rejected() {
        assert_eq!(all_there(3, [(2, 10), (4, 1)], 17), Ok(()));
        assert!(all_there(3, [(2, 10), (4, 1)], 16).is_err());
        assert!(all_there(0, [(0, 1)], 16).is_err());
        assert!(all_there(1, [(3, usize::MAX)], 16).is_err());
    }

    #[test]
    fn loop_grid_is_limited_by_multiprocessors() {
        assert_eq!(walk(1, 256, &KernelTarget::H200), [1, 1, 1]);
        assert_eq!(walk(1 << 40, 256, &KernelTarget::H200), [132 * 32, 1, 1]);
    }
}
