//! ONNX's operator `Attention`: products, softmax and masks, which [`crate::Graph::fuse`] turns into
//! one device operation where possible.

use crate::GraphError;
use crate::ir::{Binary, Instruction, NumberType, ReduceKind, Scalar, ValueId};
use crate::lower::call::LoweringCall;
use crate::lower::functions::{X, activate, number, with};
use crate::lower::index::MASK_ELEMENTS_MAX;
use crate::lower::matmul::Factor;
use crate::lower::{Lowering, Made};
use crate::reference::{ReferenceData, ReferenceTensor};
use weir_types::ElementType;

/// Lower `Attention` of opset 23 and later.
pub(in crate::lower) fn attention(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    if ["left_window_size", "right_window_size"].iter().any(|name| call.int(name).is_some_and(|n| n >= 0)) {
        return Err(call.unsupported("a local window is"));
    }
    let sides = Sides::read(lowering, call)?;
    let shape = HeadShape::new(lowering, call, &sides)?;
    let bias = lowering.attention_bias(call, &sides, &shape)?;
    let layout = HeadLayout::choose(lowering, &shape, bias.map(|bias| bias.value));

    let q =
        lowering.view(call, sides.q, layout.with(layout.queries.clone(), [shape.q_len, shape.head_dim]))?;
    let k = lowering.view(call, sides.k, layout.with(layout.keys.clone(), [shape.kv_len, shape.head_dim]))?;
    let v =
        lowering.view(call, sides.v, layout.with(layout.keys.clone(), [shape.kv_len, shape.value_dim]))?;
    let scale = call.float("scale").unwrap_or(1.0 / (shape.head_dim as f32).sqrt());
    let mut scores = lowering.product(call, Factor::new(q), Factor { value: k, transposed: true }, scale)?;
    let element_type = lowering.element_type(q);
    let mode = call.int("qk_matmul_output_mode").unwrap_or(0);
    let mut shown = scores;
    if let Some(cap) = call.float("softcap").filter(|cap| *cap > 0.0) {
        let tanh = activate(crate::ir::Activation::Tanh);
        let code = vec![X, number(cap), with(Binary::Div), tanh, number(cap), with(Binary::Mul)];
        scores = lowering.elementwise(call, NumberType::Float, code, &[scores], element_type)?;
    }
    shown = if mode == 1 { scores } else { shown };
    let mut open = None;
    if let Some(AttentionBias { value, may_close_rows }) = bias {
        let value = lowering.view(call, value, layout.bias(lowering.tensor(value).dims(), &shape))?;
        let code = vec![X, Instruction::Load(1), with(Binary::Add)];
        scores = lowering.elementwise(call, NumberType::Float, code, &[scores, value], element_type)?;
        if may_close_rows {
            open = lowering.open_rows(call, value)?;
        }
    }
    shown = if mode == 2 { scores } else { shown };
    let mut weights = lowering.softmax_of_rows(scores, shape.kv_len);
    if mode == 3 {
        weights = lowering.only_open(call, weights, open.take())?;
        shown = weights;
    }
    let y = lowering.product(call, Factor::new(weights), Factor::new(v), 1.0)?;
    let y = lowering.only_open(call, y, open)?;
    let HeadShape { batch, q_heads, q_len, kv_len, value_dim, .. } = shape;
    let mut y = lowering.view(call, y, [batch, q_heads, q_len, value_dim])?;
    if sides.are_packed {
        y = lowering.transposed(call, y, &[0, 2, 1, 3])?;
        y = lowering.view(call, y, [batch, q_len, q_heads * value_dim])?;
    }
    let shown = lowering.view(call, shown, [batch, q_heads, q_len, kv_len])?;
    Ok(vec![Some(y), Some(sides.k), Some(sides.v), Some(shown)])
}

/// Queries, keys and values, each `[batch, heads, positions, elements]`; past keys and values are
/// part of the keys and values.
struct Sides {
    q: ValueId,
    k: ValueId,
    v: ValueId,
    /// Number of keys that precede the first query.
    past_len: usize,
    /// Whether the inputs have three dimensions.
    are_packed: bool,
}

