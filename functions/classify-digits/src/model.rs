//! The model `digits`, which the node runs.

use crate::prepare::{Input, SIDE};
use weir::inference::models::Model;
use weir::inference::tensors::{ElementType, Error, Tensor};

wit_bindgen::generate!({ path: "../../wit", world: "weir:inference/imports", generate_all });

/// The probability of each digit from 0 to 9.
pub fn probabilities(input: &Input) -> Result<[f32; 10], String> {
    run(input).map_err(|error| error.to_string())?.ok_or_else(|| "it did not give ten numbers".to_owned())
}

fn run(input: &Input) -> Result<Option<[f32; 10]>, Error> {
    let bytes: Vec<u8> = input.iter().flat_map(|pixel| pixel.to_le_bytes()).collect();
    #[expect(clippy::cast_possible_truncation, reason = "it is 8")]
    let side = SIDE as u32;
    let image = Tensor::from_bytes(ElementType::Fp32, &[1, 1, side, side], &bytes)?;
    let outputs = Model::open("digits")?.infer(&[("image".into(), &image)], None)?;
    let Some((_, tensor)) = outputs.first() else { return Ok(None) };
    let bytes = tensor.read(0, tensor.byte_length())?;
    let (numbers, rest) = bytes.as_chunks::<4>();
    let numbers: Vec<f32> = numbers.iter().map(|number| f32::from_le_bytes(*number)).collect();
    Ok(if rest.is_empty() { numbers.try_into().ok() } else { None })
}
