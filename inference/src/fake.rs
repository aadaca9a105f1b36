//! Models that only declare their costs: for tests, and for experiments with the scheduler.
//!
//! A fake model is a JSON file. Loading and running it take the declared times. An output echoes
//! the input in the same position if type and shape fit, and is zeroes otherwise. `on` declares
//! different costs for a kind of device, and `time_by_threads` declares the fraction of the run
//! time that remains with more than one thread.
//!
//! ```json
//! { "load_time_ms": 20, "run_time_ms": { "1": 2, "8": 9.5 }, "resident_bytes": 1000000,
//!   "on": { "fast": { "load_time_ms": 5, "run_time_ms": { "8": 1 } } },
//!   "signature": { "inputs":  [{ "name": "x", "datatype": "FP32", "shape": [null, 4] }],
//!                  "outputs": [{ "name": "y", "datatype": "FP32", "shape": [null, 4] }] } }
//! ```

use crate::backend::{Backend, Model, ModelSource, Preparer, Session};
use crate::error::InferenceError;
use crate::footprint::Footprint;
use crate::interrupt::Interrupt;
use crate::prepare::{Content, PrepareError, Prepared, Unsupported, UploadRefusal, Variant};
use crate::request::Job;
use crate::tensor::Tensor;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_device::{Arena, Device};
use weir_types::{ContentHash, ModelId, Platform, Platforms, Port, Precision, Shape, Signature};

/// The largest file that is read as a fake model, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The most threads of one run, as if the machine had this many processors.
const THREADS_MAX: u32 = 4;

/// Runs [`FakeModel`]s, as if on one device.
pub struct FakeBackend {
    arena: Arena,
    device: Device,
    kind: String,
    loss: Arc<Loss>,
}

/// End of the device's loss, while it is lost.
#[derive(Default)]
struct Loss(Mutex<Option<Instant>>);

/// Declaration of a fake model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FakeModel {
    /// Time of a load.
    #[serde(default)]
    pub load_time_ms: f64,
    /// Additional time until all weights have arrived, while runs may already begin and wait for
    /// them. If negative, the arrival fails after the absolute value of this time.
    #[serde(default)]
    pub arrive_time_ms: f64,
    /// Time of a run, by batch size. A batch between two sizes takes as long as the larger one, and
    /// a batch beyond the largest size takes as long as several runs.
    #[serde(default)]
    pub run_time_ms: BTreeMap<u32, f64>,
    /// Fraction of the run time with at least this many threads; 1 without an entry.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub time_by_threads: BTreeMap<u32, f64>,
    /// Device memory that the model is counted with.
    pub resident_bytes: u64,
    /// Device memory that one more session is counted with.
    #[serde(default)]
    pub session_bytes: u64,
    /// Costs on the kinds of devices where they differ.
    #[serde(default)]
    pub on: BTreeMap<String, FakeCosts>,
    /// Platforms that the model can run on.
    #[serde(default = "here")]
    pub platforms: Platforms,
    /// Inputs and outputs.
    pub signature: Signature,
}

/// Costs of a fake model on one kind of device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FakeCosts {
    /// Time of a load.
    #[serde(default)]
    pub load_time_ms: f64,
    /// Time of a run, as in [`FakeModel::run_time_ms`].
    #[serde(default)]
    pub run_time_ms: BTreeMap<u32, f64>,
    /// The largest batch that can run on the device. 0: the model cannot even be loaded. `None`: no
    /// limit.
    #[serde(default)]
    pub batch_max: Option<u32>,
    /// If set, a run loses the device for this time.
    #[serde(default)]
    pub loses_device_ms: Option<u64>,
}

/// Platforms that have a fake.
fn here() -> Platforms {
    [Platform::Cpu, Platform::Fake].into_iter().collect()
}

impl FakeBackend {
    /// A fake of the node's processor. Outputs are allocated in `arena`.
    #[must_use]
    pub fn new(arena: Arena) -> Self {
        Self::on(Device::Cpu, Platform::Cpu.as_str(), arena)
    }

