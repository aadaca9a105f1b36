//! Expression trees, within one program or across several.

use crate::ir::{Binary, ElementwiseProgram, Graph, Instruction, NumberType, Op, Scalar, Unary, ValueId};
use crate::reference;

use super::strides::StridedWalk;

/// Largest number of operations in a tree across programs; exceeds the longest pattern.
const TREE_LEN_MAX: usize = 48;

/// An expression.
#[derive(Debug, Clone)]
pub(super) struct ExpressionTree {
    /// Buffer that holds the expression's value, if there is one.
    pub(super) value: Option<ValueId>,
    /// Walk by which the enclosing expression reads `value`; `None` within a program, and for the
    /// outermost expression.
    pub(super) walk: Option<StridedWalk>,
    pub(super) kind: ExpressionKind,
}

#[derive(Debug, Clone)]
pub(super) enum ExpressionKind {
    /// An operand of the program, or a value of the graph that is not made by an expression.
    Leaf(u8),
    Constant(Scalar),
    Unary(Unary, Box<ExpressionTree>),
    Binary(Binary, Box<[ExpressionTree; 2]>),
    Where(Box<[ExpressionTree; 3]>),
}

impl ExpressionTree {
    /// The expression of a program, with the program's operands as leaves.
    pub(super) fn from_program(program: &ElementwiseProgram) -> Option<Self> {
        let mut stack: Vec<Self> = Vec::new();
        for instruction in &program.instructions {
            let kind = match *instruction {
                Instruction::Load(place) => ExpressionKind::Leaf(place),
                Instruction::Constant(scalar) => ExpressionKind::Constant(scalar),
                Instruction::Unary(unary) => ExpressionKind::Unary(unary, Box::new(stack.pop()?)),
                Instruction::Binary(binary) => {
                    let b = stack.pop()?;
                    ExpressionKind::Binary(binary, Box::new([stack.pop()?, b]))
                }
                Instruction::Where => {
                    let b = stack.pop()?;
                    let a = stack.pop()?;
                    ExpressionKind::Where(Box::new([stack.pop()?, a, b]))
                }
            };
            stack.push(Self { value: None, walk: None, kind });
        }
        stack.pop().filter(|_| stack.is_empty())
    }

    /// The expression of a value, expanded through the expressions of its operands until
    /// [`TREE_LEN_MAX`]; leaves are values.
    pub(super) fn across(graph: &Graph, id: ValueId) -> Self {
        let mut left = TREE_LEN_MAX;
        Self::within(graph, id, &mut left)
    }

    fn within(graph: &Graph, id: ValueId, left: &mut usize) -> Self {
        let value = Some(graph.buffer(id));
        let leaf = Self { value, walk: None, kind: ExpressionKind::Leaf(0) };
        let Some(node) = graph.maker(id).and_then(|maker| graph.nodes.get(maker)) else { return leaf };
        let Op::Elementwise(op) = &node.op else { return leaf };
        let is_float = NumberType::for_element_type(graph.value(id).tensor.element_type())
            == NumberType::Float
            && op.program.lane == NumberType::Float;
        if !is_float || op.program.instructions.len() > *left {
            return leaf;
        }
        *left -= op.program.instructions.len();
        let Some(tree) = Self::from_program(&op.program) else { return leaf };
        Self {
            value,
            ..tree.with_leaves(&mut |place| {
                let strides =
                    op.strides.get(usize::from(place))?.iter().map(|stride| isize::try_from(*stride).ok());
                let walk = StridedWalk {
                    offset: 0,
                    dims: op.dims.clone(),
                    strides: strides.collect::<Option<_>>()?,
                };
                let operand = Self::within(graph, node.input(usize::from(place))?, left);
                Some(Self { walk: Some(walk), ..operand })
            })
        }
    }

    fn with_leaves(self, leaf: &mut impl FnMut(u8) -> Option<Self>) -> Self {
        let kind = match self.kind {
            ExpressionKind::Leaf(place) => return leaf(place).unwrap_or(self),
            ExpressionKind::Constant(scalar) => ExpressionKind::Constant(scalar),
            ExpressionKind::Unary(unary, of) => ExpressionKind::Unary(unary, Box::new(of.with_leaves(leaf))),
            ExpressionKind::Binary(binary, of) => {
                ExpressionKind::Binary(binary, Box::new(of.map(|tree| tree.with_leaves(leaf))))
            }
            ExpressionKind::Where(of) => {
                ExpressionKind::Where(Box::new(of.map(|tree| tree.with_leaves(leaf))))
            }
        };
        Self { kind, ..self }
    }

