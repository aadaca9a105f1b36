//! One step of each recurrent operator.

use super::activations::ActivationList;
use super::{Sequence, State};
use crate::GraphError;
use crate::ir::{Activation, Binary, Instruction, NumberType, ValueId};
use crate::lower::Lowering;
use crate::lower::call::LoweringCall;
use crate::lower::functions::{X, activate, number, with};
use crate::lower::matmul::Factor;

/// Weights and functions of one direction.
pub(super) struct Cell {
    kind: CellKind,
    /// Weights of the input, of `[gates, hidden, features]`.
    pub(super) weights: ValueId,
    /// Summand of the projected input, of `[gates, 1, hidden]`.
    pub(super) bias: Option<ValueId>,
    pub(super) initial: State,
    /// Weights of the state, of `[gates, hidden, hidden]`.
    recurrence: ValueId,
    /// Summand of the projected state, of `[hidden]`, which `GRU` may keep apart.
    hidden_bias: Option<ValueId>,
    /// Factors of the cell state of `LSTM`, each of `[hidden]`: for the gates input, output and
    /// forget.
    peepholes: Option<[ValueId; 3]>,
    /// Programs of the functions, in the order of the standard.
    functions: Vec<Vec<Instruction>>,
    /// Limit of the arguments of functions.
    clip: Option<f32>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CellKind {
    /// Gates input, output, forget and cell.
    Lstm {
        input_forget: bool,
    },
    /// Gates update, reset and hidden.
    Gru {
        linear_before_reset: bool,
    },
    Rnn,
}

impl CellKind {
    fn read(call: &LoweringCall<'_>) -> Self {
        match call.node.operator.as_str() {
            "LSTM" => Self::Lstm { input_forget: call.flag("input_forget") },
            "GRU" => Self::Gru { linear_before_reset: call.flag("linear_before_reset") },
            _ => Self::Rnn,
        }
    }

    fn gates(self) -> usize {
        match self {
            Self::Lstm { .. } => 4,
            Self::Gru { .. } => 3,
            Self::Rnn => 1,
        }
    }

    /// The default functions.
    fn functions(self) -> &'static [&'static str] {
        match self {
            Self::Lstm { .. } => &["Sigmoid", "Tanh", "Tanh"],
            Self::Gru { .. } => &["Sigmoid", "Tanh"],
            Self::Rnn => &["Tanh"],
        }
    }
}

impl Cell {
    pub(super) fn read(
        lowering: &mut Lowering<'_>,
        call: &LoweringCall<'_>,
        sequence: &Sequence,
        [direction, directions]: [usize; 2],
        activations: &mut ActivationList<'_>,
    ) -> Result<Self, GraphError> {
        let kind = CellKind::read(call);
        let gates = kind.gates();
        let Sequence { batch, hidden, features, .. } = *sequence;
        // The part of an input for this direction, under other dimensions.
        let mut part = |place: usize, dims: Vec<usize>| -> Result<ValueId, GraphError> {
            let id = call.input(place)?;
            let whole = lowering.tensor(id).elements();
            let elements = dims.iter().product::<usize>();
            if lowering.element_type(id) != sequence.element_type || whole != elements * directions {
                let why = format!(
                    "input {place} is {}, not {dims:?} for each of {directions} directions",
                    lowering.tensor(id)
                );
                return Err(call.invalid(why));
            }
            let flat = lowering.view(call, id, [directions, elements])?;
            let own = lowering.sliced(call, flat, 0, direction, 1, 1)?;
            lowering.view(call, own, dims)
        };
        let weights = part(1, vec![gates, hidden, features])?;
        let recurrence = part(2, vec![gates, hidden, hidden])?;
        let biases = match call.optional(3) {
            Some(_) => Some(part(3, vec![2, gates, 1, hidden])?),
            None => None,
        };
        let h = call.optional(5).map(|_| part(5, vec![batch, hidden])).transpose()?;
        let has_c = matches!(kind, CellKind::Lstm { .. });
        let c = call.optional(6).filter(|_| has_c).map(|_| part(6, vec![batch, hidden])).transpose()?;
        let peepholes = call.optional(7).filter(|_| has_c).map(|_| part(7, vec![3, hidden])).transpose()?;

        let (bias, hidden_bias) = match biases {
            Some(biases) => lowering.biases(call, kind, biases)?,
            None => (None, None),
        };
        let peepholes = match peepholes {
            Some(all) => {
                Some([lowering.row(call, all, 0)?, lowering.row(call, all, 1)?, lowering.row(call, all, 2)?])
            }
            None => None,
        };
        let h = match h {
            Some(h) => h,
            None => lowering.zero_state(call, sequence)?,
        };
        let c = match c {
            None if has_c => Some(lowering.zero_state(call, sequence)?),
            c => c,
        };
        let functions = kind.functions().iter().map(|default| activations.next(default));
        let functions = functions.collect::<Result<Vec<_>, _>>()?;
        let clip = call.float("clip").filter(|clip| *clip > 0.0);
        let initial = State { h, c };
        Ok(Self { kind, weights, bias, initial, recurrence, hidden_bias, peepholes, functions, clip })
    }

