//! GPU form of a model: the pushed graph without its large weights, which are separate files in the
//! element type of the computation.

use crate::program::{ModelProgramError, ProductTier, Program};
use bytes::Bytes;
use std::fs;
use std::path::Path;
use weir_graph::{GraphError, OnnxModel};
use weir_inference::{Content, FormMaker, FormResult, PrepareError, Variant, Weight};
use weir_kernels::{KernelTarget, Precision};
use weir_types::{ContentHash, ElementType, Platform, Shape};

/// Makes the GPU form of a model, for the process that checks uploads.
pub const FORM: FormMaker = FormMaker { platform: Platform::Cuda, make: form };

/// Writes the files of an upload's GPU form to `out`, named by hash, with weights stored for
/// `precision`. Returns the reason if the model cannot run on a GPU.
pub fn form(upload: Bytes, precision: Precision, out: &Path) -> FormResult {
    let model = match read(upload, precision) {
        Ok(model) => model,
        Err(why) => return Ok(Err(why)),
    };
    let separated = model.without_weights();
    let skeleton = ContentHash::from_content(&separated.skeleton);
    write(out, skeleton, &separated.skeleton)?;
    let mut weights = Vec::with_capacity(separated.weights.len());
    for file in &separated.weights {
        write(out, file.hash, &file.bytes)?;
        let Some(weight) = model.weights().iter().find(|weight| weight.name == file.name) else { continue };
        weights.push(Weight {
            name: file.name.clone(),
            element_type: weight.stored_as,
            dimensions: weight
                .tensor
                .dims()
                .iter()
                .map(|dim| i64::try_from(*dim).unwrap_or(i64::MAX))
                .collect(),
            hash: file.hash,
            offset: 0,
            bytes: file.bytes.len() as u64,
        });
    }
    let weight_bytes =
        weights.iter().map(|weight| weight.bytes).sum::<u64>() + separated.skeleton.len() as u64;
    Ok(Ok(Variant {
        platform: Platform::Cuda,
        content: Content::Network,
        only_on: None,
        precision,
        skeleton,
        weights,
        placeholder: None,
        weight_bytes,
        resident_bytes: weight_bytes,
        session_bytes: None,
    }))
}

/// Reads the model, and checks that GPUs support it, to the extent possible without input shapes.
fn read(upload: Bytes, precision: Precision) -> Result<OnnxModel, String> {
    let model = OnnxModel::read(upload).map_err(|error| error.to_string())?;
    let model = stored_for(model, precision).map_err(|error| error.to_string())?;
    let unsupported = model.unsupported();
    if let Some(first) = unsupported.first() {
        let others = unsupported.len() - 1;
        return Err(if others == 0 {
            first.to_string()
        } else {
            format!("{first} (and {others} other nodes)")
        });
    }
    // Variable dimensions are set to 1, which the model need not support. Therefore only errors
    // that are independent of the shapes count.
    let nominal =
        |shape: &[Option<u32>]| Shape::new(&shape.iter().map(|dim| dim.unwrap_or(1)).collect::<Vec<_>>());
    let shapes: Result<Vec<_>, _> =
        model.signature().inputs.iter().map(|port| nominal(&port.shape)).collect();
    let Ok(shapes) = shapes else { return Ok(model) };
    match Program::compile(&model, &shapes, precision, &KernelTarget::H200, ProductTier::Own) {
        Err(
            error @ (ModelProgramError::Kernel { .. }
            | ModelProgramError::Graph(GraphError::Unsupported { .. } | GraphError::Malformed(_))),
        ) => Err(error.to_string()),
        _ => Ok(model),
    }
}

/// Converts the weights of a model to the type and layout in which runs in `precision` read them.
pub fn stored_for(model: OnnxModel, precision: Precision) -> Result<OnnxModel, GraphError> {
    let model = model.with_normalisation_folded();
    let model = match precision.storage() {
        ElementType::Fp32 => model,
        storage => model.with_weights_as(storage)?,
    };
    model.with_filters_channels_last()
}

fn write(out: &Path, hash: ContentHash, bytes: &[u8]) -> Result<(), PrepareError> {
    let path = out.join(hash.to_string());
    // Equal weights of several forms are written once.
    if path.exists() {
        return Ok(());
    }
    fs::write(&path, bytes).map_err(|error| PrepareError::io("write", &path, error))
}
