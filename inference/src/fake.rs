//! Models that only say what they would cost: for tests, and for trying out the scheduler.
//!
//! A fake model is a JSON file. Loading it and running it take the times that it declares; an output echoes the input in the same
//! position where that fits, and is zeroes otherwise.
//!
//! ```json
//! { "load_time_ms": 20, "run_time_ms": { "1": 2, "8": 9.5 }, "resident_bytes": 1000000,
//!   "signature": { "inputs":  [{ "name": "x", "datatype": "FP32", "shape": [null, 4] }],
//!                  "outputs": [{ "name": "y", "datatype": "FP32", "shape": [null, 4] }] } }
//! ```

use crate::backend::{Backend, Model, ModelSource, Session};
use crate::error::InferenceError;
use crate::footprint::Footprint;
use crate::interrupt::Interrupt;
use crate::prepare::{PrepareError, Prepared, Refusal, Variant};
use crate::request::Job;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weir_device::{Arena, Device};
use weir_types::{ContentHash, ModelId, Port, Shape, Signature};

/// The largest file that is read as a fake model.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Runs [`FakeModel`]s.
pub struct FakeBackend {
    arena: Arena,
}

/// What a fake model declares.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FakeModel {
    /// How long loading takes.
    #[serde(default)]
    pub load_time_ms: f64,
    /// How long a run takes, by batch size; a batch between two sizes takes as long as the larger one, and one beyond them as long as several.
    #[serde(default)]
    pub run_time_ms: BTreeMap<u32, f64>,
    /// The device memory that it counts as.
    pub resident_bytes: u64,
    /// What it takes and gives.
    pub signature: Signature,
}

impl FakeBackend {
    /// A backend whose outputs live in `arena`.
    #[must_use]
    pub fn new(arena: Arena) -> Self {
        Self { arena }
    }
}

#[async_trait::async_trait]
impl Backend for FakeBackend {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn device(&self) -> Device {
        Device::Cpu
    }

    async fn prepare(&self, file: &Path, out: &Path) -> Result<Prepared, PrepareError> {
        let (file, out) = (file.to_owned(), out.to_owned());
        let prepared = tokio::task::spawn_blocking(move || prepare(&file, &out)).await;
        prepared.unwrap_or_else(|error| Err(Refusal::Crashed { how: error.to_string() }.into()))
    }

    fn load(&self, source: &ModelSource) -> Result<Box<dyn Model>, InferenceError> {
        let variant = source.prepared.variants.first();
        let path = variant.map(|variant| source.blobs.join(variant.skeleton.to_string()));
        let path = path.ok_or_else(|| load_error(source.id(), &"it has no variant"))?;
        let bytes = std::fs::read(&path).map_err(|error| load_error(source.id(), &error))?;
        let model: FakeModel =
            serde_json::from_slice(&bytes).map_err(|error| load_error(source.id(), &error))?;
        std::thread::sleep(milliseconds(model.load_time_ms));
        Ok(Box::new(Loaded { model: Arc::new(model), arena: self.arena.clone() }))
    }
}

fn prepare(file: &Path, out: &Path) -> Result<Prepared, PrepareError> {
    let malformed = |why: String| Refusal::Malformed { why };
    let len = std::fs::metadata(file).map_err(|error| PrepareError::io("read", file, error))?.len();
    if len > FILE_BYTES_MAX {
        return Err(malformed(format!(
            "a fake model has at most {FILE_BYTES_MAX} bytes, this one has {len}"
        ))
        .into());
    }
    let bytes = std::fs::read(file).map_err(|error| PrepareError::io("read", file, error))?;
    let model: FakeModel = serde_json::from_slice(&bytes).map_err(|error| malformed(error.to_string()))?;
    let skeleton = ContentHash::of(&bytes);
    let blob = out.join(skeleton.to_string());
    std::fs::write(&blob, &bytes).map_err(|error| PrepareError::io("write", &blob, error))?;
    let FakeModel { signature, resident_bytes, .. } = model;
    let (only_on, weights, placeholder, weight_bytes) = (None, Vec::new(), None, 0);
    let session_bytes = None;
    let variant =
        Variant { only_on, skeleton, weights, placeholder, weight_bytes, resident_bytes, session_bytes };
    Ok(Prepared { signature, weight_bytes, resident_bytes, variants: vec![variant] })
}

struct Loaded {
    model: Arc<FakeModel>,
    arena: Arena,
}

impl Model for Loaded {
    fn footprint(&self) -> Footprint {
        Footprint::own(self.model.resident_bytes)
    }