impl Sides {
    fn read(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Result<Self, GraphError> {
        let q = call.input(0)?;
        let element_type = lowering.element_type(q);
        let are_packed = lowering.dims(q).len() == 3;
        let mut sides = [q, call.input(1)?, call.input(2)?];
        for (side, name) in sides.iter_mut().zip(["q_num_heads", "kv_num_heads", "kv_num_heads"]) {
            if lowering.element_type(*side) != element_type {
                return Err(call.unsupported("queries, keys and values of several types are"));
            }
            if are_packed {
                *side = lowering.split_heads(call, *side, name)?;
            }
        }
        let [q, mut k, mut v] = sides;
        let mut past_len = 0;
        match (call.optional(4), call.optional(5)) {
            (None, None) => {}
            (Some(past_k), Some(past_v)) => {
                past_len = lowering.dims(past_k).get(2).copied().unwrap_or(0);
                k = lowering.joined(call, &[past_k, k], 2)?;
                v = lowering.joined(call, &[past_v, v], 2)?;
            }
            _ => return Err(call.invalid("past keys come without past values, or past values without keys")),
        }
        Ok(Self { q, k, v, past_len, are_packed })
    }
}

/// Sizes of the queries, keys and values.
struct HeadShape {
    batch: usize,
    q_heads: usize,
    kv_heads: usize,
    q_len: usize,
    kv_len: usize,
    head_dim: usize,
    value_dim: usize,
}

impl HeadShape {
    fn new(lowering: &Lowering<'_>, call: &LoweringCall<'_>, sides: &Sides) -> Result<Self, GraphError> {
        let all = [sides.q, sides.k, sides.v].map(|side| lowering.dims(side));
        let misfit = || call.invalid(format!("queries, keys and values of {all:?} do not fit together"));
        let [q, k, v] = &all;
        let (&[batch, q_heads, q_len, head_dim], &[_, kv_heads, kv_len, _], &[_, _, _, value_dim]) =
            (q.as_slice(), k.as_slice(), v.as_slice())
        else {
            return Err(misfit());
        };
        let fits = *k == [batch, kv_heads, kv_len, head_dim] && *v == [batch, kv_heads, kv_len, value_dim];
        let sizes = [batch, q_heads, kv_heads, q_len, kv_len, head_dim, value_dim];
        if !fits || sizes.contains(&0) || !q_heads.is_multiple_of(kv_heads) {
            return Err(misfit());
        }
        Ok(Self { batch, q_heads, kv_heads, q_len, kv_len, head_dim, value_dim })
    }
}

/// Outer dimensions of the products. Queries of several heads share the keys of one head by
/// broadcasting along the last outer dimension.
struct HeadLayout {
    queries: Vec<usize>,
    keys: Vec<usize>,
}

impl HeadLayout {
    /// Choose two outer dimensions where the bias allows it, since fusion needs two.
    fn choose(lowering: &Lowering<'_>, shape: &HeadShape, bias: Option<ValueId>) -> Self {
        let HeadShape { batch, q_heads, kv_heads, .. } = *shape;
        let group = q_heads / kv_heads;
        let is_shared = bias.is_none_or(|bias| lowering.tensor(bias).dims().starts_with(&[1, 1]));
        if group == 1 {
            Self { queries: vec![batch, q_heads], keys: vec![batch, q_heads] }
        } else if batch == 1 || is_shared {
            Self { queries: vec![batch * kv_heads, group], keys: vec![batch * kv_heads, 1] }
        } else {
            Self { queries: vec![batch, kv_heads, group], keys: vec![batch, kv_heads, 1] }
        }
    }

    fn with(&self, mut outer: Vec<usize>, inner: [usize; 2]) -> Vec<usize> {
        outer.extend(inner);
        outer
    }

