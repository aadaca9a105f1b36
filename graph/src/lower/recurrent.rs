//! Recurrent operators, unrolled: each step becomes a few operations.

mod activations;
mod cells;

use super::call::LoweringCall;
use super::functions::{X, with};
use super::matmul::Factor;
use super::{Lowering, Made};
use crate::GraphError;
use crate::ir::{Binary, Instruction, NumberType, Op, Scalar, ValueId};
use activations::ActivationList;
use cells::Cell;
use weir_types::ElementType;

/// Largest number of steps that are unrolled.
const STEPS_MAX: usize = 256;

/// Lower `LSTM`, `GRU` or `RNN`.
pub(super) fn recurrent(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let sequence = Sequence::read(lowering, call)?;
    let directions: &[bool] = match call.text("direction", "forward")? {
        "forward" => &[false],
        "reverse" => &[true],
        "bidirectional" => &[false, true],
        other => return Err(call.invalid(format!("there is no direction {other:?}"))),
    };
    let mut activations = ActivationList::read(call)?;
    let mut runs = Vec::with_capacity(directions.len());
    for (direction, is_reversed) in directions.iter().enumerate() {
        let cell = Cell::read(lowering, call, &sequence, [direction, directions.len()], &mut activations)?;
        runs.push(lowering.unrolled(call, &sequence, &cell, *is_reversed)?);
    }
    let Sequence { steps, batch, hidden, .. } = sequence;
    let mut last_h = Vec::new();
    let mut last_c = Vec::new();
    let mut all = Vec::new();
    for run in runs {
        last_h.push(lowering.view(call, run.last.h, [1, batch, hidden])?);
        if let Some(c) = run.last.c {
            last_c.push(lowering.view(call, c, [1, batch, hidden])?);
        }
        if call.wants(0) {
            let each = run.outputs.into_iter().map(|h| lowering.view(call, h, [1, batch, hidden]));
            let each = each.collect::<Result<Vec<_>, _>>()?;
            let joined = lowering.joined(call, &each, 0)?;
            all.push(lowering.view(call, joined, [steps, 1, batch, hidden])?);
        }
    }
    let all = if all.is_empty() { None } else { Some(lowering.joined(call, &all, 1)?) };
    let h = lowering.joined(call, &last_h, 0)?;
    let c = if last_c.is_empty() { None } else { Some(lowering.joined(call, &last_c, 0)?) };
    Ok(vec![all, Some(h), c])
}

/// Input of a recurrent operator.
struct Sequence {
    /// Elements of `[steps, batch, features]`.
    x: ValueId,
    steps: usize,
    batch: usize,
    features: usize,
    hidden: usize,
    element_type: ElementType,
    /// Length of each sequence, of `[batch, 1]`, unless all have all steps.
    lens: Option<ValueId>,
}

