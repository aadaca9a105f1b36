//! What a launch can have, and numbers as kernels take them.

use crate::Target;

/// The most blocks in the second and third directions of a grid.
pub(super) const BLOCKS_MAX: u32 = 65_535;

/// Blocks of a walk over elements for each multiprocessor: enough to fill it, few enough that each has something to do.
const BLOCKS_PER_MULTIPROCESSOR: u64 = 32;

/// `value` as kernels take sizes: below 2^31, so that their sums of two do not wrap.
pub(super) fn size(what: &str, value: usize) -> Result<u32, String> {
    u32::try_from(value)
        .ok()
        .filter(|value| *value <= i32::MAX as u32)
        .ok_or_else(|| format!("with a {what} of {value}, which is over {}", i32::MAX))
}

/// The same for what a grid has in its second or third direction.
pub(super) fn blocks(what: &str, value: usize) -> Result<u32, String> {
    size(what, value)?;
    u32::try_from(value)
        .ok()
        .filter(|value| *value <= BLOCKS_MAX)
        .ok_or_else(|| format!("with {value} {what}, which is over {BLOCKS_MAX}"))
}

/// An offset or a distance in elements.
pub(super) fn stride(value: usize) -> Result<i64, String> {
    i64::try_from(value).map_err(|_| format!("with a stride of {value}"))
}

/// The product of sizes that a kernel counts through in 32 bits.
pub(super) fn product(what: &str, sizes: &[usize]) -> Result<usize, String> {
    let product = sizes.iter().try_fold(1_usize, |product, size| product.checked_mul(*size));
    let product = product.ok_or_else(|| format!("with too many {what}"))?;
    size(what, product)?;
    Ok(product)
}

/// That all elements of a block are among `elements`: it begins at `offset`, and along each direction has a size and a distance from one
/// to the next.
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

/// Blocks for threads that walk over `count` elements, each `per_block` of them at a time.
pub(super) fn walk(count: u64, per_block: u32, target: &Target) -> [u32; 3] {
    let most = u64::from(target.multiprocessors.max(1)) * BLOCKS_PER_MULTIPROCESSOR;
    let blocks = count.div_ceil(u64::from(per_block)).clamp(1, most);
    [u32::try_from(blocks).unwrap_or(u32::MAX), 1, 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_past_what_kernels_count_in_are_refused() {
        assert!(size("row", 1 << 31).is_err());
        assert!(blocks("groups", 65_536).is_err());
        assert_eq!(blocks("groups", 65_535), Ok(65_535));
        assert!(product("elements", &[1 << 20, 1 << 20, 1 << 40]).is_err());
    }

    #[test]
    fn the_last_element_of_a_block_must_be_there() {
        assert_eq!(all_there(3, [(2, 10), (4, 1)], 17), Ok(()));
        assert!(all_there(3, [(2, 10), (4, 1)], 16).is_err());
        assert!(all_there(0, [(0, 1)], 16).is_err());
        assert!(all_there(1, [(3, usize::MAX)], 16).is_err());
    }

    #[test]
    fn a_walk_has_no_more_blocks_than_fill_the_device() {
        assert_eq!(walk(1, 256, &Target::H200), [1, 1, 1]);
        assert_eq!(walk(1 << 40, 256, &Target::H200), [132 * 32, 1, 1]);
    }
}