    /// Dimensions under which a bias of four dimensions broadcasts to the scores.
    fn bias(&self, dims: &[usize], shape: &HeadShape) -> Vec<usize> {
        let &[batch, heads, rows, columns] = dims else { return dims.to_vec() };
        let group = shape.q_heads / shape.kv_heads;
        let mut out = match (self.queries.len(), heads) {
            (2, heads) if group == 1 => vec![batch, heads],
            (2, 1) => vec![1, 1],
            (2, _) => vec![shape.kv_heads, group],
            (_, 1) => vec![batch, 1, 1],
            _ => vec![batch, shape.kv_heads, group],
        };
        out.extend([rows, columns]);
        out
    }
}

/// Summand of the scores, of four dimensions.
#[derive(Clone, Copy)]
struct AttentionBias {
    value: ValueId,
    /// Whether all keys of a query may be masked.
    may_close_rows: bool,
}

impl Lowering<'_> {
    /// Make `[batch, heads, positions, elements]` from `[batch, positions, heads * elements]`.
    fn split_heads(
        &mut self,
        call: &LoweringCall<'_>,
        side: ValueId,
        name: &str,
    ) -> Result<ValueId, GraphError> {
        let dims = self.dims(side);
        let heads = call.int(name).and_then(|heads| usize::try_from(heads).ok()).filter(|heads| *heads > 0);
        match (dims.as_slice(), heads) {
            (&[batch, len, hidden], Some(heads)) if hidden.is_multiple_of(heads) => {
                let split = self.view(call, side, [batch, len, heads, hidden / heads])?;
                self.transposed(call, split, &[0, 2, 1, 3])
            }
            _ => Err(call.invalid(format!("{name} {heads:?} does not divide {dims:?} into heads"))),
        }
    }

    /// The sum of the mask, the causal mask and the mask of padded keys.
    fn attention_bias(
        &mut self,
        call: &LoweringCall<'_>,
        sides: &Sides,
        shape: &HeadShape,
    ) -> Result<Option<AttentionBias>, GraphError> {
        let element_type = self.element_type(sides.q);
        let HeadShape { batch, q_heads, q_len, kv_len, .. } = *shape;
        let mut code = Vec::new();
        let mut operands = Vec::new();
        // The program on the stack is a condition: masked elements become negative infinity.
        let masked = [number(0.0), number(f32::NEG_INFINITY), Instruction::Where];
        let mut add = |value: ValueId, parts: &[Instruction]| {
            let is_first = operands.is_empty();
            code.push(Instruction::Load(operands.len() as u8));
            operands.push(value);
            code.extend_from_slice(parts);
            if !is_first {
                code.push(with(Binary::Add));
            }
        };
        if let Some(mask) = call.optional(3) {
            let mut dims = self.dims(mask);
            let missing = 4_usize.saturating_sub(dims.len());
            dims.splice(0..0, std::iter::repeat_n(1, missing));
            let scores = [batch, q_heads, q_len, kv_len];
            let fits =
                dims.len() == 4 && dims.iter().zip(scores).all(|(dim, size)| *dim == size || *dim == 1);
            if !fits {
                return Err(
                    call.unsupported(format!("a mask of {} for scores of {scores:?} is", self.tensor(mask)))
                );
            }
            let mask = self.view(call, mask, dims)?;
            add(mask, if self.element_type(mask) == ElementType::Bool { &masked } else { &[] });
        }
        let lens = match call.optional(6) {
            Some(lens) if self.dims(lens) == [batch] => Some(self.view(call, lens, [batch, 1, 1, 1])?),
            Some(lens) => {
                return Err(
                    call.invalid(format!("{} is not one length for each sequence", self.tensor(lens)))
                );
            }
            None => None,
        };
        if let Some(is_open) = self.open_keys(call, sides, shape, lens)? {
            add(is_open, &masked);
        }
        if operands.is_empty() {
            return Ok(None);
        }
        let may_close_rows = call.optional(3).is_some() || lens.is_some();
        let value = match (code.as_slice(), operands.as_slice()) {
            ([Instruction::Load(0)], &[mask]) => self.cast(call, mask, element_type)?,
            _ => self.elementwise(call, NumberType::Float, code, &operands, element_type)?,
        };
        Ok(Some(AttentionBias { value, may_close_rows }))
    }

