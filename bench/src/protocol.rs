//! Open Inference Protocol requests and responses with binary tensors.

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use ureq::Agent;

/// Header with the length of the JSON part of a body.
pub(crate) const HEADER: &str = "inference-header-content-length";

/// Maximum length of an inference response.
const ANSWER_BYTES_MAX: u64 = 128 << 20;

/// Input tensor.
#[derive(Debug)]
pub(crate) struct InputTensor<'a> {
    pub(crate) name: &'a str,
    pub(crate) datatype: &'a str,
    pub(crate) shape: &'a [usize],
    pub(crate) bytes: &'a [u8],
}

/// Request with binary tensors in both directions.
#[derive(Debug, Clone)]
pub(crate) struct BinaryRequest {
    pub(crate) json_bytes: usize,
    pub(crate) body: Vec<u8>,
}

impl BinaryRequest {
    pub(crate) fn new(inputs: &[InputTensor<'_>]) -> Self {
        let described: Vec<Value> = inputs
            .iter()
            .map(|InputTensor { name, datatype, shape, bytes }| {
                let size = json!({"binary_data_size": bytes.len()});
                json!({"name": name, "datatype": datatype, "shape": shape, "parameters": size})
            })
            .collect();
        let json = json!({"inputs": described, "parameters": {"binary_data_output": true}}).to_string();
        let tensors = inputs.iter().flat_map(|input| input.bytes);
        Self { json_bytes: json.len(), body: json.bytes().chain(tensors.copied()).collect() }
    }

    /// Sends the request to `url`.
    pub(crate) fn send(&self, agent: &Agent, url: &str) -> Result<BinaryResponse> {
        let request = agent.post(url).header(HEADER, self.json_bytes.to_string());
        let request = request.header("content-type", "application/octet-stream");
        let mut answer = request.send(&self.body[..]).with_context(|| format!("no answer from {url}"))?;
        let length = answer.headers().get(HEADER).and_then(|length| length.to_str().ok()?.parse().ok());
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
        if !answer.status().is_success() {
            bail!("{url} answered {}: {}", answer.status(), String::from_utf8_lossy(&body));
        }
        let (json, tensors) = length
            .and_then(|length: usize| body.split_at_checked(length))
            .with_context(|| format!("{url} answered without binary tensors"))?;
        let json = serde_json::from_slice(json).with_context(|| format!("{url} answered without JSON"))?;
        Ok(BinaryResponse { json, tensors: tensors.to_owned() })
    }
}

/// Response of an inference.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BinaryResponse {
    pub(crate) json: Value,
    /// Binary data after the JSON.
    pub(crate) tensors: Vec<u8>,
}

/// Decodes an FP32 tensor.
pub(crate) fn numbers(bytes: &[u8]) -> Result<Vec<f32>> {
    let (values, rest) = bytes.as_chunks();
    ensure!(rest.is_empty() && !values.is_empty(), "{} bytes are no FP32", bytes.len());
    Ok(values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_follow_the_json() {
        let ids = [1, 2, 3, 4];
        let mask = [5, 6];
        let request = BinaryRequest::new(&[
            InputTensor { name: "ids", datatype: "UINT8", shape: &[2, 2], bytes: &ids },
            InputTensor { name: "mask", datatype: "UINT8", shape: &[2], bytes: &mask },
        ]);
        let (json, tensors) = request.body.split_at(request.json_bytes);
        assert_eq!(tensors, [1, 2, 3, 4, 5, 6]);
        let json: Value = serde_json::from_slice(json).unwrap();
        assert_eq!(json["inputs"][0]["shape"], json!([2, 2]));
        assert_eq!(json["inputs"][1]["parameters"]["binary_data_size"], 2);
        assert_eq!(json["parameters"]["binary_data_output"], true);
    }

    #[test]
    fn truncated_fp32_is_an_error() {
        assert_eq!(numbers(&1.5_f32.to_le_bytes()).unwrap(), [1.5]);
        assert!(numbers(&[0; 5]).is_err() && numbers(&[]).is_err());
    }
}
