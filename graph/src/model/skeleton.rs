//! Skeletons: models whose large weights are stored separately, under the hash of their bytes.
//!
//! A skeleton is an ONNX file with "external data", ONNX's standard form for bytes outside the
//! file; the location is `sha256:` and a hash.

use super::{ModelWeight, OnnxModel, WeightData, weights};
use crate::ir::{CHANNELS_MULTIPLE, ImageLayout};
use crate::{GraphError, onnx};
use bytes::Bytes;
use prost::Message;
use std::collections::{HashMap, HashSet};
use weir_types::{ContentHash, ElementType};

const LOCATION: &str = "location";
const SCHEME: &str = "sha256:";
/// Key for the number, in the standard, of the element type of the stored bytes, if it differs from
/// the weight's type.
const STORED_AS: &str = "stored-as";
/// Key for the layout of filters whose channels are last, and its value.
const LAYOUT: &str = "layout";
const CHANNELS_LAST: &str = "channels-last";

/// A model split into skeleton and weights.
#[derive(Debug, Clone)]
pub struct Separated {
    /// The model without its large weights, for [`OnnxModel::read_skeleton`].
    pub skeleton: Bytes,
    /// Large weights, without duplicates, in file order.
    pub weights: Vec<WeightFile>,
}

/// Bytes of a weight, or of several equal weights.
#[derive(Debug, Clone)]
pub struct WeightFile {
    /// Name of the first weight with these bytes.
    pub name: String,
    /// Hash of the bytes.
    pub hash: ContentHash,
    /// The bytes.
    pub bytes: Bytes,
}

impl OnnxModel {
    /// The same model with its large fp32 weights in a 16-bit type, which halves the bytes to store
    /// and to load. [`Graph::in_storage`](crate::Graph::in_storage) defines the computation with
    /// such weights.
    pub fn with_weights_as(mut self, storage: ElementType) -> Result<Self, GraphError> {
        if !matches!(storage, ElementType::Fp16 | ElementType::Bf16) {
            return Err(GraphError::Refused(format!("weights kept as {storage}")));
        }
        self.weights.iter_mut().try_for_each(|weight| weights::store(weight, storage))?;
        Ok(self)
    }

    /// The same model with the channels last in the large filters of its convolutions, as
    /// [`Graph::with_channels_last`](crate::Graph::with_channels_last) reads them; or unchanged, if
    /// not all of its convolutions would gain.
    ///
    /// Filters qualify if they have more than one element, all channels are one group, and a pixel's
    /// channels are whole reads of 16 bytes.
    pub fn with_filters_channels_last(mut self) -> Result<Self, GraphError> {
        let names = filters_for_channels_last(&self.graph.nodes, &self.weights);
        let wanted = self.weights.iter_mut().filter(|weight| names.contains(&weight.name));
        wanted.into_iter().try_for_each(weights::put_channels_last)?;
        Ok(self)
    }

    /// Separate the large weights, so that the rest can be kept in memory and sent to other nodes.
    /// The model and its skeleton make the same graphs.
    #[must_use]
    pub fn without_weights(&self) -> Separated {
        let mut graph = self.graph.clone();
        let mut files = Vec::new();
        let mut seen = HashSet::new();
        for weight in self.weights() {
            let mut tensor = described(weight);
            match &weight.data {
                WeightData::Bytes(bytes) if weight.is_small() => tensor.raw_data = bytes.clone(),
                data => {
                    let hash = weight.hash();
                    tensor.data_location = onnx::EXTERNAL;
                    let value = format!("{SCHEME}{hash}");
                    tensor.external_data = vec![onnx::Pair { key: LOCATION.to_owned(), value }];
                    if weight.stored_as != weight.tensor.element_type() {
                        let value = weights::number(weight.stored_as).to_string();
                        tensor.external_data.push(onnx::Pair { key: STORED_AS.to_owned(), value });
                    }
                    if weight.layout == ImageLayout::ChannelsLast {
                        let value = CHANNELS_LAST.to_owned();
                        tensor.external_data.push(onnx::Pair { key: LAYOUT.to_owned(), value });
                    }
                    if let (WeightData::Bytes(bytes), true) = (data, seen.insert(hash)) {
                        files.push(WeightFile { name: weight.name.clone(), hash, bytes: bytes.clone() });
                    }
                }
            }
            graph.initialisers.push(tensor);
        }
        let opset = onnx::OperatorSet { domain: String::new(), version: self.opset };
        let model = onnx::Model {
            ir_version: Some(8),
            graph: Some(graph),
            opset_imports: vec![opset],
            ..onnx::Model::default()
        };
        Separated { skeleton: model.encode_to_vec().into(), weights: files }
    }
}

/// Names of the filters whose channels shall be last.
fn filters_for_channels_last(nodes: &[onnx::Node], weights: &[ModelWeight]) -> HashSet<String> {
    let convolution = |node: &onnx::Node| {
        super::is_own(&node.domain) && node.operator == "Conv" || node.operator == "FusedConv"
    };
    let group = |node: &onnx::Node| {
        node.attributes.iter().find(|attribute| attribute.name == "group").and_then(|group| group.int)
    };
    let mut names: HashSet<String> = HashSet::new();
    for node in nodes.iter().filter(|node| convolution(node)) {
        // Convolutions of many groups have other kernels, with channels first; alternating
        // between the layouts costs more than it gains.
        if group(node).unwrap_or(1) != 1 {
            return HashSet::new();
        }
        names.extend(node.inputs.get(1).cloned());
    }
    let by_name: HashMap<&str, &ModelWeight> =
        weights.iter().map(|weight| (weight.name.as_str(), weight)).collect();
    names.retain(|name| match by_name.get(name.as_str()).map(|weight| weight.tensor.dims()) {
        Some(&[_, channels, height, width]) => {
            channels.is_multiple_of(CHANNELS_MULTIPLE) && height * width > 1
        }
        _ => false,
    });
    // Another reader would read them in the wrong order.
    for node in nodes {
        for (place, name) in node.inputs.iter().enumerate() {
            if !(place == 1 && convolution(node)) {
                names.remove(name);
            }
        }
    }
    names
}

fn described(weight: &ModelWeight) -> onnx::Tensor {
    let dims = weight.tensor.dims().iter().map(|dim| i64::try_from(*dim).unwrap_or(i64::MAX)).collect();
    let data_type = weights::number(weight.tensor.element_type());
    onnx::Tensor { name: weight.name.clone(), dims, data_type, ..onnx::Tensor::default() }
}

/// Element type of the stored bytes of a skeleton's weight, if the skeleton states it.
pub(super) fn stored_as(tensor: &onnx::Tensor) -> Option<ElementType> {
    weights::element_type(tensor.external(STORED_AS)?.parse().ok()?)
}

/// Layout of a skeleton's weight.
pub(super) fn layout(tensor: &onnx::Tensor) -> ImageLayout {
    match tensor.external(LAYOUT) {
        Some(CHANNELS_LAST) => ImageLayout::ChannelsLast,
        _ => ImageLayout::ChannelsFirst,
    }
}

/// Content hash of a skeleton's weight.
pub(super) fn hash(tensor: &onnx::Tensor) -> Option<ContentHash> {
    tensor.external(LOCATION)?.strip_prefix(SCHEME)?.parse().ok()
}
