//! Property test with random graphs: fusion and planned memory leave the results unchanged.

use crate::ir::{Graph, ValueId, ValueSource};
use crate::reference::{self, ReferenceTensor};
use crate::{MemoryPlan, OnnxModel, ValuePlace, onnx};
use proptest::prelude::*;
use prost::Message as _;
use weir_types::Shape;

/// Operator, operand and parameter of the next node, each taken modulo the number of choices.
type Choice = (u8, u8, u8);

/// Builder of a random model.
struct ModelBuilder {
    graph: onnx::Graph,
    /// Values available as operands: names and dimensions.
    values: Vec<(String, Vec<usize>)>,
}

const ELEMENTS_MAX: usize = 1_500;

impl ModelBuilder {
    fn new(dims: &[usize]) -> Self {
        let mut graph = onnx::Graph::default();
        graph.inputs.push(port("x", dims));
        Self { graph, values: vec![("x".to_owned(), dims.to_vec())] }
    }

    fn node(&mut self, operator: &str, inputs: &[&str], dims: Vec<usize>, attributes: Vec<onnx::Attribute>) {
        let name = format!("v{}", self.graph.nodes.len());
        let inputs = inputs.iter().map(ToString::to_string).collect();
        let outputs = vec![name.clone()];
        let operator = operator.to_owned();
        self.graph.nodes.push(onnx::Node { inputs, outputs, operator, attributes, ..Default::default() });
        self.values.push((name, dims));
    }

    fn weight(&mut self, dims: &[usize]) -> String {
        let name = format!("w{}", self.graph.initialisers.len());
        let elements: usize = dims.iter().product();
        let float_data = (0..elements).map(|at| ((at * 7919 + 13) % 1000) as f32 / 1000.0 - 0.45).collect();
        let dims = dims.iter().map(|dim| *dim as i64).collect();
        self.graph.initialisers.push(onnx::Tensor {
            name: name.clone(),
            dims,
            data_type: 1,
            float_data,
            ..Default::default()
        });
        name
    }

    fn numbers(&mut self, numbers: &[i64]) -> String {
        let name = format!("w{}", self.graph.initialisers.len());
        let dims = vec![numbers.len() as i64];
        let int64_data = numbers.to_vec();
        self.graph.initialisers.push(onnx::Tensor {
            name: name.clone(),
            dims,
            data_type: 7,
            int64_data,
            ..Default::default()
        });
        name
    }

    /// Add one or two nodes, if the chosen operator applies to the chosen operand.
    fn step(&mut self, choice: Choice) {
        match choice.0 % 14 {
            0..=2 | 11 | 13 => self.elementwise(choice),
            3 | 4 => self.rearrangement(choice),
            5 | 6 | 12 => self.product(choice),
            7 | 10 => self.row_operation(choice),
            _ => self.slice_or_concat(choice),
        }
        if self.values.last().is_some_and(|(_, dims)| dims.iter().product::<usize>() > ELEMENTS_MAX) {
            // The value is too large to be an operand of further nodes.
            self.values.pop();
        }
    }

    fn elementwise(&mut self, (what, to, how): Choice) {
        let (x, dims) = self.chosen(to);
        let (y, y_dims) = self.chosen(how);
        let add_or_mul = ["Add", "Mul"][usize::from(how) % 2];
        match what % 14 {
            0 => {
                let operator = ["Relu", "Sigmoid", "Tanh", "Erf", "Neg"][usize::from(how) % 5];
                self.node(operator, &[&x], dims, vec![]);
            }
            1 if dims == y_dims => {
                self.node(["Add", "Mul", "Sub"][usize::from(to) % 3], &[&x, &y], dims, vec![]);
            }
            2 => {
                let scalar = self.weight(&[]);
                self.node(add_or_mul, &[&x, &scalar], dims, vec![]);
            }
            11 if !dims.is_empty() => {
                let w = self.weight(&[dims[dims.len() - 1]]);
                self.node(add_or_mul, &[&x, &w], dims, vec![]);
            }
            13 if dims.len() == 4 => {
                let w = self.weight(&[dims[1], 1, 1]);
                self.node(add_or_mul, &[&x, &w], dims, vec![]);
            }
            _ => {}
        }
    }

    /// Add a transposition or a reshape.
    fn rearrangement(&mut self, (what, to, how): Choice) {
        let (x, dims) = self.chosen(to);
        let rank = dims.len();
        match what % 14 {
            3 if rank > 1 => {
                let mut order: Vec<usize> = (0..rank).collect();
                order.rotate_left(usize::from(how) % rank);
                order.swap(0, usize::from(what / 14) % rank);
                let out = order.iter().map(|axis| dims[*axis]).collect();
                self.node("Transpose", &[&x], out, vec![ints("perm", &order)]);
            }
            4 => {
                let elements: usize = dims.iter().product();
                let by = [2, 3, 4, 6][usize::from(how) % 4];
                let out = if elements.is_multiple_of(by) { vec![by, elements / by] } else { vec![elements] };
                let shape = self.numbers(&out.iter().map(|dim| *dim as i64).collect::<Vec<_>>());
                self.node("Reshape", &[&x, &shape], out, vec![]);
            }
            _ => {}
        }
    }

