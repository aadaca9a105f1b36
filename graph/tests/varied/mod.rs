//! Light networks with varied weights, for tests of this crate and of the executor.
//!
//! The original weights are all equal, made by `ConstantOfShape` on load, and so are all results: a
//! constant, or one channel in place of another, would pass the comparison. The varied weights are
//! random, from a fixed seed, and scaled so that values neither vanish nor grow through the layers.

mod onnx;

use bytes::Bytes;
use onnx::{Model, Named, Node, Tensor};
use prost::Message;
use std::collections::HashMap;

/// Random numbers (SplitMix64), identical on every platform.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Uniform between -1 and 1.
    pub(crate) fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        // As many bits as a float has, so that the conversion does not round.
        ((mixed >> 40) as f32 / (1 << 23) as f32) - 1.0
    }
}

/// Role of a weight in the operator that reads it, which decides its range.
#[derive(Clone, Copy)]
enum Role {
    /// Weight of a convolution or a product: each output is a sum of `fan_in` products.
    Factors { fan_in: i64 },
    /// Like `Factors`, for inputs that did not pass through ReLU.
    FactorsOfAll { fan_in: i64 },
    /// Like `Factors`, for the last layer: logits stay close together, so that softmax leaves many
    /// classes.
    LastFactors { fan_in: i64 },
    /// Factor, or divisor under a root.
    Scale,
    /// Factor of a residual branch; a network has many of them.
    ResidualScale,
    /// Summand.
    Shift,
    /// Summand of the logits, large enough for a following ReLU to leave them unchanged.
    LastShift,
}

/// The network of a file with varied weights. Other constants are shapes.
pub(crate) fn varied(file: &[u8]) -> Bytes {
    let mut model = Model::decode(file).unwrap();
    let graph = model.graph.as_mut().unwrap();
    let nodes: Vec<Node> = graph.nodes.iter().map(|node| Node::decode(node.clone()).unwrap()).collect();
    let initialisers: Vec<Tensor> =
        graph.initialisers.iter().map(|tensor| Tensor::decode(tensor.clone()).unwrap()).collect();
    let values = Values::new(&nodes);
    let mut random = Random(1);

    // Some weights are in the file.
    for (tensor, bytes) in initialisers.iter().zip(&mut graph.initialisers) {
        let name = &tensor.name;
        let dims = &tensor.dims;
        let is_float = tensor.data_type == onnx::FLOAT;
        if let Some(role) = values.role(name, dims).filter(|_| is_float) {
            *bytes = role.tensor(name, dims, &mut random);
        }
    }
    // Most weights are only sizes, for `ConstantOfShape`.
    let shapes: HashMap<&str, &Tensor> =
        initialisers.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let (constants, others): (Vec<_>, Vec<_>) =
        nodes.iter().zip(graph.nodes.drain(..)).partition(|(node, _)| node.operator == "ConstantOfShape");
    for (node, _) in &constants {
        let name = &node.outputs[0];
        let dims = shapes[node.inputs[0].as_str()].integers();
        let role = values.role(name, &dims);
        let role = role.unwrap_or_else(|| panic!("nothing that is known reads {name}"));
        graph.initialisers.push(role.tensor(name, &dims, &mut random));
    }
    assert!(!constants.is_empty(), "these are not the weights that are made as they load");
    graph.nodes = others.into_iter().map(|(_, bytes)| bytes).collect();

    let is_weight = |input: &Bytes| shapes.contains_key(Named::decode(input.clone()).unwrap().name.as_str());
    graph.inputs.retain(|input| !is_weight(input));
    // From this version on, weights need not be inputs.
    model.ir_version = 4;
    model.encode_to_vec().into()
}

/// The reader of each value with the index of the input, and the operator that makes each value.
struct Values<'a> {
    of: HashMap<&'a str, (&'a Node, usize)>,
    made_by: HashMap<&'a str, &'a str>,
    last: Option<&'a Node>,
}

impl<'a> Values<'a> {
    fn new(nodes: &'a [Node]) -> Self {
        let inputs = |node: &'a Node| {
            node.inputs.iter().enumerate().map(move |(place, input)| (input.as_str(), (node, place)))
        };
        let last = nodes.iter().rfind(|node| matches!(node.operator.as_str(), "Conv" | "Gemm"));
        let made = nodes.iter().map(|node| (node.outputs[0].as_str(), node.operator.as_str()));
        Self { of: nodes.iter().flat_map(inputs).collect(), made_by: made.collect(), last }
    }

    /// Role of the weight of this name.
    fn role(&self, name: &str, dims: &[i64]) -> Option<Role> {
        let (node, place) = *self.of.get(name)?;
        let is_last = self.last == Some(node);
        let adds =
            || self.of.get(node.outputs[0].as_str()).is_some_and(|(reader, _)| reader.operator == "Sum");
        match (node.operator.as_str(), place) {
            // Operators that only change dimensions.
            ("Unsqueeze" | "Reshape", 0) => self.role(&node.outputs[0], dims),
            ("Conv" | "Gemm", 1) => {
                // The second matrix of every `Gemm` in these networks is transposed.
                let of_each = if node.operator == "Conv" { &dims[1..] } else { &dims[dims.len() - 1..] };
                let fan_in = of_each.iter().product();
                let reads_all = self.made_by.get(node.inputs[0].as_str()) == Some(&"BatchNormalization");
                Some(match (is_last, reads_all) {
                    (true, _) => Role::LastFactors { fan_in },
                    (_, true) => Role::FactorsOfAll { fan_in },
                    _ => Role::Factors { fan_in },
                })
            }
            ("Conv" | "Gemm", 2) if is_last => Some(Role::LastShift),
            ("BatchNormalization", 1) if adds() => Some(Role::ResidualScale),
            ("BatchNormalization", 1 | 4) | ("Mul", _) => Some(Role::Scale),
            ("BatchNormalization", 2 | 3) | ("Conv" | "Gemm", 2) | ("Add", _) => Some(Role::Shift),
            _ => None,
        }
    }
}

impl Role {
    fn tensor(self, name: &str, dims: &[i64], random: &mut Random) -> Bytes {
        // Such a sum is as large as its inputs, half of which ReLU has zeroed (He et al., 2015).
        let he = |fan_in: i64| (6.0 / fan_in as f32).sqrt();
        let (middle, reach) = match self {
            Self::Factors { fan_in } => (0.0, he(fan_in)),
            Self::FactorsOfAll { fan_in } => (0.0, he(fan_in) / std::f32::consts::SQRT_2),
            Self::LastFactors { fan_in } => (0.0, he(fan_in) / 10.0),
            // Multiplied by one such number and divided by the root of another, a value keeps its
            // magnitude.
            Self::Scale => (0.9, 0.45),
            Self::ResidualScale => (0.4, 0.2),
            Self::Shift => (0.0, 0.25),
            Self::LastShift => (2.0, 0.25),
        };
        let count: i64 = dims.iter().product();
        let mut data = Vec::with_capacity(4 * count as usize);
        (0..count).for_each(|_| data.extend((middle + reach * random.next()).to_le_bytes()));
        Tensor::floats(name, dims, data).encode_to_vec().into()
    }
}
