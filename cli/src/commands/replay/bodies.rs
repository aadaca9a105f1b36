//! Bodies of inferences: zeros for the inputs that a model describes.

use super::plan::Plan;
use crate::client::Client;
use crate::error::Problem;
use anyhow::Result;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;

/// Maximum number of elements of an input.
const ELEMENTS_MAX: u64 = 1 << 20;

/// A model as the Open Inference Protocol describes it.
#[derive(Debug, Clone, Deserialize)]
struct Metadata {
    inputs: Vec<InputMetadata>,
}

#[derive(Debug, Clone, Deserialize)]
struct InputMetadata {
    name: String,
    datatype: String,
    shape: Vec<i64>,
}

/// Adds bodies to the inferences of the plan.
pub(super) fn add(plan: &mut Plan, client: &Client) -> Result<()> {
    let mut known: HashMap<String, Metadata> = HashMap::new();
    for target in &mut plan.targets {
        let Some(model) = &target.inference else { continue };
        let metadata = match known.get(model) {
            Some(metadata) => metadata,
            None => {
                let what = format!("describe the model {model}");
                let metadata = client.get(&format!("/v2/models/{model}"), &what)?;
                known.entry(model.clone()).or_insert(metadata)
            }
        };
        target.body = serde_json::to_vec(&zeros(model, metadata, target.batch)?)?;
        target.content_type = "application/json";
    }
    Ok(())
}

/// An inference request with zeros. Dimensions without a size are `batch`, if they are the first, and
/// else 1.
fn zeros(model: &str, metadata: &Metadata, batch: u32) -> Result<Value> {
    let mut inputs = Vec::with_capacity(metadata.inputs.len());
    for InputMetadata { name, datatype, shape } in &metadata.inputs {
        let size = |(at, size): (usize, &i64)| match u64::try_from(*size) {
            Ok(size) => size,
            Err(_) if at == 0 => batch.into(),
            Err(_) => 1,
        };
        let shape: Vec<u64> = shape.iter().enumerate().map(size).collect();
        let count = shape.iter().try_fold(1_u64, |count, size| count.checked_mul(*size));
        let zero = match &**datatype {
            "BOOL" => json!(false),
            "BYTES" => json!(""),
            "FP32" | "FP64" => json!(0.0),
            _ if datatype.starts_with("INT") || datatype.starts_with("UINT") => json!(0),
            _ => return Err(no_zeros(model, name, &format!("is {datatype}, which JSON cannot express"))),
        };
        let count =
            count.filter(|count| *count <= ELEMENTS_MAX).and_then(|count| usize::try_from(count).ok());
        let Some(count) = count else {
            return Err(no_zeros(model, name, &format!("has more than {ELEMENTS_MAX} elements")));
        };
        inputs.push(json!({"name": name, "datatype": datatype, "shape": shape, "data": vec![zero; count]}));
    }
    Ok(json!({"inputs": inputs}))
}

fn no_zeros(model: &str, input: &str, why: &str) -> anyhow::Error {
    Problem::usage(format!("cannot make a body: the input {input:?} of {model} {why}"))
        .hint("give the body of the requests with --body")
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(datatype: &str, shape: &[i64]) -> Metadata {
        let input = InputMetadata { name: "x".into(), datatype: datatype.into(), shape: shape.to_vec() };
        Metadata { inputs: vec![input] }
    }

    #[test]
    fn zeros_have_the_shape_and_type_of_the_input() {
        let body = zeros("m", &metadata("FP32", &[-1, 2, -1]), 3).unwrap();
        let input = json!({"name": "x", "datatype": "FP32", "shape": [3, 2, 1], "data": [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]});
        assert_eq!(body, json!({"inputs": [input]}));
        assert_eq!(zeros("m", &metadata("BYTES", &[]), 1).unwrap()["inputs"][0]["data"], json!([""]));
        assert_eq!(zeros("m", &metadata("INT64", &[1]), 1).unwrap()["inputs"][0]["data"], json!([0]));
        for (datatype, shape) in [("FP16", &[1][..]), ("FP32", &[1 << 11, 1 << 11]), ("FP32", &[i64::MAX; 4])]
        {
            let error = zeros("m", &metadata(datatype, shape), 1).unwrap_err().to_string();
            assert!(error.contains("\"x\" of m"), "{error}");
        }
    }
}
