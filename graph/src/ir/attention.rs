//! Scaled dot-product attention.

/// The most elements that a head may have.
pub const HEAD_DIM_MAX: usize = 128;

/// For each batch and head: `softmax(scale * q * transpose(k) + mask) * v` ("Attention Is All You Need", section 3.2.1).
///
/// Operands: `q`, `k`, `v`, which may be parts of one value, and optionally `mask`. Output: `[batch, q_len, heads, head_dim]`, contiguous.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// How many sequences.
    pub batch: usize,
    /// How many heads each has.
    pub heads: usize,
    /// The length of the queries.
    pub q_len: usize,
    /// The length of the keys and values.
    pub kv_len: usize,
    /// The elements of a query, key or value: at most [`HEAD_DIM_MAX`].
    pub head_dim: usize,
    /// The factor.
    pub scale: f32,
    /// Where the queries are.
    pub q: Heads,
    /// Where the keys are.
    pub k: Heads,
    /// Where the values are.
    pub v: Heads,
    /// If there is a mask, how many of its elements lie between one index and the next along `[batch, heads, q_len, kv_len]`: 0 where it broadcasts.
    pub mask: Option<[usize; 4]>,
}

/// Where queries, keys or values lie in their value, in elements. Those of one head and position lie next to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// From the start of the value to the first element.
    pub offset: usize,
    /// From one sequence to the next.
    pub batch_stride: usize,
    /// From one head to the next.
    pub head_stride: usize,
    /// From one position to the next.
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
    /// How many operands there are, with those left out.
    pub const OPERANDS: usize = 4;
}
