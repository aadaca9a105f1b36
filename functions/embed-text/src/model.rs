//! The model `minilm`, which the node runs.

use crate::tokens::Batch;
use weir::inference::models::Model;
use weir::inference::tensors::{ElementType, Error, Tensor};

wit_bindgen::generate!({ path: "../../wit", world: "weir:inference/imports", generate_all });

/// The embeddings of a batch, one after the other.
pub fn embeddings(batch: &Batch) -> Result<Vec<f32>, String> {
    run(batch).map_err(|error| error.to_string())
}

fn run(batch: &Batch) -> Result<Vec<f32>, Error> {
    #[expect(clippy::cast_possible_truncation, reason = "both are a few hundred at most")]
    let shape = [batch.lengths.len() as u32, batch.longest as u32];
    let tensor = |numbers: &[i64]| {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        Tensor::from_bytes(ElementType::Int64, &shape, &bytes)
    };
    let (ids, mask) = (tensor(&batch.ids)?, tensor(&batch.mask)?);
    let inputs = [("input_ids".into(), &ids), ("attention_mask".into(), &mask)];
    let outputs = Model::open("minilm")?.infer(&inputs, None)?;
    let Some((_, embeddings)) = outputs.first() else { return Ok(Vec::new()) };
    let bytes = embeddings.read(0, embeddings.byte_length())?;
    Ok(bytes.as_chunks::<4>().0.iter().map(|number| f32::from_le_bytes(*number)).collect())
}
