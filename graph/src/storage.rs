//! Graphs with floats stored in half precision: [`Graph::in_storage`].

use crate::ir::{
    Conv, Elementwise, ElementwiseProgram, Graph, GraphNode, GraphValue, Instruction, MatMul, NumberType, Op,
    ValueId, ValueSource,
};
use crate::reference::ReferenceTensor;
use crate::{GraphError, OnnxModel};
use std::collections::HashMap;
use weir_types::ElementType;

impl Graph {
    /// Store fp32 weights, constants and intermediate values as `storage`, a 16-bit type. Inputs
    /// and outputs keep their types. So do channel vectors (factors and summands of convolutions
    /// and products), which are small and affect accuracy the most.
    ///
    /// Weights that the model stores in another type ([`OnnxModel::with_weights_as`]) are converted
    /// before the first run, as part of the prologue. Call it after [`Graph::fuse`].
    pub fn in_storage(mut self, model: &OnnxModel, storage: ElementType) -> Result<Self, GraphError> {
        if !matches!(storage, ElementType::Fp16 | ElementType::Bf16) {
            return Err(GraphError::Refused(format!("values kept as {storage}")));
        }
        let keeps = self.kept();
        let outputs: Vec<ElementType> =
            self.outputs.iter().map(|port| self.value(port.value).tensor.element_type()).collect();
        let mut caster = Caster { names: HashMap::new() };
        caster.inputs(&mut self, storage)?;
        for id in self.ids() {
            let buffer = self.buffer(id);
            let is_kept = keeps.get(buffer.0 as usize).copied().unwrap_or(true);
            if !is_kept {
                self.store(id, storage)?;
            }
        }
        caster.weights(&mut self, model)?;
        caster.vectors(&mut self)?;
        caster.outputs(&mut self, &outputs)?;
        self.tidy();
        crate::fuse::chains(&mut self);
        self.tidy();
        self.check()?;
        Ok(self)
    }

    /// Buffers that keep their type: inputs, values that are not fp32, and values that are only
    /// used as channel vectors.
    fn kept(&self) -> Vec<bool> {
        let is_fp32 = |value: &GraphValue| value.tensor.element_type() == ElementType::Fp32;
        let mut keeps: Vec<bool> =
            self.values.iter().map(|value| !is_fp32(value) || value.source == ValueSource::Input).collect();
        // Whether all readers of a buffer take it as a vector. Nodes are visited in reverse, so
        // readers are decided before their operands.
        let mut is_read = vec![false; self.values.len()];
        let mut is_vector = vec![true; self.values.len()];
        self.outputs.iter().for_each(|port| is_vector[self.buffer(port.value).0 as usize] = false);
        let settle = |buffer: ValueId, is_read: &[bool], is_vector: &[bool]| {
            is_read[buffer.0 as usize] && is_vector[buffer.0 as usize]
        };
        for node in self.nodes.iter().rev() {
            let made = node.output(0).is_some_and(|id| settle(self.buffer(id), &is_read, &is_vector));
            for (place, id) in node.inputs.iter().enumerate() {
                let Some(buffer) = id.map(|id| self.buffer(id).0 as usize) else { continue };
                is_read[buffer] = true;
                is_vector[buffer] &=
                    is_vector_of(node, place) || (made && matches!(node.op, Op::Elementwise(_)));
            }
        }
        for id in self.ids() {
            let is_made_by_any = match self.value(id).source {
                // Other operations make outputs of the type of their operands.
                ValueSource::Node { node, .. } => {
                    matches!(self.nodes[node as usize].op, Op::Elementwise(_) | Op::Fill(_))
                }
                _ => true,
            };
            keeps[id.0 as usize] |= is_made_by_any && settle(id, &is_read, &is_vector);
        }
        keeps
    }

    /// Change the type of a value to `storage`.
    fn store(&mut self, id: ValueId, storage: ElementType) -> Result<(), GraphError> {
        let value = &mut self.values[id.0 as usize];
        let tensor =
            value.tensor.with_elements(storage).map_err(|error| GraphError::value(&value.name, &error))?;
        if let ValueSource::Constant(bytes) = &mut value.source {
            let converted = ReferenceTensor::from_bytes(value.tensor.clone(), bytes)
                .and_then(|tensor| tensor.in_elements(storage));
            *bytes = converted.map(|tensor| tensor.to_bytes()).unwrap_or_default().into();
        }
        value.tensor = tensor;
        Ok(())
    }
}

/// Whether an operand is a channel vector.
fn is_vector_of(node: &GraphNode, place: usize) -> bool {
    match node.op {
        Op::Conv(_) => [Conv::BIAS, Conv::SCALE, Conv::SHIFT].contains(&place),
        Op::MatMul(_) => place == MatMul::BIAS,
        _ => false,
    }
}

/// Inserts conversions where types change.
struct Caster {
    /// Converted value of each value.
    names: HashMap<ValueId, ValueId>,
}