    /// A fake accelerator of this kind.
    #[must_use]
    pub fn accelerator(ordinal: u32, kind: &str, arena: Arena) -> Self {
        Self::on(Device::Fake { ordinal }, kind, arena)
    }

    fn on(device: Device, kind: &str, arena: Arena) -> Self {
        Self { arena, device, kind: kind.to_owned(), loss: Arc::default() }
    }
}

impl Loss {
    fn begin(&self, time: Duration) -> InferenceError {
        *self.0.lock() = Some(Instant::now() + time);
        InferenceError::DeviceLost("a fake model takes it away".into())
    }

    fn check(&self) -> Result<(), InferenceError> {
        let mut until = self.0.lock();
        if until.is_some_and(|until| Instant::now() < until) {
            return Err(InferenceError::DeviceLost("a fake model has taken it away".into()));
        }
        *until = None;
        Ok(())
    }
}

#[async_trait::async_trait]
impl Preparer for FakeBackend {
    async fn prepare(&self, file: &Path, _: Precision, out: &Path) -> Result<Prepared, PrepareError> {
        let file = file.to_owned();
        let out = out.to_owned();
        let prepared = tokio::task::spawn_blocking(move || prepare(&file, &out)).await;
        prepared.unwrap_or_else(|error| Err(UploadRefusal::Crashed { how: error.to_string() }.into()))
    }
}

impl Backend for FakeBackend {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn device(&self) -> Device {
        self.device
    }

    fn kind(&self) -> String {
        self.kind.clone()
    }

    fn load(&self, source: &ModelSource) -> Result<Box<dyn Model>, InferenceError> {
        self.loss.check()?;
        let variant = source.prepared.variants.iter().find(|variant| self.runs(variant));
        let path = variant.map(|variant| source.blobs.join(variant.skeleton.to_string()));
        let path = path.ok_or_else(|| InferenceError::Unsupported("it has no form for it".into()))?;
        let bytes = std::fs::read(&path).map_err(|error| load_error(source.id(), &error))?;
        let model: FakeModel =
            serde_json::from_slice(&bytes).map_err(|error| load_error(source.id(), &error))?;
        let costs = model.costs_on(&self.kind);
        if costs.batch_max == Some(0) {
            return Err(InferenceError::Unsupported("it says so".into()));
        }
        std::thread::sleep(milliseconds(costs.load_time_ms));
        let arrival = Arc::new(Arrival::for_model(&model));
        let model = Arc::new(model);
        let costs = Arc::new(costs);
        let arena = self.arena.tenant(&source.id().tenant);
        let loss = self.loss.clone();
        Ok(Box::new(Loaded { model, costs, arrival, threads: 1, arena, loss, cold: None }))
    }

    fn threads_max(&self) -> u32 {
        THREADS_MAX
    }

    fn recover(&self) -> Result<(), InferenceError> {
        self.loss.check()
    }
}

fn prepare(file: &Path, out: &Path) -> Result<Prepared, PrepareError> {
    let malformed = |why: String| UploadRefusal::Malformed { why };
    let len = std::fs::metadata(file).map_err(|error| PrepareError::io("read", file, error))?.len();
    if len > FILE_BYTES_MAX {
        return Err(malformed(format!(
            "a fake model has at most {FILE_BYTES_MAX} bytes, this one has {len}"
        ))
        .into());
    }
    let bytes = std::fs::read(file).map_err(|error| PrepareError::io("read", file, error))?;
    let model: FakeModel = serde_json::from_slice(&bytes).map_err(|error| malformed(error.to_string()))?;
    let skeleton = ContentHash::from_content(&bytes);
    let blob = out.join(skeleton.to_string());
    std::fs::write(&blob, &bytes).map_err(|error| PrepareError::io("write", &blob, error))?;
    let FakeModel { signature, resident_bytes, platforms, .. } = model;
    let variant = |platform| Variant {
        platform,
        content: Content::Network,
        only_on: None,
        precision: Precision::default(),
        skeleton,
        weights: Vec::new(),
        placeholder: None,
        weight_bytes: 0,
        resident_bytes,
        session_bytes: None,
    };
    let lacking = here().without(platforms).iter();
    let unsupported =
        lacking.map(|platform| Unsupported { platform, why: "it says so".to_owned() }).collect();
    let variants = platforms.within(here()).iter().map(variant).collect();
    Ok(Prepared { signature, weight_bytes: 0, resident_bytes, variants, unsupported })
}

