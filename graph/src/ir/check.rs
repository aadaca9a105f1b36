//! Soundness check of graphs: the invariants that every consumer of a graph relies on.

mod node;

use super::{Graph, GraphNode, ProgramError, ValueId, ValueSource};
use node::{NodeChecker, NodeFault};

/// Violated invariant of a graph: a bug in the code that built the graph.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// A value that does not exist, is a view of a view, or names the wrong node as its source.
    #[error("value {0} has a wrong source")]
    Value(u32),
    /// A node reads the output of a later node, or the prologue reads an input.
    #[error("node {0:?} reads a value that is not computed yet")]
    Order(String),
    /// An operand or output is missing, or has the wrong type or shape.
    #[error("node {node:?} ({op}): {what} does not fit")]
    Misfit {
        /// The node.
        node: String,
        /// Its operation.
        op: &'static str,
        /// The missing or wrong operand or output.
        what: &'static str,
    },
    /// A program that cannot run.
    #[error("node {node:?}: {error}")]
    Program {
        /// The node.
        node: String,
        /// The reason.
        error: ProgramError,
    },
}

impl Graph {
    /// Check that references between values and nodes are valid, that nodes are in execution order,
    /// and that no operation reads or writes outside its values.
    pub fn check(&self) -> Result<(), CheckError> {
        for id in self.ids() {
            self.check_value(id)?;
        }
        let ports = self.inputs.iter().chain(&self.outputs).map(|port| port.value);
        for id in ports {
            self.exists(id)?;
        }
        for (index, node) in self.nodes.iter().enumerate() {
            self.check_node(index, node)?;
        }
        Ok(())
    }

    fn exists(&self, id: ValueId) -> Result<(), CheckError> {
        if (id.0 as usize) < self.values.len() { Ok(()) } else { Err(CheckError::Value(id.0)) }
    }

    fn check_value(&self, id: ValueId) -> Result<(), CheckError> {
        let wrong = CheckError::Value(id.0);
        let value = self.value(id);
        let is_right = match &value.source {
            ValueSource::Input => self.inputs.iter().any(|port| port.value == id),
            ValueSource::Weight(_) => true,
            ValueSource::Constant(bytes) => bytes.len() == value.tensor.bytes(),
            ValueSource::Node { node, output } => {
                let node = self.nodes.get(*node as usize);
                node.is_some_and(|node| node.output(*output as usize) == Some(id))
            }
            ValueSource::View(of) => {
                self.exists(*of)?;
                let of = self.value(*of);
                !matches!(of.source, ValueSource::View(_))
                    && of.tensor.elements() == value.tensor.elements()
                    && of.tensor.element_type() == value.tensor.element_type()
            }
        };
        if is_right { Ok(()) } else { Err(wrong) }
    }

    fn check_node(&self, index: usize, node: &GraphNode) -> Result<(), CheckError> {
        for id in node.inputs.iter().flatten() {
            self.exists(*id)?;
            let is_late = self.maker(*id).is_some_and(|maker| maker >= index);
            let is_input = matches!(self.value(self.buffer(*id)).source, ValueSource::Input);
            if is_late || (is_input && index < self.prologue_len) {
                return Err(CheckError::Order(node.name.clone()));
            }
        }
        for id in node.outputs.iter().flatten() {
            self.exists(*id)?;
            if self.maker(*id) != Some(index) {
                return Err(CheckError::Value(id.0));
            }
        }
        let checker = NodeChecker { graph: self, node };
        match checker.check() {
            Ok(()) => Ok(()),
            Err(NodeFault::Misfit(what)) => {
                Err(CheckError::Misfit { node: node.name.clone(), op: node.op.name(), what })
            }
            Err(NodeFault::Program(error)) => Err(CheckError::Program { node: node.name.clone(), error }),
        }
    }
}
