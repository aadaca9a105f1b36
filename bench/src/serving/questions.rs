//! Requests for the servers, and the expected responses.

use super::peers::Peers;
use crate::protocol::{BinaryRequest, BinaryResponse, InputTensor, numbers};
use crate::weir::agent;
use anyhow::{Context as _, Result, bail, ensure};
use std::path::Path;
use std::thread;

/// Number of different requests, so that mixed-up responses are detected.
const QUESTIONS: usize = 4;
/// Number of concurrent repetitions of all requests, so that batching servers form batches.
const ASKED: usize = 4;
/// Tolerance relative to the largest number of a response: batched kernels sum in a different
/// order.
const DIFFERENCE_MAX: f32 = 1e-4;

/// "A man is playing a guitar on the street.", as tokens of the model's tokenizer.
const TOKENS: [i64; 12] = [101, 1037, 2158, 2003, 2652, 1037, 2858, 2006, 1996, 2395, 1012, 102];
/// Index of the token that differs between requests: "man".
const VARIED: usize = 2;

/// Requests for one model, all with the same shapes.
pub(crate) struct Questions {
    pub(crate) model: &'static str,
    pub(crate) requests: [BinaryRequest; QUESTIONS],
    tensor_bytes: [usize; 2],
}

impl Questions {
    /// A digit: a minimal model, so that the servers dominate.
    pub(crate) fn digits() -> Self {
        Self::pictures("digits", "image", [1, 1, 8, 8], 10)
    }

    /// Images.
    pub(crate) fn squeezenet() -> Self {
        Self::pictures("light_squeezenet_batched", "data_0", [1, 3, 224, 224], 1_000)
    }

    fn pictures(model: &'static str, input: &str, shape: [usize; 4], classes: usize) -> Self {
        let elements: usize = shape.iter().product();
        let picture = |question: usize| -> Vec<u8> {
            let value =
                |i: usize| ((i + question * elements / QUESTIONS) % elements) as f32 / elements as f32;
            (0..elements).flat_map(|i| value(i).to_le_bytes()).collect()
        };
        let request = |question| {
            let bytes = picture(question);
            BinaryRequest::new(&[InputTensor { name: input, datatype: "FP32", shape: &shape, bytes: &bytes }])
        };
        Self { model, requests: std::array::from_fn(request), tensor_bytes: [elements * 4, classes * 4] }
    }

    /// Sentences.
    pub(crate) fn minilm() -> Self {
        let shape = [1, TOKENS.len()];
        let bytes = |values: &[i64]| -> Vec<u8> { values.iter().flat_map(|v| v.to_le_bytes()).collect() };
        let mask = bytes(&[1; TOKENS.len()]);
        let request = |question: usize| {
            let mut tokens = TOKENS;
            tokens[VARIED] += question as i64;
            BinaryRequest::new(&[
                InputTensor { name: "input_ids", datatype: "INT64", shape: &shape, bytes: &bytes(&tokens) },
                InputTensor { name: "attention_mask", datatype: "INT64", shape: &shape, bytes: &mask },
            ])
        };
        Self {
            model: "minilm",
            requests: std::array::from_fn(request),
            tensor_bytes: [2 * mask.len(), 384 * 4],
        }
    }

    /// The measured request.
    pub(crate) fn first(&self) -> &BinaryRequest {
        &self.requests[0]
    }

    /// Human-readable sizes of the tensors.
    pub(crate) fn sizes(&self) -> String {
        let [inputs, outputs] = self.tensor_bytes;
        format!("{inputs} bytes of tensors in and {outputs} out")
    }

    /// Expected numbers of each response, from in-process ONNX Runtime.
    pub(in crate::serving) fn expected(&self, peers: &Peers, model: &Path) -> Result<Vec<Vec<f32>>> {
        let mut arguments = vec!["--json-bytes".to_owned(), self.first().json_bytes.to_string()];
        let files = |end: &str| {
            let file = |question| peers.scratch().join(format!("question-{question}{end}"));
            (0..QUESTIONS).map(file).collect::<Vec<_>>()
        };
        for (file, request) in files("").iter().zip(&self.requests) {
            ensure!(request.json_bytes == self.first().json_bytes, "the questions have different shapes");
            std::fs::write(file, &request.body)?;
            arguments.push(file.to_string_lossy().into_owned());
        }
        peers.script(model, "answer.py", &arguments)?;
        files(".answer").iter().map(|file| numbers(&std::fs::read(file)?)).collect()
    }

    /// Sends all requests to `url` concurrently, and compares the responses with `expected`.
    pub(crate) fn check(&self, url: &str, expected: &[Vec<f32>]) -> Result<()> {
        let agent = agent();
        // The first request may be slow on a server that has just started.
        let first = self.first().send(&agent, url)?;
        let answers = thread::scope(|scope| {
            let ask = |request| {
                let agent = &agent;
                scope.spawn(move || BinaryRequest::send(request, agent, url))
            };
            let asked: Vec<_> = (0..ASKED).flat_map(|_| &self.requests).map(ask).collect();
            let answers = asked.into_iter().map(|asked| match asked.join() {
                Ok(answer) => answer,
                Err(_) => bail!("a thread that asked {url} panicked"),
            });
            answers.collect::<Result<Vec<_>>>()
        })?;
        for (answer, expected) in answers.iter().zip(expected.iter().cycle()).chain([(&first, &expected[0])])
        {
            same(answer, &first, expected).with_context(|| format!("{url} answered wrongly"))?;
        }
        Ok(())
    }
}

fn same(answer: &BinaryResponse, first: &BinaryResponse, expected: &[f32]) -> Result<()> {
    ensure!(answer.json == first.json, "{} is not {}", answer.json, first.json);
    let numbers = numbers(&answer.tensors)?;
    ensure!(is_close(&numbers, expected), "it is not what ONNX Runtime answers in-process");
    Ok(())
}

fn is_close(a: &[f32], b: &[f32]) -> bool {
    let largest = b.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()));
    let close = |(a, b): (&f32, &f32)| (a - b).abs() <= DIFFERENCE_MAX * largest;
    a.len() == b.len() && largest > 0.0 && a.iter().zip(b).all(close)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerance_is_relative_to_the_largest_number() {
        assert!(is_close(&[0.001, 0.0], &[0.001, 1e-8]));
        assert!(!is_close(&[0.001, 1e-6], &[0.001, 0.0]));
        assert!(!is_close(&[0.001], &[0.001, 0.0]) && !is_close(&[0.0], &[0.0]));
        assert!(!is_close(&[f32::NAN], &[1.0]) && !is_close(&[], &[]));
    }

    #[test]
    fn requests_have_equal_shapes_and_different_values() {
        for questions in [Questions::digits(), Questions::squeezenet(), Questions::minilm()] {
            for (place, request) in questions.requests.iter().enumerate() {
                assert_eq!(request.json_bytes, questions.first().json_bytes);
                assert_eq!(request.body.len() - request.json_bytes, questions.tensor_bytes[0]);
                assert!(questions.requests[..place].iter().all(|other| other.body != request.body));
            }
        }
    }
}