struct Loaded {
    model: Arc<FakeModel>,
    costs: Arc<FakeCosts>,
    arrival: Arc<Arrival>,
    threads: u32,
    arena: Arena,
    loss: Arc<Loss>,
    /// Time of the last run without its wait for the model's arrival, if it waited.
    cold: Option<Duration>,
}

/// When all weights of a model have arrived, or when the arrival fails.
struct Arrival {
    at: Instant,
    fails: bool,
}

impl Arrival {
    fn for_model(model: &FakeModel) -> Self {
        let at = Instant::now() + milliseconds(model.arrive_time_ms.abs());
        Self { at, fails: model.arrive_time_ms < 0.0 }
    }

    /// Remaining time; `None` once the arrival is over.
    fn left(&self) -> Option<Duration> {
        self.at.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }

    fn end(&self) -> Result<(), InferenceError> {
        if self.fails { Err(InferenceError::Unavailable("a fake model says so".into())) } else { Ok(()) }
    }
}

impl Model for Loaded {
    fn footprint(&self) -> Footprint {
        Footprint::own(self.model.resident_bytes)
    }

    fn session_bytes(&self) -> u64 {
        self.model.session_bytes
    }

    fn is_arriving(&self) -> bool {
        self.arrival.left().is_some()
    }

    fn arrive(&self) -> Result<(), InferenceError> {
        std::thread::sleep(self.arrival.left().unwrap_or_default());
        self.arrival.end()
    }

    fn session(&self, threads: u32) -> Result<Box<dyn Session>, InferenceError> {
        let model = self.model.clone();
        let costs = self.costs.clone();
        let arrival = self.arrival.clone();
        let arena = self.arena.clone();
        let loss = self.loss.clone();
        Ok(Box::new(Self { model, costs, arrival, threads, arena, loss, cold: None }))
    }
}

impl Session for Loaded {
    fn run(&mut self, job: &Job, interrupt: &Interrupt) -> Result<Vec<Tensor>, InferenceError> {
        let batch =
            job.inputs.iter().find_map(|tensor| tensor.shape().dimensions().first()).copied().unwrap_or(1);
        if self.costs.batch_max.is_some_and(|batch_max| batch > batch_max) {
            return Err(InferenceError::Unsupported(format!("a batch of {batch} is too large").into()));
        }
        self.loss.check()?;
        let left = self.arrival.left();
        let run_time = self.costs.run_time(batch, self.model.time_part(self.threads));
        if left.is_some_and(|left| interrupt.wait_timeout(left)) {
            return Err(InferenceError::Cancelled);
        }
        self.arrival.end()?;
        self.cold = left.map(|_| run_time);
        if interrupt.wait_timeout(run_time) {
            return Err(InferenceError::Cancelled);
        }
        if let Some(time_ms) = self.costs.loses_device_ms {
            return Err(self.loss.begin(Duration::from_millis(time_ms)));
        }
        let ports = &self.model.signature.outputs;
        let wanted = job
            .outputs
            .iter()
            .filter_map(|position| Some((ports.get(*position)?, job.inputs.get(*position))));
        wanted.map(|(port, input)| self.output(port, input, batch)).collect()
    }

    fn device_time(&self) -> Option<Duration> {
        self.cold
    }

    fn was_cold(&self) -> bool {
        self.cold.is_some()
    }
}

impl Loaded {
    fn output(&self, port: &Port, input: Option<&Tensor>, batch: u32) -> Result<Tensor, InferenceError> {
        if let Some(input) = input.filter(|input| port.accepts(input.element_type(), input.shape())) {
            return Ok(input.clone());
        }
        let dimensions: Vec<_> = port.shape.iter().map(|size| size.unwrap_or(batch)).collect();
        let shape = Shape::new(&dimensions).map_err(crate::tensor::TensorError::from)?;
        // An empty string is its length, 0, in four bytes.
        let element_bytes = port.datatype.size_bytes().unwrap_or(size_of::<u32>());
        let len = usize::try_from(shape.element_count()).unwrap_or(usize::MAX).saturating_mul(element_bytes);
        Ok(Tensor::new(port.datatype, shape, self.arena.buffer(len)?.freeze())?)
    }
}

