//! Batch normalisation folded into the convolution before it:
//! [`OnnxModel::with_normalisation_folded`].

use super::{ModelWeight, OnnxModel, WeightData, is_own};
use crate::ir::ImageLayout;
use crate::{TensorType, onnx};
use std::collections::HashMap;
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
        let mut readers: HashMap<&str, usize> = HashMap::new();
        for name in self.graph.nodes.iter().flat_map(|node| &node.inputs) {
            *readers.entry(name).or_default() += 1;
        }
        for port in &self.graph.outputs {
            *readers.entry(&port.name).or_default() += 1;
        }
        let folds: Vec<Fold> = (0..self.graph.nodes.len())
            .filter_map(|normalisation| Fold::find(&self, normalisation, &readers))
            .collect();
        for fold in &folds {
            self.apply(fold);
        }
        let mut index = 0;
        self.graph.nodes.retain(|_| {
            let is_kept = !folds.iter().any(|fold| fold.normalisation == index);
            index += 1;
            is_kept
        });
        self
    }

    fn apply(&mut self, fold: &Fold) {
        let Fold { convolution, normalisation, filters, bias, .. } = fold;
        let normalised = self.graph.nodes.get(*normalisation).and_then(|node| node.outputs.first().cloned());
        let (Some(normalised), Some(node)) = (normalised, self.graph.nodes.get_mut(*convolution)) else {
            return;
        };
        node.outputs = vec![normalised];
        // The normalisation's shift has as many elements as the bias, and nothing else reads it.
        node.inputs.truncate(2);
        node.inputs.push(bias.clone());
        for (name, numbers) in [(&node.inputs[1], filters), (bias, &fold.summands)] {
            if let Some(weight) = self.weights.iter_mut().find(|weight| weight.name == *name) {
                let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
                weight.data = WeightData::Bytes(bytes.into());
            }
        }
    }
}

/// A convolution and the normalisation that only it feeds, as indexes of nodes, and their numbers
/// together.
struct Fold {
    convolution: usize,
    normalisation: usize,
    filters: Vec<f32>,
    /// Weight that becomes the bias: the shift of the normalisation.
    bias: String,
    summands: Vec<f32>,
}

impl Fold {
    fn find(model: &OnnxModel, normalisation: usize, readers: &HashMap<&str, usize>) -> Option<Self> {
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
        let convolution = nodes.iter().position(|node| node.outputs.first() == Some(x))?;
        let conv = nodes.get(convolution).filter(|conv| is(conv, "Conv"))?;
        let is_read_once = |name: &String| readers.get(name.as_str()) == Some(&1);
        let w = conv.inputs.get(1)?;
        let (tensor, filters) = floats(model, w).filter(|(tensor, _)| tensor.dims().len() >= 3)?;
        let channels = *tensor.dims().first()?;
        let vector = |name: &String| {
            floats(model, name).filter(|(tensor, _)| tensor.dims() == [channels]).map(|(_, numbers)| numbers)
        };
        let bias = match conv.inputs.get(2).filter(|name| !name.is_empty()) {
            Some(name) => vector(name)?,
            None => vec![0.0; channels],
        };
        if !is_read_once(x) || !is_read_once(w) || !is_read_once(shift) {
            return None;
        }
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
        Some(Self {
            convolution,
            normalisation,
            filters: scaled.flat_map(|(filter, factor)| filter.iter().map(move |w| w * factor)).collect(),
            bias: shift.clone(),
            summands: (0..channels).map(summand).collect(),
        })
    }
}

/// Type and elements of an fp32 weight whose bytes are present.
fn floats<'a>(model: &'a OnnxModel, name: &str) -> Option<(&'a TensorType, Vec<f32>)> {
    let weight: &ModelWeight = model.weights.iter().find(|weight| weight.name == name)?;
    let WeightData::Bytes(bytes) = &weight.data else { return None };
    let is_plain = weight.tensor.element_type() == ElementType::Fp32
        && weight.stored_as == ElementType::Fp32
        && weight.layout == ImageLayout::ChannelsFirst;
    let numbers = bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]));
    is_plain.then(|| (&weight.tensor, numbers.collect()))
}