    /// Add one step; `x` is the projected input, of `[gates, batch, hidden]`.
    pub(super) fn step(
        &self,
        lowering: &mut Lowering<'_>,
        call: &LoweringCall<'_>,
        x: ValueId,
        state: State,
    ) -> Result<State, GraphError> {
        let mut step = Step { lowering, call, cell: self, state };
        match self.kind {
            CellKind::Lstm { input_forget } => step.lstm(x, input_forget),
            CellKind::Gru { linear_before_reset: false } => step.gru(x),
            CellKind::Gru { linear_before_reset: true } => step.gru_linear(x),
            CellKind::Rnn => step.rnn(x),
        }
    }

    /// The program of the function at `place`, with the limit of its argument.
    fn function(&self, place: usize) -> Vec<Instruction> {
        let limit = self.clip.map(|clip| activate(Activation::Clip { min: -clip, max: clip }));
        limit.into_iter().chain(self.functions.get(place).cloned().unwrap_or_default()).collect()
    }
}

impl Lowering<'_> {
    /// Sum the biases of input and state, `[2, gates, 1, hidden]`; also returns the bias that is
    /// not part of the sum.
    fn biases(
        &mut self,
        call: &LoweringCall<'_>,
        kind: CellKind,
        biases: ValueId,
    ) -> Result<(Option<ValueId>, Option<ValueId>), GraphError> {
        let dims = self.dims(biases);
        let gates = kind.gates();
        let hidden = dims.last().copied().unwrap_or(0);
        let of_input = self.row(call, biases, 0)?;
        let of_state = self.row(call, biases, 1)?;
        let apart = match kind {
            CellKind::Gru { linear_before_reset: true } => {
                let last = self.row(call, of_state, gates - 1)?;
                Some(self.view(call, last, [hidden])?)
            }
            _ => None,
        };
        let element_type = self.element_type(biases);
        let add = vec![X, Instruction::Load(1), with(Binary::Add)];
        let Some(_) = apart else {
            let sum = self.elementwise(call, NumberType::Float, add, &[of_input, of_state], element_type)?;
            return Ok((Some(sum), None));
        };
        let first = self.sliced(call, of_input, 0, 0, gates - 1, 1)?;
        let second = self.sliced(call, of_state, 0, 0, gates - 1, 1)?;
        let sum = self.elementwise(call, NumberType::Float, add, &[first, second], element_type)?;
        let rest = self.sliced(call, of_input, 0, gates - 1, 1, 1)?;
        Ok((Some(self.joined(call, &[sum, rest], 0)?), apart))
    }

    /// The part of a value at `index` of the first dimension, without that dimension.
    fn row(&mut self, call: &LoweringCall<'_>, id: ValueId, index: usize) -> Result<ValueId, GraphError> {
        let dims = self.dims(id);
        let part = self.sliced(call, id, 0, index, 1, 1)?;
        self.view(call, part, dims.get(1..).unwrap_or_default())
    }
}

/// One step under construction.
struct Step<'a, 'm, 'c> {
    lowering: &'a mut Lowering<'m>,
    call: &'a LoweringCall<'c>,
    cell: &'a Cell,
    state: State,
}

