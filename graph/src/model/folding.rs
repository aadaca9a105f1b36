//! Batch normalisation folded into the convolution before it:
//! [`OnnxModel::with_normalisation_folded`].

use super::{ModelWeight, OnnxModel, WeightData, is_own};
use crate::ir::ImageLayout;
use crate::{TensorType, onnx};
use std::collections::{HashMap, HashSet};
use weir_types::ElementType;

/// Default of the attribute `epsilon`.
const EPSILON: f32 = 1e-5;

impl OnnxModel {
    /// The same model, in which the filters and the bias of a convolution include the normalisation
    /// that follows it: `w' = w * f` and `b' = (b - mean) * f + shift`, with
    /// `f = scale / sqrt(variance + epsilon)`. Results differ by rounding.
    ///
    /// A pair stays as it is unless all of its numbers are fp32 weights of this file that nothing
    /// else reads.
    #[must_use]
    pub fn with_normalisation_folded(mut self) -> Self {
        let names = Names::new(&self);
        let folds: Vec<Fold> = (0..self.graph.nodes.len())
            .filter_map(|normalisation| Fold::find(&self, normalisation, &names))
            .collect();
        let removed: HashSet<usize> = folds.iter().map(|fold| fold.normalisation).collect();
        folds.into_iter().for_each(|fold| self.apply(fold));
        let mut index = 0;
        self.graph.nodes.retain(|_| {
            let is_kept = !removed.contains(&index);
            index += 1;
            is_kept
        });
        self
    }

    fn apply(&mut self, fold: Fold) {
        let normalised =
            self.graph.nodes.get(fold.normalisation).and_then(|node| node.outputs.first().cloned());
        let (Some(normalised), Some(node)) = (normalised, self.graph.nodes.get_mut(fold.convolution)) else {
            return;
        };
        node.outputs = vec![normalised];
        // The normalisation's shift has as many elements as the bias, and nothing else reads it.
        node.inputs.truncate(2);
        node.inputs.push(fold.bias);
        for (index, numbers) in [fold.filters, fold.summands] {
            if let Some(weight) = self.weights.get_mut(index) {
                let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
                weight.data = WeightData::Bytes(bytes.into());
            }
        }
    }
}

/// The values of a graph by name.
struct Names<'a> {
    /// Number of places that read a value.
    readers: HashMap<&'a str, usize>,
    /// Node whose first output a value is.
    makers: HashMap<&'a str, usize>,
    weights: HashMap<&'a str, usize>,
}

impl<'a> Names<'a> {
    fn new(model: &'a OnnxModel) -> Self {
        let mut readers: HashMap<&str, usize> = HashMap::new();
        let read = model.graph.nodes.iter().flat_map(|node| &node.inputs);
        for name in read.chain(model.graph.outputs.iter().map(|port| &port.name)) {
            *readers.entry(name).or_default() += 1;
        }
        let makers = model.graph.nodes.iter().enumerate();
        let makers = makers.filter_map(|(index, node)| Some((node.outputs.first()?.as_str(), index)));
        let weights = model.weights.iter().enumerate();
        let weights = weights.map(|(index, weight)| (weight.name.as_str(), index));
        Self { readers, makers: makers.collect(), weights: weights.collect() }
    }

    fn is_read_once(&self, name: &str) -> bool {
        self.readers.get(name) == Some(&1)
    }
}

/// A convolution and the normalisation that only it feeds, as indexes of nodes, and their numbers
/// together.
struct Fold {
    convolution: usize,
    normalisation: usize,
    /// Index of the filters, and their new elements.
    filters: (usize, Vec<f32>),
    /// Weight that becomes the bias: the shift of the normalisation.
    bias: String,
    /// Its index, and its new elements.
    summands: (usize, Vec<f32>),
}

impl Fold {
    fn find(model: &OnnxModel, normalisation: usize, names: &Names<'_>) -> Option<Self> {
        let nodes = &model.graph.nodes;
        let node = nodes.get(normalisation)?;
        let is = |node: &onnx::Node, operator: &str| is_own(&node.domain) && node.operator == operator;
        let number = |name: &str| node.attributes.iter().find(|attribute| attribute.name == name);
        let is_training = number("training_mode").and_then(|mode| mode.int).unwrap_or(0) != 0
            || number("is_test").and_then(|mode| mode.int) == Some(0)
            || number("spatial").and_then(|mode| mode.int) == Some(0)
            || node.outputs.iter().skip(1).any(|name| !name.is_empty());
        if !is(node, "BatchNormalization") || is_training {
            return None;
        }
        let [x, scale, shift, mean, variance] = node.inputs.as_slice() else { return None };
        let convolution = *names.makers.get(x.as_str())?;
        let conv = nodes.get(convolution).filter(|conv| is(conv, "Conv"))?;
        let w = conv.inputs.get(1)?;
        if ![x, w, shift].into_iter().all(|name| names.is_read_once(name)) {
            return None;
        }
        let filters_at = *names.weights.get(w.as_str())?;
        let shift_at = *names.weights.get(shift.as_str())?;
        let weight = |name: &str| model.weights.get(*names.weights.get(name)?);
        let (tensor, filters) = floats(weight(w)?).filter(|(tensor, _)| tensor.dims().len() >= 3)?;
        let channels = *tensor.dims().first()?;
        let vector = |name: &String| {
            floats(weight(name)?)
                .filter(|(tensor, _)| tensor.dims() == [channels])
                .map(|(_, numbers)| numbers)
        };
        let bias = match conv.inputs.get(2).filter(|name| !name.is_empty()) {
            Some(name) => vector(name)?,
            None => vec![0.0; channels],
        };
        let (scale, shifts, mean, variance) =
            (vector(scale)?, vector(shift)?, vector(mean)?, vector(variance)?);
        let epsilon = number("epsilon").and_then(|epsilon| epsilon.float).unwrap_or(EPSILON);
        let factors: Vec<f32> = scale
            .iter()
            .zip(&variance)
            .map(|(scale, variance)| scale / (variance + epsilon).sqrt())
            .collect();
        let per_filter = filters.len() / channels.max(1);
        let scaled = filters.chunks(per_filter.max(1)).zip(&factors);
        let summand = |channel: usize| (bias[channel] - mean[channel]) * factors[channel] + shifts[channel];
        let scaled = scaled.flat_map(|(filter, factor)| filter.iter().map(move |w| w * factor)).collect();
        Some(Self {
            convolution,
            normalisation,
            filters: (filters_at, scaled),
            bias: shift.clone(),
            summands: (shift_at, (0..channels).map(summand).collect()),
        })
    }
}

