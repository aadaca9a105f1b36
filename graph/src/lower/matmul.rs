//! Matrix products.

use super::call::LoweringCall;
use super::dims::{broadcast, broadcast_strides, collapse, unsigned};
use super::{Lowering, Made};
use crate::GraphError;
use crate::ir::{BiasAxis, Binary, Instruction, MatMul, Matrix, NumberType, Op, Scalar, ValueId};

/// Largest number of batch dimensions.
pub(crate) const BATCH_DIMS_MAX: usize = 4;

pub(super) fn matmul(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let a = Factor::new(call.input(0)?);
    let b = Factor::new(call.input(1)?);
    Ok(vec![Some(lowering.product(call, a, b, 1.0)?)])
}

/// Lower ONNX Runtime's `FusedMatMul`: a product with a factor, of matrices that may be transposed.
pub(super) fn fused(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    if call.flag("transBatchA") || call.flag("transBatchB") {
        return Err(call.unsupported("transposed batches are"));
    }
    let a = Factor { value: call.input(0)?, transposed: call.flag("transA") };
    let b = Factor { value: call.input(1)?, transposed: call.flag("transB") };
    Ok(vec![Some(lowering.product(call, a, b, call.float("alpha").unwrap_or(1.0))?)])
}

/// Lower `alpha * a * b + beta * c`.
pub(super) fn gemm(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let a = Factor { value: call.input(0)?, transposed: call.flag("transA") };
    let b = Factor { value: call.input(1)?, transposed: call.flag("transB") };
    if lowering.dims(a.value).len() != 2 || lowering.dims(b.value).len() != 2 {
        return Err(call.invalid(format!(
            "{} and {} are not matrices",
            lowering.tensor(a.value),
            lowering.tensor(b.value)
        )));
    }
    let alpha = call.float("alpha").unwrap_or(1.0);
    let y = lowering.product(call, a, b, alpha)?;
    let (Some(c), beta) = (call.optional(2), call.float("beta").unwrap_or(1.0)) else {
        return Ok(vec![Some(y)]);
    };
    let element_type = lowering.element_type(y);
    let out = lowering.dims(y);
    if broadcast(&[&out, lowering.tensor(c).dims()]) != Some(out.clone()) {
        return Err(call.invalid(format!("{} does not broadcast to {out:?}", lowering.tensor(c))));
    }
    let mut c = c;
    if beta != 1.0 {
        let beta = Instruction::Constant(Scalar::Float(beta));
        let code = vec![Instruction::Load(0), beta, Instruction::Binary(Binary::Mul)];
        c = lowering.elementwise(call, NumberType::Float, code, &[c], element_type)?;
    }
    let code = vec![Instruction::Load(0), Instruction::Load(1), Instruction::Binary(Binary::Add)];
    Ok(vec![Some(lowering.elementwise(call, NumberType::Float, code, &[y, c], element_type)?)])
}

