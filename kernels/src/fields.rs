//! Structs in the kernels' layout: fields in sequence, each aligned to its size.

/// Builder of a struct's bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fields(Vec<u8>);

impl Fields {
    pub(crate) fn u8(self, value: u8) -> Self {
        self.field(&[value])
    }

    pub(crate) fn u16(self, value: u16) -> Self {
        self.field(&value.to_le_bytes())
    }

    pub(crate) fn u32(self, value: u32) -> Self {
        self.field(&value.to_le_bytes())
    }

    pub(crate) fn i32(self, value: i32) -> Self {
        self.field(&value.to_le_bytes())
    }

    pub(crate) fn f32(self, value: f32) -> Self {
        self.field(&value.to_le_bytes())
    }

    pub(crate) fn u64(self, value: u64) -> Self {
        self.field(&value.to_le_bytes())
    }

    pub(crate) fn i64(self, value: i64) -> Self {
        self.field(&value.to_le_bytes())
    }

    /// Append an array of `N` elements: `values` in reverse order, then `rest`.
    pub(crate) fn i64s_reversed<const N: usize>(self, values: &[i64], rest: i64) -> Self {
        (0..N).fold(self, |fields, i| fields.i64(values.iter().rev().nth(i).copied().unwrap_or(rest)))
    }

    /// Append an array like [`Self::i64s_reversed`], of 32-bit elements.
    pub(crate) fn u32s_reversed<const N: usize>(self, values: &[u32], rest: u32) -> Self {
        (0..N).fold(self, |fields, i| fields.u32(values.iter().rev().nth(i).copied().unwrap_or(rest)))
    }

    /// Append a nested struct.
    pub(crate) fn fields(mut self, inner: &Self) -> Self {
        self.pad(8);
        self.0.extend_from_slice(&inner.0);
        self
    }

    /// The bytes of the struct. The size of a struct whose largest field has 8 bytes is a multiple
    /// of 8.
    pub(crate) fn bytes(mut self) -> Box<[u8]> {
        self.pad(8);
        self.0.into_boxed_slice()
    }

    fn field(mut self, bytes: &[u8]) -> Self {
        self.pad(bytes.len());
        self.0.extend_from_slice(bytes);
        self
    }

    fn pad(&mut self, multiple: usize) {
        self.0.resize(self.0.len().next_multiple_of(multiple), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_follow_c_layout() {
        let bytes = Fields::default().u16(1).u8(2).u32(3).u8(4).u64(5).u32(6).bytes();
        let expected =
            [1, 0, 2, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(*bytes, expected);
        let bytes = Fields::default().u32s_reversed::<3>(&[1, 2], 9).bytes();
        assert_eq!(*bytes, [2, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
    }
}