    /// Add a matrix product or a convolution.
    fn product(&mut self, (what, to, how): Choice) {
        let (x, dims) = self.chosen(to);
        let rank = dims.len();
        match what % 14 {
            5 if rank > 1 => {
                let columns = 1 + usize::from(how) % 5;
                let w = self.weight(&[dims[rank - 1], columns]);
                self.node("MatMul", &[&x, &w], [&dims[..rank - 1], &[columns]].concat(), vec![]);
            }
            6 if rank > 1 => {
                let mut order: Vec<usize> = (0..rank).collect();
                order.swap(rank - 1, rank - 2);
                let turned: Vec<usize> = order.iter().map(|axis| dims[*axis]).collect();
                self.node("Transpose", &[&x], turned, vec![ints("perm", &order)]);
                let transposed = self.last_name();
                let out = [&dims[..rank - 1], &[dims[rank - 2]]].concat();
                self.node("MatMul", &[&x, &transposed], out.clone(), vec![]);
                let product = self.last_name();
                self.node("Tanh", &[&product], out, vec![]);
            }
            12 if rank == 4 => {
                let w = self.weight(&[3, dims[1], 1, 1]);
                self.node("Conv", &[&x, &w], vec![dims[0], 3, dims[2], dims[3]], vec![]);
            }
            _ => {}
        }
    }

    /// Add a softmax, or a subtraction of the mean.
    fn row_operation(&mut self, (what, to, how): Choice) {
        let (x, dims) = self.chosen(to);
        let rank = dims.len();
        match what % 14 {
            7 if rank > 0 => {
                let axis = usize::from(how) % rank;
                self.node("Softmax", &[&x], dims, vec![int("axis", axis as i64)]);
            }
            10 if rank > 0 => {
                let mut out = dims.clone();
                out[rank - 1] = 1;
                self.node("ReduceMean", &[&x], out, vec![ints("axes", &[rank - 1])]);
                let mean = self.last_name();
                self.node("Sub", &[&x, &mean], dims, vec![]);
            }
            _ => {}
        }
    }

    fn slice_or_concat(&mut self, (what, to, how): Choice) {
        let (x, dims) = self.chosen(to);
        let axis = usize::from(how) % dims.len().max(1);
        match what % 14 {
            8 if !dims.is_empty() && dims[axis] > 2 => {
                let [start, end, along, step] =
                    [1, 100, axis as i64, 1 + i64::from(how % 2)].map(|number| self.numbers(&[number]));
                let mut out = dims;
                out[axis] = (out[axis] - 1).div_ceil(1 + usize::from(how % 2));
                self.node("Slice", &[&x, &start, &end, &along, &step], out, vec![]);
            }
            9 if !dims.is_empty() => {
                let mut out = dims;
                out[axis] *= 2;
                self.node("Concat", &[&x, &x], out, vec![int("axis", axis as i64)]);
            }
            _ => {}
        }
    }

    /// Return the name and the dimensions of a value.
    fn chosen(&self, choice: u8) -> (String, Vec<usize>) {
        self.values[usize::from(choice) % self.values.len()].clone()
    }

    /// Return the name of the newest value.
    fn last_name(&self) -> String {
        self.values[self.values.len() - 1].0.clone()
    }

    fn model(mut self) -> OnnxModel {
        // Outputs: the last value, and a value from the middle.
        let last = self.values.len() - 1;
        for at in [last, last / 2].into_iter().collect::<std::collections::BTreeSet<_>>() {
            let (name, dims) = self.values[at].clone();
            self.graph.outputs.push(port(&name, &dims));
        }
        let opset = onnx::OperatorSet { domain: String::new(), version: 17 };
        let model = onnx::Model { graph: Some(self.graph), opset_imports: vec![opset], ..Default::default() };
        OnnxModel::read(model.encode_to_vec().into()).unwrap()
    }
}

fn port(name: &str, dims: &[usize]) -> onnx::ValueInfo {
    let dims = dims.iter().map(|dim| onnx::Dim { size: Some(*dim as i64), symbol: None }).collect();
    let dense = onnx::DenseType { element_type: 1, shape: Some(onnx::Shape { dims }) };
    onnx::ValueInfo { name: name.to_owned(), value_type: Some(onnx::ValueType { tensor: Some(dense) }) }
}