    /// Return whether each query attends to each key, by the order of the keys and the lengths of
    /// the sequences; `None` if all do.
    fn open_keys(
        &mut self,
        call: &LoweringCall<'_>,
        sides: &Sides,
        shape: &HeadShape,
        lens: Option<ValueId>,
    ) -> Result<Option<ValueId>, GraphError> {
        let HeadShape { q_len, kv_len, .. } = *shape;
        let is_causal = call.flag("is_causal");
        match lens {
            Some(lens) => {
                // Each limit is the smallest length at which a query attends to a key.
                let columns = self.positions(call, [1, kv_len], |_, column| column + 1)?;
                let mut limits = columns;
                if is_causal {
                    let q_len = q_len as i64;
                    let causal =
                        self.positions(call, [q_len as usize, kv_len], |row, column| column - row + q_len)?;
                    let code = vec![X, Instruction::Load(1), with(Binary::Max)];
                    limits = self.elementwise(
                        call,
                        NumberType::Integer,
                        code,
                        &[columns, causal],
                        ElementType::Int64,
                    )?;
                }
                let code = vec![X, Instruction::Load(1), with(Binary::LessEqual)];
                let is_open =
                    self.elementwise(call, NumberType::Integer, code, &[limits, lens], ElementType::Bool)?;
                Ok(Some(is_open))
            }
            None if is_causal => {
                let past = sides.past_len as i64;
                let is_open =
                    self.positions(call, [q_len, kv_len], |row, column| i64::from(column <= row + past))?;
                Ok(Some(is_open))
            }
            None => Ok(None),
        }
    }

    /// Make a constant of one integer for each query and key.
    fn positions(
        &mut self,
        call: &LoweringCall<'_>,
        [rows, columns]: [usize; 2],
        element: impl Fn(i64, i64) -> i64,
    ) -> Result<ValueId, GraphError> {
        if rows.saturating_mul(columns) > MASK_ELEMENTS_MAX {
            return Err(call.unsupported(format!("a mask of {rows} by {columns} is")));
        }
        let element = &element;
        let elements =
            (0..rows as i64).flat_map(|row| (0..columns as i64).map(move |column| element(row, column)));
        let tensor = call.tensor(ElementType::Int64, [1, 1, rows, columns])?;
        Ok(self.constant(ReferenceTensor::integers(tensor, elements.collect())))
    }

    /// For each query, the largest summand of its scores: negative infinity if all its keys are
    /// masked. `None` if no query is known to have such keys.
    fn open_rows(&mut self, call: &LoweringCall<'_>, bias: ValueId) -> Result<Option<ValueId>, GraphError> {
        let last = self.dims(bias).len().saturating_sub(1);
        let most = self.reduced(call, bias, ReduceKind::Max, &[last], true)?;
        let all_open = self.known(most).is_some_and(|most| match most.data() {
            ReferenceData::Floats(floats) => floats.iter().all(|float| *float > f32::NEG_INFINITY),
            ReferenceData::Integers(_) => false,
        });
        Ok((!all_open).then_some(most))
    }

    /// Replace the rows of queries without an unmasked key by zeroes.
    fn only_open(
        &mut self,
        call: &LoweringCall<'_>,
        x: ValueId,
        open: Option<ValueId>,
    ) -> Result<ValueId, GraphError> {
        let Some(open) = open else { return Ok(x) };
        let element_type = self.element_type(x);
        let none = Instruction::Constant(Scalar::Float(f32::NEG_INFINITY));
        let code =
            vec![Instruction::Load(1), none, with(Binary::Greater), X, number(0.0), Instruction::Where];
        self.elementwise(call, NumberType::Float, code, &[x, open], element_type)
    }
}
