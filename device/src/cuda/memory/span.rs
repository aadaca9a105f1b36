//! Address ranges of a device, and owners of memory.

/// A range of device addresses: a plain value, which keeps nothing alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    address: u64,
    bytes: u64,
}

/// Owner of memory: bytes that one owner leaves in memory are never visible to another owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemoryOwner(pub u64);

impl Span {
    pub(in super::super) fn new(address: u64, bytes: u64) -> Self {
        Self { address, bytes }
    }

    /// Start address, as kernels take it.
    #[must_use]
    pub fn address(self) -> u64 {
        self.address
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// A part of the range; `None` if it would exceed the end.
    #[must_use]
    pub fn slice(self, offset: u64, bytes: u64) -> Option<Self> {
        let end = offset.checked_add(bytes)?;
        (end <= self.bytes).then(|| Self { address: self.address + offset, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slice_stays_within_the_span() {
        let whole = Span::new(1000, 100);
        assert_eq!(whole.slice(0, 100), Some(whole));
        assert_eq!(whole.slice(60, 40), Some(Span::new(1060, 40)));
        assert_eq!(whole.slice(100, 0), Some(Span::new(1100, 0)));
        assert_eq!(whole.slice(61, 40), None);
        assert_eq!(whole.slice(u64::MAX, 2), None);
    }
}