fn int(name: &str, value: i64) -> onnx::Attribute {
    onnx::Attribute { name: name.to_owned(), int: Some(value), ..Default::default() }
}

fn ints(name: &str, values: &[usize]) -> onnx::Attribute {
    onnx::Attribute {
        name: name.to_owned(),
        ints: values.iter().map(|value| *value as i64).collect(),
        ..Default::default()
    }
}

fn weight(model: &OnnxModel, index: u32) -> Option<ReferenceTensor> {
    let weight = model.weights().get(index as usize)?;
    ReferenceTensor::from_bytes(weight.tensor.clone(), weight.inline()?)
}

/// Run a graph in memory laid out by its plan. A node that overwrites a value that is still needed
/// changes the results.
fn run_planned(model: &OnnxModel, graph: &Graph, x: &ReferenceTensor) -> Vec<ReferenceTensor> {
    let plan = MemoryPlan::new(graph);
    let mut memory = (vec![0xa5_u8; plan.arena_bytes], vec![0x5a_u8; plan.resident_bytes]);
    let write = |memory: &mut (Vec<u8>, Vec<u8>), id: ValueId, tensor: &ReferenceTensor| {
        let bytes = tensor.to_bytes();
        match plan.place(id) {
            ValuePlace::Arena { offset } => memory.0[offset..offset + bytes.len()].copy_from_slice(&bytes),
            ValuePlace::Resident { offset } => memory.1[offset..offset + bytes.len()].copy_from_slice(&bytes),
            other => panic!("{id:?} is written to {other:?}"),
        }
    };
    let read = |memory: &(Vec<u8>, Vec<u8>), id: ValueId| {
        let tensor = graph.value(id).tensor.clone();
        let bytes = tensor.bytes();
        match plan.place(id) {
            ValuePlace::Arena { offset } => {
                ReferenceTensor::from_bytes(tensor, &memory.0[offset..offset + bytes])
            }
            ValuePlace::Resident { offset } => {
                ReferenceTensor::from_bytes(tensor, &memory.1[offset..offset + bytes])
            }
            ValuePlace::Weight(index) => {
                weight(model, index).and_then(|weight| weight.reshaped(tensor.dims()))
            }
            ValuePlace::Constant(of) => match &graph.value(of).source {
                ValueSource::Constant(bytes) => ReferenceTensor::from_bytes(tensor, bytes),
                other => panic!("{other:?} is no constant"),
            },
        }
    };
    write(&mut memory, graph.inputs[0].value, x);
    for node in &graph.nodes {
        let operands: Vec<_> = node.inputs.iter().map(|id| id.and_then(|id| read(&memory, id))).collect();
        let types: Vec<_> = node.outputs.iter().map(|id| id.map(|id| &graph.value(id).tensor)).collect();
        let made = reference::run_op(&node.op, &operands, &types).unwrap();
        for (id, tensor) in node.outputs.iter().zip(&made) {
            if let (Some(id), Some(tensor)) = (id, tensor) {
                write(&mut memory, *id, tensor);
            }
        }
    }
    graph.outputs.iter().map(|port| read(&memory, port.value).unwrap()).collect()
}

proptest! {
    #[test]
    fn fusion_and_planning_preserve_results(
        start in prop::sample::select(vec![vec![2_usize, 3, 4], vec![1, 2, 4, 6], vec![2, 3, 2, 4], vec![6, 4]]),
        choices in prop::collection::vec(any::<Choice>(), 1..25),
    ) {
        let mut maker = ModelBuilder::new(&start);
        choices.iter().for_each(|choice| maker.step(*choice));
        let model = maker.model();
        let dims: Vec<u32> = start.iter().map(|dim| *dim as u32).collect();
        let plain = model.specialise(&[Shape::new(&dims).unwrap()]).unwrap();
        let tensor = plain.value(plain.inputs[0].value).tensor.clone();
        let x = ReferenceTensor::floats(tensor.clone(), (0..tensor.elements()).map(|at| ((at * 7919 + 5) % 100) as f32 / 50.0 - 1.0).collect());
        let weight = |index| weight(&model, index);
        let expected = reference::run(&plain, std::slice::from_ref(&x), &weight).unwrap();
        let fused = plain.clone().fuse().unwrap();
        for found in [run_planned(&model, &plain, &x), run_planned(&model, &fused, &x)] {
            for (found, expected) in found.iter().zip(&expected) {
                prop_assert_eq!(found.tensor(), expected.tensor());
                for (a, b) in found.to_floats().iter().zip(expected.to_floats()) {
                    prop_assert!((a - b).abs() <= 1e-3 * b.abs().max(1.0), "{a} is not {b}");
                }
            }
        }
    }
}