impl FakeModel {
    /// Costs on a kind of device.
    fn costs_on(&self, kind: &str) -> FakeCosts {
        let elsewhere = || FakeCosts {
            load_time_ms: self.load_time_ms,
            run_time_ms: self.run_time_ms.clone(),
            ..FakeCosts::default()
        };
        self.on.get(kind).cloned().unwrap_or_else(elsewhere)
    }

    /// Fraction of the single-threaded run time that a run with `threads` threads takes.
    fn time_part(&self, threads: u32) -> f64 {
        let part = self.time_by_threads.range(..=threads).next_back().map_or(1.0, |(_, part)| *part);
        if part.is_finite() { part.clamp(0.0, 1.0) } else { 1.0 }
    }
}

impl FakeCosts {
    /// Time of a run: `part_taken` times the declared time.
    fn run_time(&self, batch: u32, part_taken: f64) -> Duration {
        let Some((largest, longest_ms)) = self.run_time_ms.last_key_value() else { return Duration::ZERO };
        let whole = batch / (*largest).max(1);
        let rest = batch % (*largest).max(1);
        let is_part = rest > 0 || batch == 0;
        let part = self.run_time_ms.range(rest..).next().filter(|_| is_part);
        milliseconds(part_taken * (longest_ms * f64::from(whole) + part.map_or(0.0, |(_, time_ms)| *time_ms)))
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
            arrive_time_ms: 0.0,
            run_time_ms: BTreeMap::from([(1, 2.0), (8, 9.5)]),
            time_by_threads: BTreeMap::new(),
            resident_bytes: 7,
            session_bytes: 0,
            on: BTreeMap::from([("fast".to_owned(), FakeCosts::default())]),
            platforms: here(),
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
    fn batch_takes_time_of_next_larger_declared_size() {
        let times = [0, 1, 2, 8, 9, 17].map(|batch| model().costs_on("cpu").run_time(batch, 1.0).as_micros());
        assert_eq!(times, [2_000, 2_000, 9_500, 9_500, 11_500, 21_000]);
        assert_eq!(model().costs_on("fast").run_time(8, 1.0), Duration::ZERO);
    }

    #[test]
    fn threads_scale_run_time_by_declared_fraction() {
        let model =
            FakeModel { time_by_threads: BTreeMap::from([(2, 0.5), (4, f64::NAN), (8, 7.0)]), ..model() };
        assert_eq!([1, 2, 3, 4, 8].map(|threads| model.time_part(threads)), [1.0, 0.5, 0.5, 1.0, 1.0]);
        assert_eq!(model.costs_on("cpu").run_time(1, 0.5), Duration::from_millis(1));
        assert_eq!(FakeCosts::default().run_time(1, 0.5), Duration::ZERO);
    }

    #[test]
    fn outputs_echo_fitting_inputs_and_are_zero_otherwise() {
        let arena = Arena::new(1 << 20);
        let quick = FakeModel { run_time_ms: BTreeMap::new(), ..model() };
        let input =
            Tensor::new(ElementType::Fp32, Shape::new(&[3, 2]).unwrap(), arena.copy_of(&[5; 24]).unwrap())
                .unwrap();
        let job = Job { inputs: vec![input.clone()], outputs: vec![1, 0] };
        let costs = Arc::new(quick.costs_on("cpu"));
        let arrival = Arc::new(Arrival::for_model(&quick));
        let model = Arc::new(quick);
        let loss = Arc::default();
        let mut loaded = Loaded { model, costs, arrival, threads: 1, arena, loss, cold: None };
        let outputs = loaded.run(&job, &Interrupt::default()).unwrap();
        assert_eq!((outputs[0].data().as_ref(), outputs[0].shape().dimensions()), (&[0; 12][..], &[3][..]));
        assert_eq!(outputs[1], input);
    }
}