    fn session(&self) -> Result<Box<dyn Session>, InferenceError> {
        Ok(Box::new(Self { model: Arc::clone(&self.model), arena: self.arena.clone() }))
    }
}

impl Session for Loaded {
    fn run(&mut self, job: &Job, interrupt: &Interrupt) -> Result<Vec<Tensor>, InferenceError> {
        let batch =
            job.inputs.iter().find_map(|tensor| tensor.shape().dimensions().first()).copied().unwrap_or(1);
        let stopped = interrupt.wait_timeout(self.model.run_time(batch));
        if stopped {
            return Err(InferenceError::Cancelled);
        }
        let ports = &self.model.signature.outputs;
        let wanted = job
            .outputs
            .iter()
            .filter_map(|position| Some((ports.get(*position)?, job.inputs.get(*position))));
        wanted.map(|(port, input)| self.output(port, input, batch)).collect()
    }
}

impl Loaded {
    fn output(&self, port: &Port, input: Option<&Tensor>, batch: u32) -> Result<Tensor, InferenceError> {
        if let Some(input) = input.filter(|input| port.accepts(input.element_type(), input.shape())) {
            return Ok(input.clone());
        }
        let dimensions: Vec<_> = port.shape.iter().map(|size| size.unwrap_or(batch)).collect();
        let shape = Shape::new(&dimensions).map_err(crate::tensor::TensorError::from)?;
        // A string of no bytes is its length, 0, in four.
        let element_bytes = port.datatype.size_bytes().unwrap_or(size_of::<u32>());
        let len = usize::try_from(shape.element_count()).unwrap_or(usize::MAX).saturating_mul(element_bytes);
        Ok(Tensor::new(port.datatype, shape, self.arena.buffer(len)?.freeze())?)
    }
}

impl FakeModel {
    fn run_time(&self, batch: u32) -> Duration {
        let Some((largest, longest_ms)) = self.run_time_ms.last_key_value() else { return Duration::ZERO };
        let (whole, rest) = (batch / (*largest).max(1), batch % (*largest).max(1));
        let is_part = rest > 0 || batch == 0;
        let part = self.run_time_ms.range(rest..).next().filter(|_| is_part);
        milliseconds(longest_ms * f64::from(whole) + part.map_or(0.0, |(_, time_ms)| *time_ms))
    }
}

fn milliseconds(time_ms: f64) -> Duration {
    Duration::try_from_secs_f64(time_ms / 1e3).unwrap_or_default()
}

fn load_error(model: &ModelId, error: &dyn std::fmt::Display) -> InferenceError {
    InferenceError::Load { model: model.clone(), why: error.to_string().into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_types::ElementType;

    fn model() -> FakeModel {
        let port = |name: &str, datatype, shape: &[Option<u32>]| Port {
            name: name.into(),
            datatype,
            shape: shape.to_vec(),
        };
        FakeModel {
            load_time_ms: 0.0,
            run_time_ms: BTreeMap::from([(1, 2.0), (8, 9.5)]),
            resident_bytes: 7,
            signature: Signature {
                inputs: vec![port("x", ElementType::Fp32, &[None, Some(2)])],
                outputs: vec![
                    port("y", ElementType::Fp32, &[None, Some(2)]),
                    port("z", ElementType::Bytes, &[None]),
                ],
            },
        }
    }

    #[test]
    fn a_batch_takes_as_long_as_the_next_larger_one_or_as_several() {
        let times = [0, 1, 2, 8, 9, 17].map(|batch| model().run_time(batch).as_micros());
        assert_eq!(times, [2_000, 2_000, 9_500, 9_500, 11_500, 21_000]);
    }

    #[test]
    fn outputs_echo_what_fits_and_are_zero_otherwise() {
        let arena = Arena::new(1 << 20);
        let quick = FakeModel { run_time_ms: BTreeMap::new(), ..model() };
        let input =
            Tensor::new(ElementType::Fp32, Shape::new(&[3, 2]).unwrap(), arena.copy_of(&[5; 24]).unwrap())
                .unwrap();
        let job = Job { inputs: vec![input.clone()], outputs: vec![1, 0] };
        let outputs = Loaded { model: Arc::new(quick), arena }.run(&job, &Interrupt::default()).unwrap();
        assert_eq!((outputs[0].data().as_ref(), outputs[0].shape().dimensions()), (&[0; 12][..], &[3][..]));
        assert_eq!(outputs[1], input);
    }
}