impl Caster {
    /// Return a value converted to another type; the conversion is added on first use.
    fn cast(&mut self, graph: &mut Graph, id: ValueId, to: ElementType) -> Result<ValueId, GraphError> {
        if let Some(made) = self.names.get(&id) {
            return Ok(*made);
        }
        let value = graph.value(id);
        let name = value.name.clone();
        let elements = value.tensor.elements();
        let tensor = value.tensor.with_elements(to).map_err(|error| GraphError::value(&name, &error))?;
        let made = ValueId(u32::try_from(graph.values.len()).unwrap_or(u32::MAX));
        let source =
            ValueSource::Node { node: u32::try_from(graph.nodes.len()).unwrap_or(u32::MAX), output: 0 };
        graph.values.push(GraphValue { name: name.clone(), tensor, source });
        let program =
            ElementwiseProgram { lane: NumberType::Float, instructions: vec![Instruction::Load(0)] };
        let op = Op::Elementwise(Elementwise { program, dims: vec![elements], strides: vec![vec![1]] });
        graph.nodes.push(GraphNode { name, op, inputs: vec![Some(id)], outputs: vec![Some(made)] });
        self.names.insert(id, made);
        Ok(made)
    }

    /// Give weights the type in which they are stored, and convert them where the graph needs
    /// another type.
    fn weights(&mut self, graph: &mut Graph, model: &OnnxModel) -> Result<(), GraphError> {
        for id in graph.ids() {
            let ValueSource::Weight(index) = graph.value(id).source else { continue };
            let Some(weight) = model.weights().get(index as usize) else { continue };
            let wanted = graph.value(id).tensor.element_type();
            if weight.stored_as == wanted {
                continue;
            }
            let value = &mut graph.values[id.0 as usize];
            value.tensor = value
                .tensor
                .with_elements(weight.stored_as)
                .map_err(|error| GraphError::value(&value.name, &error))?;
            let converted = self.cast(graph, id, wanted)?;
            // Swap the two ids, so that readers of the weight's id read the converted value.
            self.names.remove(&id);
            let stored = id.0 as usize;
            let made = converted.0 as usize;
            graph.values.swap(stored, made);
            if let Some(cast) = graph.nodes.last_mut() {
                cast.inputs[0] = Some(converted);
                cast.outputs[0] = Some(id);
            }
        }
        Ok(())
    }

    /// Make nodes read converted inputs. Views of an input are replaced by views of the converted
    /// input, except where they are outputs.
    fn inputs(&mut self, graph: &mut Graph, storage: ElementType) -> Result<(), GraphError> {
        let inputs: Vec<ValueId> = graph.inputs.iter().map(|port| port.value).collect();
        for input in inputs {
            let tensor = &graph.value(input).tensor;
            let is_read = graph
                .nodes
                .iter()
                .any(|node| node.inputs.iter().flatten().any(|id| graph.buffer(*id) == input));
            if tensor.element_type() != ElementType::Fp32 || tensor.elements() == 0 || !is_read {
                continue;
            }
            let stored = self.cast(graph, input, storage)?;
            let views: Vec<ValueId> =
                graph.ids().filter(|id| graph.value(*id).source == ValueSource::View(input)).collect();
            let mut renamed = HashMap::from([(input, stored)]);
            for view in views {
                let value = graph.value(view);
                let tensor = value
                    .tensor
                    .with_elements(storage)
                    .map_err(|error| GraphError::value(&value.name, &error))?;
                let of_stored =
                    GraphValue { name: value.name.clone(), tensor, source: ValueSource::View(stored) };
                renamed.insert(view, ValueId(u32::try_from(graph.values.len()).unwrap_or(u32::MAX)));
                graph.values.push(of_stored);
            }
            let cast = graph.maker(stored);
            for (_, node) in graph.nodes.iter_mut().enumerate().filter(|(index, _)| Some(*index) != cast) {
                for id in node.inputs.iter_mut().flatten() {
                    *id = renamed.get(id).copied().unwrap_or(*id);
                }
            }
        }
        Ok(())
    }

    /// Convert channel vectors back to fp32 where another use made them 16-bit.
    fn vectors(&mut self, graph: &mut Graph) -> Result<(), GraphError> {
        for index in 0..graph.nodes.len() {
            for place in 0..graph.nodes[index].inputs.len() {
                let Some(id) = graph.nodes[index].input(place) else { continue };
                let is_half =
                    matches!(graph.value(id).tensor.element_type(), ElementType::Fp16 | ElementType::Bf16);
                if is_half && is_vector_of(&graph.nodes[index], place) {
                    let wide = self.cast(graph, id, ElementType::Fp32)?;
                    graph.nodes[index].inputs[place] = Some(wide);
                }
            }
        }
        Ok(())
    }

    /// Convert outputs back to fp32.
    fn outputs(&mut self, graph: &mut Graph, were: &[ElementType]) -> Result<(), GraphError> {
        for (at, element_type) in were.iter().enumerate() {
            let id = graph.outputs[at].value;
            if graph.value(id).tensor.element_type() != *element_type {
                graph.outputs[at].value = self.cast(graph, id, *element_type)?;
            }
        }
        Ok(())
    }
}