impl Sequence {
    fn read(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Result<Self, GraphError> {
        if call.flag("layout") {
            return Err(call.unsupported("the batch as the first dimension is"));
        }
        let x = call.input(0)?;
        let element_type = lowering.element_type(x);
        let dims = lowering.dims(x);
        let recurrence = lowering.dims(call.input(2)?);
        let (&[steps, batch, features], &[_, _, hidden]) = (dims.as_slice(), recurrence.as_slice()) else {
            return Err(call.invalid(format!("{dims:?} is no sequence for weights of {recurrence:?}")));
        };
        if steps > STEPS_MAX {
            let what = format!("a sequence of {steps} steps (the largest has {STEPS_MAX}) is");
            return Err(call.unsupported(what));
        }
        if [steps, batch, features, hidden].contains(&0) {
            return Err(call.invalid(format!("a sequence of {dims:?} is empty")));
        }
        if [features, hidden].iter().any(|size| *size > super::call::SIZE_MAX) {
            return Err(call.invalid(format!("{features} features and {hidden} states are too many")));
        }
        if NumberType::for_element_type(element_type) == NumberType::Integer {
            return Err(call.invalid(format!("elements of type {element_type} are not possible")));
        }
        let mut lens = None;
        if let Some(given) = call.optional(4) {
            let whole = i64::try_from(steps).unwrap_or(i64::MAX);
            let known = lowering.known(given).and_then(|lens| lens.as_integers().map(<[i64]>::to_vec));
            if known.is_none_or(|lens| lens.iter().any(|len| *len != whole)) {
                lens = Some(lowering.view(call, given, [batch, 1])?);
            }
        }
        Ok(Self { x, steps, batch, features, hidden, element_type, lens })
    }
}

/// State between two steps: values of `[batch, hidden]`.
#[derive(Clone, Copy)]
struct State {
    h: ValueId,
    /// The cell state of `LSTM`.
    c: Option<ValueId>,
}

/// Results of one direction.
struct DirectionRun {
    /// Output of each step, in the order of the input.
    outputs: Vec<ValueId>,
    last: State,
}

impl Lowering<'_> {
    fn unrolled(
        &mut self,
        call: &LoweringCall<'_>,
        sequence: &Sequence,
        cell: &Cell,
        is_reversed: bool,
    ) -> Result<DirectionRun, GraphError> {
        let Sequence { steps, batch, hidden, element_type, .. } = *sequence;
        // All steps of the input are projected at once: [gates, steps, batch, hidden].
        let rows = self.view(call, sequence.x, [steps * batch, sequence.features])?;
        let weights = Factor { value: cell.weights, transposed: true };
        let mut projected = self.product(call, Factor::new(rows), weights, 1.0)?;
        if let Some(bias) = cell.bias {
            let code = vec![X, Instruction::Load(1), with(Binary::Add)];
            projected = self.elementwise(call, NumberType::Float, code, &[projected, bias], element_type)?;
        }
        let gates = self.dims(projected).first().copied().unwrap_or(1);
        let projected = self.view(call, projected, [gates, steps, batch, hidden])?;
        let mut state = cell.initial;
        let mut outputs = Vec::with_capacity(steps);
        for step in 0..steps {
            let at = if is_reversed { steps - 1 - step } else { step };
            let x = self.sliced(call, projected, 1, at, 1, 1)?;
            let x = self.view(call, x, [gates, batch, hidden])?;
            let next = cell.step(self, call, x, state)?;
            let (next, output) = self.kept_beyond_end(call, sequence, at, state, next)?;
            state = next;
            outputs.push(output);
        }
        if is_reversed {
            outputs.reverse();
        }
        Ok(DirectionRun { outputs, last: state })
    }

    /// Keep the state of sequences that have ended; their output is 0. Returns the state and the
    /// output.
    fn kept_beyond_end(
        &mut self,
        call: &LoweringCall<'_>,
        sequence: &Sequence,
        at: usize,
        before: State,
        after: State,
    ) -> Result<(State, ValueId), GraphError> {
        let Some(lens) = sequence.lens else { return Ok((after, after.h)) };
        let is_open =
            [Instruction::Load(0), Instruction::Constant(Scalar::Float(at as f32)), with(Binary::Greater)];
        let mut choose = |other: Instruction, operands: &[ValueId]| {
            let code = [&is_open[..], &[Instruction::Load(1), other, Instruction::Where]].concat();
            self.elementwise(call, NumberType::Float, code, operands, sequence.element_type)
        };
        let h = choose(Instruction::Load(2), &[lens, after.h, before.h])?;
        let output = choose(Instruction::Constant(Scalar::Float(0.0)), &[lens, after.h])?;
        let c = match (after.c, before.c) {
            (Some(after), Some(before)) => Some(choose(Instruction::Load(2), &[lens, after, before])?),
            _ => None,
        };
        Ok((State { h, c }, output))
    }

    /// A state of zeroes.
    fn zero_state(&mut self, call: &LoweringCall<'_>, sequence: &Sequence) -> Result<ValueId, GraphError> {
        let tensor = call.tensor(sequence.element_type, [sequence.batch, sequence.hidden])?;
        Ok(self.emit(Op::Fill(Scalar::Float(0.0)), vec![], tensor))
    }
}