impl Step<'_, '_, '_> {
    fn compute(&mut self, code: Vec<Instruction>, operands: &[ValueId]) -> Result<ValueId, GraphError> {
        let element_type = self.lowering.element_type(self.state.h);
        self.lowering.elementwise(self.call, NumberType::Float, code, operands, element_type)
    }

    /// Multiply the state `h` with the weights of `count` gates from `first` on.
    fn projected(&mut self, h: ValueId, first: usize, count: usize) -> Result<ValueId, GraphError> {
        let weights = self.lowering.sliced(self.call, self.cell.recurrence, 0, first, count, 1)?;
        self.lowering.product(self.call, Factor::new(h), Factor { value: weights, transposed: true }, 1.0)
    }

    /// Add the projected state to the projected input of the same gates.
    fn summed(&mut self, x: ValueId, first: usize, count: usize) -> Result<ValueId, GraphError> {
        let own = self.lowering.sliced(self.call, x, 0, first, count, 1)?;
        let product = self.projected(self.state.h, first, count)?;
        self.compute(vec![X, Instruction::Load(1), with(Binary::Add)], &[product, own])
    }

    fn gate(&mut self, gates: ValueId, index: usize) -> Result<ValueId, GraphError> {
        self.lowering.row(self.call, gates, index)
    }

    fn rnn(&mut self, x: ValueId) -> Result<State, GraphError> {
        let sum = self.summed(x, 0, 1)?;
        let sum = self.gate(sum, 0)?;
        let code = [vec![X], self.cell.function(0)].concat();
        Ok(State { h: self.compute(code, &[sum])?, c: None })
    }

    fn lstm(&mut self, x: ValueId, input_forget: bool) -> Result<State, GraphError> {
        let sums = self.summed(x, 0, 4)?;
        let [input, output, forget, cell] =
            [self.gate(sums, 0)?, self.gate(sums, 1)?, self.gate(sums, 2)?, self.gate(sums, 3)?];
        let before = self.state.c.unwrap_or(self.state.h);
        let load = Instruction::Load;
        let times = with(Binary::Mul);
        // The argument of a gate: the operand at `place`, plus the state at `state` times the factor
        // at `factor`.
        let peeped = |place: u8, state: u8, factor: u8| -> Vec<Instruction> {
            let peephole = [load(state), load(factor), times, with(Binary::Add)];
            let peephole = self.cell.peepholes.iter().flat_map(|_| peephole);
            [load(place)].into_iter().chain(peephole).collect()
        };
        let f = self.cell.function(0);
        let g = self.cell.function(1);
        let h = self.cell.function(2);
        // forget * c + input * g(cell)
        let mut operands = vec![input, forget, cell, before];
        let open = [peeped(0, 3, 4), f.clone()].concat();
        let kept = if input_forget {
            [vec![number(1.0)], open.clone(), vec![with(Binary::Sub)]].concat()
        } else {
            [peeped(1, 3, 5), f.clone()].concat()
        };
        let code =
            [kept, vec![load(3), times], open, vec![load(2)], g, vec![times, with(Binary::Add)]].concat();
        operands.extend(self.cell.peepholes.iter().flat_map(|[input, _, forget]| [*input, *forget]));
        let c = self.compute(code, &operands)?;
        // output * h(c); the limit applies to the arguments of gates only.
        let h = if self.cell.clip.is_some() { h[1..].to_vec() } else { h };
        let mut operands = vec![output, c];
        let code = [peeped(0, 1, 2), self.cell.function(0), vec![load(1)], h, vec![times]].concat();
        operands.extend(self.cell.peepholes.iter().map(|[_, output, _]| *output));
        Ok(State { h: self.compute(code, &operands)?, c: Some(c) })
    }

    fn gru(&mut self, x: ValueId) -> Result<State, GraphError> {
        let sums = self.summed(x, 0, 2)?;
        let update = self.gate(sums, 0)?;
        let reset = self.gate(sums, 1)?;
        let f = self.cell.function(0);
        let code = [vec![X], f.clone(), vec![Instruction::Load(1), with(Binary::Mul)]].concat();
        let kept = self.compute(code, &[reset, self.state.h])?;
        let product = self.projected(kept, 2, 1)?;
        let product = self.gate(product, 0)?;
        let own = self.gate(x, 2)?;
        let hidden = vec![Instruction::Load(2), Instruction::Load(3), with(Binary::Add)];
        let update = self.compute([vec![X], f].concat(), &[update])?;
        self.blended(hidden, [update, self.state.h, product, own], &[])
    }

    fn gru_linear(&mut self, x: ValueId) -> Result<State, GraphError> {
        let product = self.projected(self.state.h, 0, 3)?;
        let [update, reset, hidden] = [self.gate(x, 0)?, self.gate(x, 1)?, self.gate(x, 2)?];
        let products = [self.gate(product, 0)?, self.gate(product, 1)?, self.gate(product, 2)?];
        let sum = [vec![X, Instruction::Load(1), with(Binary::Add)], self.cell.function(0)].concat();
        let update = self.compute(sum.clone(), &[update, products[0]])?;
        let reset = self.compute(sum, &[reset, products[1]])?;
        // own + reset * (product + bias)
        let load = Instruction::Load;
        let mut code = vec![load(2), load(4), load(3)];
        let mut more = vec![reset];
        if let Some(bias) = self.cell.hidden_bias {
            more.push(bias);
            code.extend([load(5), with(Binary::Add)]);
        }
        code.extend([with(Binary::Mul), with(Binary::Add)]);
        self.blended(code, [update, self.state.h, hidden, products[2]], &more)
    }

    /// Compute `update * h + (1 - update) * g(hidden)`. The operands `update` and `h` come first.
    fn blended(
        &mut self,
        hidden: Vec<Instruction>,
        operands: [ValueId; 4],
        more: &[ValueId],
    ) -> Result<State, GraphError> {
        let times = with(Binary::Mul);
        let h = Instruction::Load(1);
        let code = [
            vec![X, h, times, number(1.0), X, with(Binary::Sub)],
            hidden,
            self.cell.function(1),
            vec![times, with(Binary::Add)],
        ]
        .concat();
        let operands = [operands.as_slice(), more].concat();
        Ok(State { h: self.compute(code, &operands)?, c: None })
    }
}