/// Type and elements of an fp32 weight whose bytes are present.
fn floats(weight: &ModelWeight) -> Option<(&TensorType, Vec<f32>)> {
    let WeightData::Bytes(bytes) = &weight.data else { return None };
    let is_plain = weight.tensor.element_type() == ElementType::Fp32
        && weight.stored_as == ElementType::Fp32
        && weight.layout == ImageLayout::ChannelsFirst;
    let numbers = bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]));
    is_plain.then(|| (&weight.tensor, numbers.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::{self, ReferenceTensor};
    use prost::Message as _;
    use weir_types::Shape;

    const CHANNELS: usize = 2;

    fn port(name: &str, dims: &[i64]) -> onnx::ValueInfo {
        let dims = dims.iter().map(|size| onnx::Dim { size: Some(*size), symbol: None }).collect();
        let tensor = onnx::DenseType { element_type: 1, shape: Some(onnx::Shape { dims }) };
        onnx::ValueInfo { name: name.to_owned(), value_type: Some(onnx::ValueType { tensor: Some(tensor) }) }
    }

    fn node(operator: &str, inputs: &[&str], output: &str) -> onnx::Node {
        onnx::Node {
            inputs: inputs.iter().map(|name| (*name).to_owned()).collect(),
            outputs: vec![output.to_owned()],
            operator: operator.to_owned(),
            ..Default::default()
        }
    }

    /// A convolution of 1x1 with a bias, its normalisation, and further nodes, whose last output is
    /// the model's.
    fn model(more: &[onnx::Node]) -> OnnxModel {
        let names = ["w", "bias", "scale", "shift", "mean", "variance"];
        let initialiser = |(at, name): (usize, &&str)| {
            let dims = if *name == "w" { vec![2, 2, 1, 1] } else { vec![2] };
            let count = dims.iter().product::<i64>() as usize;
            let number = |element: usize| 0.5 + (7 * at + 3 * element) as f32 / 5.0;
            let float_data = (0..count).map(number).collect();
            onnx::Tensor { name: (*name).to_owned(), data_type: 1, dims, float_data, ..Default::default() }
        };
        let mut nodes = vec![
            node("Conv", &["x", "w", "bias"], "c"),
            node("BatchNormalization", &["c", "scale", "shift", "mean", "variance"], "n"),
        ];
        nodes.extend(more.iter().cloned());
        let last = nodes.last().map(|node| node.outputs[0].clone()).unwrap();
        let graph = onnx::Graph {
            nodes,
            initialisers: names.iter().enumerate().map(initialiser).collect(),
            inputs: vec![port("x", &[1, 2, 1, 3])],
            outputs: vec![port(&last, &[1, 2, 1, 3])],
            ..Default::default()
        };
        let opset_imports = vec![onnx::OperatorSet { domain: String::new(), version: 17 }];
        let model = onnx::Model { graph: Some(graph), opset_imports, ..Default::default() };
        OnnxModel::read(model.encode_to_vec().into()).unwrap()
    }

    fn answers(model: &OnnxModel) -> Vec<f32> {
        let graph = model.specialise(&[Shape::new(&[1, 2, 1, 3]).unwrap()]).unwrap();
        let tensor = TensorType::new(ElementType::Fp32, [1, CHANNELS, 1, 3]).unwrap();
        let input = ReferenceTensor::floats(tensor, (0..6).map(|at| at as f32 - 2.5).collect());
        let weight = |index: u32| {
            let weight = &model.weights()[index as usize];
            let WeightData::Bytes(bytes) = &weight.data else { return None };
            ReferenceTensor::from_bytes(weight.tensor.clone(), bytes)
        };
        reference::run(&graph, &[input], &weight).unwrap().remove(0).to_floats()
    }

    #[track_caller]
    fn assert_folded(more: &[onnx::Node], nodes: usize) {
        let plain = model(more);
        let folded = plain.clone().with_normalisation_folded();
        assert_eq!(folded.graph.nodes.len(), nodes);
        for (found, expected) in answers(&folded).iter().zip(answers(&plain)) {
            assert!((found - expected).abs() < 1e-4, "{found} instead of {expected}");
        }
    }

    #[test]
    fn filters_and_bias_include_the_normalisation() {
        assert_folded(&[], 1);
        assert_folded(&[node("Relu", &["n"], "y")], 2);
    }

    #[test]
    fn shared_numbers_stay_as_they_are() {
        // The convolution's result, its filters, and the shift, each with a second reader.
        assert_folded(&[node("Add", &["n", "c"], "y")], 3);
        assert_folded(&[node("Conv", &["n", "w"], "y")], 3);
        let again = node("BatchNormalization", &["n", "scale", "shift", "mean", "variance"], "y");
        assert_folded(&[again], 3);
    }
}
