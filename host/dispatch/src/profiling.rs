//! Profiles a model with different numbers of threads, batch sizes and concurrent runs.
//!
//! A client requests a profile and receives an event for each measured configuration. Profiling
//! ends with the last configuration, after [`TIME_MAX`], when the client disconnects, or with the
//! node. The measurements are stored in the model's profile at the end. Measured runs wait in the
//! device's queue like all others, and the node profiles one model at a time.

mod measure;
mod plan;

pub use plan::{Configuration, ProfilingPlan, ProfilingPlanError, ProfilingResources};

use crate::dispatch::ReadyModel;
use measure::measure;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use weir_call::until;
use weir_control::models::{ModelEntry, Models};
use weir_device::Arena;
use weir_inference::{GeneratedInputs, InferenceError, InputsError};
use weir_types::api::ProfileEvent;
use weir_types::{ErrorCode, Measured};

/// The time limit for profiling a model, including waits for the device.
pub const TIME_MAX: Duration = Duration::from_secs(600);

/// A model to measure, pinned in the device's memory.
pub struct Profiling {
    /// The node's models, which store the profile.
    pub models: Arc<Models>,
    /// The version of the model to measure.
    pub entry: Arc<ModelEntry>,
    /// The memory for the inputs.
    pub arena: Arena,
    /// The configurations to measure.
    pub plan: ProfilingPlan,
    /// The inputs of the measured runs.
    pub inputs: Arc<GeneratedInputs>,
    /// The pinned model, with its placement.
    pub ready: ReadyModel,
    /// The time at which profiling ends at the latest.
    pub latest: Instant,
    /// The node's only permit for profiling.
    pub place: OwnedSemaphorePermit,
}

impl Profiling {
    /// Measures and sends progress to `events`. Dropping the future aborts this and stores nothing.
    pub async fn run(self, events: mpsc::Sender<ProfileEvent>) {
        let device = self.ready.device().name.as_ref().to_owned();
        let plan = &self.plan;
        let started = ProfileEvent::Started {
            version: self.entry.record.version,
            device,
            configurations: plan.configurations.len(),
            left_out: plan.left_out,
            duration_ms: u64::try_from(plan.duration.as_millis()).unwrap_or(u64::MAX),
        };
        // A failure means that the client has disconnected, so this future is about to be dropped.
        let _ = events.send(started).await;
        let last = match self.measure_all(&events).await {
            Ok((measured, incomplete)) => {
                let count = measured.len();
                self.ready.pin().set_measured(measured);
                self.models.save_profiles().await;
                ProfileEvent::Done { measured: count, incomplete }
            }
            Err((code, error)) => ProfileEvent::Failed { error, code },
        };
        // Released first, so that a client that receives the last event can start another profile.
        let Self { ready, place, .. } = self;
        drop((ready, place));
        let _ = events.send(last).await;
    }

    async fn measure_all(
        &self,
        events: &mpsc::Sender<ProfileEvent>,
    ) -> Result<(Vec<Measured>, Option<String>), (ErrorCode, String)> {
        let mut measured = Vec::with_capacity(self.plan.configurations.len());
        let mut too_slow: Option<Configuration> = None;
        let mut last_error = None;
        for configuration in &self.plan.configurations {
            let skipped = |why: String| {
                let Configuration { threads, batch, concurrency } = *configuration;
                ProfileEvent::Skipped { threads, batch, concurrency, why }
            };
            if let Some(smaller) = too_slow.filter(|smaller| configuration.is_larger_batch_than(smaller)) {
                let why = format!("a batch of {} misses the SLO already", smaller.batch);
                let _ = events.send(skipped(why)).await;
                continue;
            }
            let event = match until(self.latest, self.measure(configuration)).await {
                None => {
                    let why = format!("profiling reached its limit of {} s", TIME_MAX.as_secs());
                    return if measured.is_empty() {
                        Err((ErrorCode::DeadlineExceeded, format!("{why} before the first measurement")))
                    } else {
                        Ok((measured, Some(why)))
                    };
                }
                Some(Ok(one)) => {
                    if self.plan.is_missed_by(&one) {
                        too_slow = Some(*configuration);
                    }
                    measured.push(one);
                    ProfileEvent::Measured { measured: one }
                }
                Some(Err(
                    error @ (InferenceError::DeviceLost(_)
                    | InferenceError::DeviceLostInUse(_)
                    | InferenceError::Unavailable(_)
                    | InferenceError::Cancelled),
                )) => {
                    return Err((error.code(), error.to_string()));
                }
                // For example, such a batch may need more memory than there is.
                Some(Err(error)) => {
                    last_error = Some(error.to_string());
                    skipped(error.to_string())
                }
            };
            let _ = events.send(event).await;
        }
        match last_error {
            Some(error) if measured.is_empty() => Err((ErrorCode::ModelError, error)),
            _ => Ok((measured, None)),
        }
    }

    async fn measure(&self, configuration: &Configuration) -> Result<Measured, InferenceError> {
        let inputs = self.inputs.clone();
        let arena = self.arena.clone();
        let batch = configuration.batch;
        let made = tokio::task::spawn_blocking(move || inputs.make(batch, &arena)).await;
        let stopping = |_| InferenceError::Unavailable("the node is shutting down".into());
        let inputs = made.map_err(stopping)?.map_err(|error| match error {
            InputsError::Memory(error) => InferenceError::OutOfMemory(error),
            other => InferenceError::Refused(other.to_string().into()),
        })?;
        measure(self.ready.pin(), inputs, configuration, self.plan.duration, self.latest).await
    }
}