/// Lower `Einsum` where it equals a product of two matrices.
pub(super) fn einsum(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let equation: String = call.text("equation", "")?.chars().filter(|c| !c.is_whitespace()).collect();
    let unsupported = || call.unsupported(format!("the equation {equation:?} is"));
    let (operands, out) = equation.split_once("->").ok_or_else(unsupported)?;
    let (left, right) = operands.split_once(',').ok_or_else(unsupported)?;
    let a = call.input(0)?;
    let b = call.input(1)?;
    let [left, right, out]: [Vec<char>; 3] = [left, right, out].map(|letters| letters.chars().collect());
    for letters in [&left, &right, &out] {
        let twice = letters.iter().enumerate().any(|(at, letter)| letters[..at].contains(letter));
        if twice || !letters.iter().all(char::is_ascii_alphabetic) {
            return Err(unsupported());
        }
    }
    let a_dims = lowering.dims(a);
    let b_dims = lowering.dims(b);
    if a_dims.len() != left.len() || b_dims.len() != right.len() {
        return Err(call.invalid(format!("{equation:?} is for other numbers of dimensions")));
    }
    let pick = |letters: &[char], is: &dyn Fn(&char) -> bool| -> Vec<char> {
        letters.iter().copied().filter(is).collect()
    };
    let batch = pick(&out, &|letter| left.contains(letter) && right.contains(letter));
    let rows = pick(&out, &|letter| left.contains(letter) && !right.contains(letter));
    let columns = pick(&out, &|letter| !left.contains(letter) && right.contains(letter));
    let inner = pick(&left, &|letter| right.contains(letter) && !out.contains(letter));
    if batch.len() + rows.len() + inner.len() != left.len()
        || batch.len() + columns.len() + inner.len() != right.len()
        || batch.len() + rows.len() + columns.len() != out.len()
    {
        return Err(unsupported());
    }
    let size = |letter: &char| -> usize {
        let of = |letters: &[char], dims: &[usize]| {
            letters.iter().position(|other| other == letter).and_then(|at| dims.get(at).copied())
        };
        of(&left, &a_dims).or_else(|| of(&right, &b_dims)).unwrap_or(1)
    };
    let sizes = |letters: &[char]| -> Vec<usize> { letters.iter().map(size).collect() };
    let order = |own: &[char], wanted: &[&[char]]| -> Vec<usize> {
        wanted
            .iter()
            .flat_map(|letters| letters.iter())
            .filter_map(|letter| own.iter().position(|other| other == letter))
            .collect()
    };
    if sizes(&right) != b_dims {
        return Err(call.invalid(format!("{a_dims:?} and {b_dims:?} do not fit {equation:?}")));
    }
    let count = |letters: &[char]| sizes(letters).iter().product::<usize>();
    let with = |two: [usize; 2]| -> Vec<usize> { sizes(&batch).into_iter().chain(two).collect() };
    let a = lowering.transposed(call, a, &order(&left, &[&batch, &rows, &inner]))?;
    let a = lowering.view(call, a, with([count(&rows), count(&inner)]))?;
    let b = lowering.transposed(call, b, &order(&right, &[&batch, &inner, &columns]))?;
    let b = lowering.view(call, b, with([count(&inner), count(&columns)]))?;
    let y = lowering.product(call, Factor::new(a), Factor::new(b), 1.0)?;
    let made = [batch, rows, columns].concat();
    let y = lowering.view(call, y, sizes(&made))?;
    Ok(vec![Some(lowering.transposed(call, y, &order(&made, &[&out]))?)])
}

/// Factor of a product: a value that holds one matrix or a batch of matrices.
#[derive(Clone, Copy)]
pub(super) struct Factor {
    pub(super) value: ValueId,
    /// Whether the product transposes the matrices.
    pub(super) transposed: bool,
}

impl Factor {
    pub(super) fn new(value: ValueId) -> Self {
        Self { value, transposed: false }
    }
}

impl Lowering<'_> {
    /// Add the products of the matrices in two values.
    pub(super) fn product(
        &mut self,
        call: &LoweringCall<'_>,
        a: Factor,
        b: Factor,
        alpha: f32,
    ) -> Result<ValueId, GraphError> {
        let element_type = self.element_type(a.value);
        if NumberType::for_element_type(element_type) == NumberType::Integer
            || self.element_type(b.value) != element_type
        {
            let what = format!("the product of {} and {} is", self.tensor(a.value), self.tensor(b.value));
            return Err(call.unsupported(what));
        }
        let mut a_dims = self.dims(a.value);
        let mut b_dims = self.dims(b.value);
        // A vector is a matrix of one row on the left, and of one column on the right.
        let a_is_vector = a_dims.len() == 1;
        let b_is_vector = b_dims.len() == 1;
        if a_is_vector {
            a_dims.insert(0, 1);
        }
        if b_is_vector {
            b_dims.push(1);
        }
        let misfit = || {
            let a = self.tensor(a.value);
            let b = self.tensor(b.value);
            call.invalid(format!("{a} and {b} do not fit as factors"))
        };
        let left = Matrices::from_dims(&a_dims, a.transposed).ok_or_else(misfit)?;
        let right = Matrices::from_dims(&b_dims, b.transposed).ok_or_else(misfit)?;
        let (m, k) = left.factor_dims();
        let (b_k, n) = right.factor_dims();
        let batch = broadcast(&[left.batch, right.batch]).filter(|_| k == b_k).ok_or_else(misfit)?;
        let mut out = batch.clone();
        out.extend((!a_is_vector).then_some(m));
        out.extend((!b_is_vector).then_some(n));
        let output = call.tensor(element_type, out)?;
        if k == 0 {
            return Ok(self.emit(Op::Fill(Scalar::Float(0.0)), vec![], output));
        }
        let batched = Batched::new(&batch, m, &left, &right);
        if batched.dims.len() > BATCH_DIMS_MAX {
            return Err(call.unsupported(format!("a batch of more than {BATCH_DIMS_MAX} dimensions is")));
        }
        let op = MatMul {
            batch: batched.dims,
            m: batched.m,
            n,
            k,
            a: left.operand(&batched.a_strides),
            b: right.operand(&batched.b_strides),
            alpha,
            bias_axis: BiasAxis::Columns,
            activation: None,
        };
        Ok(self.emit(Op::MatMul(op), vec![Some(a.value), Some(b.value), None, None], output))
    }
}

