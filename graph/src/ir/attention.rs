//! Scaled dot-product attention.

/// Largest number of elements in a head.
pub const HEAD_DIM_MAX: usize = 128;

/// Attention for each batch and head: `softmax(scale * q * transpose(k) + mask) * v` ("Attention Is
/// All You Need", section 3.2.1).
///
/// Operands: `q`, `k`, `v`, which may be parts of one value, and optionally `mask`. Output:
/// `[batch, q_len, heads, head_dim]`, contiguous.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// Number of sequences.
    pub batch: usize,
    /// Number of heads per sequence.
    pub heads: usize,
    /// Length of the queries.
    pub q_len: usize,
    /// Length of the keys and values.
    pub kv_len: usize,
    /// Number of elements in a query, key or value: at most [`HEAD_DIM_MAX`].
    pub head_dim: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Layout of the queries.
    pub q: Heads,
    /// Layout of the keys.
    pub k: Heads,
    /// Layout of the values.
    pub v: Heads,
    /// Strides of the mask along `[batch, heads, q_len, kv_len]`, in elements, if there is a mask;
    /// 0 where the mask broadcasts.
    pub mask: Option<[usize; 4]>,
}

/// Layout of queries, keys or values in their buffer, in elements. The elements of one head and
/// position are contiguous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Offset of the first element.
    pub offset: usize,
    /// Stride between sequences.
    pub batch_stride: usize,
    /// Stride between heads.
    pub head_stride: usize,
    /// Stride between positions.
    pub row_stride: usize,
}

impl Attention {
    /// The dimensions of the scores.
    #[must_use]
    pub fn scores(&self) -> [usize; 4] {
        [self.batch, self.heads, self.q_len, self.kv_len]
    }

    /// Operand: the queries.
    pub const Q: usize = 0;
    /// Operand: the keys.
    pub const K: usize = 1;
    /// Operand: the values.
    pub const V: usize = 2;
    /// Operand, optional: added to the scores.
    pub const MASK: usize = 3;
    /// Number of operands, including omitted ones.
    pub const OPERANDS: usize = 4;
}