    /// Whether the enclosing expression reads one element of this expression for each element
    /// that it makes, in the same order.
    pub(super) fn is_in_step(&self) -> bool {
        let Some(walk) = &self.walk else { return true };
        let elements: usize = walk.dims.iter().product();
        elements == 1 || walk.along(&[elements]).is_some_and(|strides| strides == [1])
    }

    /// Whether the enclosing expression, of `rows` rows, reads one element of this expression per
    /// row.
    pub(super) fn is_of_rows(&self, rows: usize, cols: usize) -> bool {
        let strides = self.walk.as_ref().and_then(|walk| walk.along(&[rows, cols]));
        strides.is_some_and(|strides| strides == [isize::from(rows > 1), 0])
    }

    /// The value of a float constant.
    pub(super) fn constant(&self) -> Option<f32> {
        match self.kind {
            ExpressionKind::Constant(Scalar::Float(float)) => Some(float),
            _ => None,
        }
    }

    /// Whether this expression is the constant `float`, within a relative tolerance of `1e-6`.
    pub(super) fn is(&self, float: f32) -> bool {
        self.constant().is_some_and(|constant| (constant - float).abs() <= float.abs() * 1e-6)
    }

    /// Both operands, if this expression is the operation `wanted`.
    pub(super) fn binary(&self, wanted: Binary) -> Option<&[Self; 2]> {
        match &self.kind {
            ExpressionKind::Binary(binary, of) if *binary == wanted => Some(of),
            _ => None,
        }
    }

    /// The operand, if this expression is the operation `wanted`.
    pub(super) fn unary(&self, wanted: Unary) -> Option<&Self> {
        match &self.kind {
            ExpressionKind::Unary(unary, of) if *unary == wanted => Some(of),
            _ => None,
        }
    }

    /// All subexpressions, starting with this expression.
    pub(super) fn all(&self) -> Vec<&Self> {
        let mut all = vec![self];
        let mut at = 0;
        while let Some(tree) = all.get(at).copied() {
            match &tree.kind {
                ExpressionKind::Leaf(_) | ExpressionKind::Constant(_) => {}
                ExpressionKind::Unary(_, of) => all.push(of),
                ExpressionKind::Binary(_, of) => all.extend(of.iter()),
                ExpressionKind::Where(of) => all.extend(of.iter()),
            }
            at += 1;
        }
        all
    }

    /// This expression as a function of `value`, if it depends on `value` alone.
    pub(super) fn function_of(&self, value: ValueId) -> Option<UnaryFunction> {
        let mut instructions = Vec::new();
        self.append(value, true, &mut instructions)?;
        Some(UnaryFunction(ElementwiseProgram { lane: NumberType::Float, instructions }))
    }

    fn append(&self, value: ValueId, is_root: bool, to: &mut Vec<Instruction>) -> Option<()> {
        if !self.is_in_step() {
            return None;
        }
        if self.value == Some(value) && !is_root {
            to.push(Instruction::Load(0));
            return Some(());
        }
        match &self.kind {
            ExpressionKind::Leaf(_) => return None,
            ExpressionKind::Constant(scalar) => to.push(Instruction::Constant(*scalar)),
            ExpressionKind::Unary(unary, of) => {
                of.append(value, false, to)?;
                to.push(Instruction::Unary(*unary));
            }
            ExpressionKind::Binary(binary, of) => {
                of.iter().try_for_each(|tree| tree.append(value, false, to))?;
                to.push(Instruction::Binary(*binary));
            }
            ExpressionKind::Where(of) => {
                of.iter().try_for_each(|tree| tree.append(value, false, to))?;
                to.push(Instruction::Where);
            }
        }
        Some(())
    }
}

/// A function of one number.
pub(super) struct UnaryFunction(ElementwiseProgram);

impl UnaryFunction {
    /// Number of instructions.
    pub(super) fn len(&self) -> usize {
        self.0.instructions.len()
    }

    /// Evaluate the function at `x`.
    pub(super) fn at(&self, x: f32) -> Option<f32> {
        reference::float(&self.0, |_| Some(x))
    }
}
