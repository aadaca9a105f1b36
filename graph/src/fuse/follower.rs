//! An operation that follows another one, split into steps.

use super::strides::StridedWalk;
use super::tree::{ExpressionKind, ExpressionTree};
use crate::ir::{Activation, Binary, Graph, GraphNode, Op, Unary, ValueId};

/// An elementwise operation that reads a node's output once.
pub(super) struct Follower {
    node: GraphNode,
    tree: ExpressionTree,
    /// Index of the operand that the node makes.
    place: u8,
    /// Output of the follower.
    pub(super) made: ValueId,
    /// Walk over each operand.
    walks: Vec<StridedWalk>,
}

/// One operation on the path from the node's output to the follower's output.
pub(super) enum FollowerStep {
    Add(u8),
    Mul(u8),
    Scale(f32),
    Activate(Activation),
}

impl Follower {
    pub(super) fn new(graph: &Graph, reader: usize, output: ValueId) -> Option<Self> {
        let node = graph.nodes.get(reader)?;
        let Op::Elementwise(op) = &node.op else { return None };
        let place = node.inputs.iter().position(|id| id.is_some_and(|id| graph.buffer(id) == output))?;
        let walk = |strides: &Vec<usize>| {
            let strides =
                strides.iter().map(|stride| isize::try_from(*stride).ok()).collect::<Option<_>>()?;
            Some(StridedWalk { offset: 0, dims: op.dims.clone(), strides })
        };
        let walks: Vec<StridedWalk> = op.strides.iter().map(walk).collect::<Option<_>>()?;
        let made = node.output(0)?;
        let before = &graph.value(output).tensor;
        let after = &graph.value(made).tensor;
        let elements = before.elements();
        let in_step =
            walks.get(place)?.along(&[elements]).is_some_and(|strides| elements == 1 || strides == [1]);
        let same = elements == after.elements() && before.element_type() == after.element_type();
        let tree = ExpressionTree::from_program(&op.program)?;
        (in_step && same).then_some(Self {
            node: node.clone(),
            tree,
            place: u8::try_from(place).ok()?,
            made,
            walks,
        })
    }

    /// Return the operations from the node's output to the follower's output, in that order; `None`
    /// if one of them is not a [`FollowerStep`].
    pub(super) fn steps(&self) -> Option<Vec<FollowerStep>> {
        let mut steps = Vec::new();
        let mut at = &self.tree;
        loop {
            let holds = |tree: &ExpressionTree| {
                tree.all()
                    .iter()
                    .any(|tree| matches!(tree.kind, ExpressionKind::Leaf(place) if place == self.place))
            };
            at = match &at.kind {
                ExpressionKind::Leaf(place) if *place == self.place => break,
                ExpressionKind::Unary(Unary::Activate(activation), of) => {
                    steps.push(FollowerStep::Activate(*activation));
                    of
                }
                ExpressionKind::Binary(binary, of) => {
                    let [a, b] = &**of;
                    let (path, other) = match (holds(a), holds(b)) {
                        (true, false) => (a, b),
                        (false, true) => (b, a),
                        _ => return None,
                    };
                    steps.push(match (binary, &other.kind, other.constant()) {
                        (Binary::Add, ExpressionKind::Leaf(place), _) => FollowerStep::Add(*place),
                        (Binary::Mul, ExpressionKind::Leaf(place), _) => FollowerStep::Mul(*place),
                        (Binary::Mul, _, Some(by)) => FollowerStep::Scale(by),
                        (Binary::Div, _, Some(by)) if std::ptr::eq(path, a) => FollowerStep::Scale(1.0 / by),
                        _ => return None,
                    });
                    path
                }
                _ => return None,
            };
        }
        steps.reverse();
        Some(steps)
    }

    /// Return the operand at `place`, if it has one element for each index along `axis` when the
    /// output is seen as `dims`.
    pub(super) fn along(&self, graph: &Graph, place: u8, dims: &[usize], axis: usize) -> Option<ValueId> {
        let id = self.node.input(usize::from(place))?;
        let strides = self.walks.get(usize::from(place))?.forward_along(dims)?;
        let right = |(at, stride): (usize, &usize)| dims[at] == 1 || *stride == usize::from(at == axis);
        let fits = graph.value(id).tensor.elements() == dims[axis] && strides.iter().enumerate().all(right);
        (fits && self.same_type(graph, id)).then_some(id)
    }

    /// Return the operand at `place`, if it has one element for each element of the output.
    pub(super) fn whole(&self, graph: &Graph, place: u8) -> Option<ValueId> {
        let id = self.node.input(usize::from(place))?;
        let elements = graph.value(self.made).tensor.elements();
        let strides = self.walks.get(usize::from(place))?.forward_along(&[elements])?;
        let fits = graph.value(id).tensor.elements() == elements && (elements == 1 || strides == [1]);
        (fits && self.same_type(graph, id)).then_some(id)
    }

    fn same_type(&self, graph: &Graph, id: ValueId) -> bool {
        graph.value(id).tensor.element_type() == graph.value(self.made).tensor.element_type()
    }
}