/// Matrices of a factor, one after another, by rows.
struct Matrices<'a> {
    batch: &'a [usize],
    rows: usize,
    columns: usize,
    transposed: bool,
}

impl<'a> Matrices<'a> {
    /// Split dimensions into batch, rows and columns.
    fn from_dims(dims: &'a [usize], transposed: bool) -> Option<Self> {
        match dims {
            [batch @ .., rows, columns] => Some(Self { batch, rows: *rows, columns: *columns, transposed }),
            _ => None,
        }
    }

    /// Return the rows and columns of each matrix in the product.
    fn factor_dims(&self) -> (usize, usize) {
        if self.transposed { (self.columns, self.rows) } else { (self.rows, self.columns) }
    }

    /// Return the strides along the dimensions of a product's batch.
    fn strides_in(&self, batch: &[usize]) -> Vec<isize> {
        let size = self.rows * self.columns;
        broadcast_strides(self.batch, batch)
            .iter()
            .map(|stride| isize::try_from(stride * size).unwrap_or(isize::MAX))
            .collect()
    }

    fn operand(&self, batch_strides: &[isize]) -> Matrix {
        Matrix {
            offset: 0,
            batch_strides: unsigned(batch_strides),
            row_stride: self.columns,
            transposed: self.transposed,
        }
    }
}

/// Batch of a product, in as few dimensions as its kernels and fusion need.
struct Batched {
    dims: Vec<usize>,
    /// Rows of each product.
    m: usize,
    a_strides: Vec<isize>,
    b_strides: Vec<isize>,
}

impl Batched {
    fn new(batch: &[usize], m: usize, a: &Matrices<'_>, b: &Matrices<'_>) -> Self {
        let b_is_shared = b.batch.iter().all(|dim| *dim == 1);
        if b_is_shared && !a.transposed && a.batch == batch {
            // All matrices of the batch become rows of one matrix.
            let m = m * batch.iter().product::<usize>();
            return Self { dims: vec![], m, a_strides: vec![], b_strides: vec![] };
        }
        let a_strides = a.strides_in(batch);
        let b_strides = b.strides_in(batch);
        let kept: Vec<usize> = (0..batch.len()).filter(|axis| batch[*axis] != 1).collect();
        if kept.len() <= BATCH_DIMS_MAX {
            // Dimensions stay separate, so that fusion can read operands in place of a transposed
            // copy.
            let pick = |strides: &[isize]| kept.iter().map(|axis| strides[*axis]).collect();
            let dims = kept.iter().map(|axis| batch[*axis]).collect();
            return Self { dims, m, a_strides: pick(&a_strides), b_strides: pick(&b_strides) };
        }
        let (dims, mut strides) = collapse(batch, &[a_strides, b_strides]);
        let b_strides = strides.pop().unwrap_or_default();
        let a_strides = strides.pop().unwrap_or_default();
        Self { dims, m, a_strides, b_strides }
    }
}
