//! Metering of runs: every run reaches its device through this session, whatever its purpose.

use crate::backend::Session;
use crate::error::InferenceError;
use crate::interrupt::Interrupt;
use crate::meter::{Meter, charge, start};
use crate::request::{Job, PlacedJob};
use crate::tensor::Tensor;
use crate::value::Value;
use std::time::{Duration, Instant};
use weir_device::Device;
use weir_types::Precision;

/// A session whose runs are charged to `bearers` by their items, including failed and stopped runs.
pub(super) struct MeteredSession<'a> {
    pub(super) session: &'a mut dyn Session,
    pub(super) device: Device,
    pub(super) bearers: &'a [(&'a Meter, u32)],
}

impl Session for MeteredSession<'_> {
    fn run(&mut self, job: &Job, interrupt: &Interrupt) -> Result<Vec<Tensor>, InferenceError> {
        self.charged(|session| session.run(job, interrupt))
    }

    fn run_placed(&mut self, job: &PlacedJob, interrupt: &Interrupt) -> Result<Vec<Value>, InferenceError> {
        let outputs = self.charged(|session| session.run_placed(job, interrupt))?;
        // A run outside of a batch has one bearer.
        for (tensor, (meter, _)) in outputs.iter().filter_map(Value::device).zip(self.bearers.iter().cycle())
        {
            tensor.charge(self.device, meter);
        }
        Ok(outputs)
    }

    fn device_time(&self) -> Option<Duration> {
        self.session.device_time()
    }

    fn was_cold(&self) -> bool {
        self.session.was_cold()
    }

    fn precision(&self) -> Precision {
        self.session.precision()
    }
}

impl MeteredSession<'_> {
    fn charged<T>(
        &mut self,
        run: impl FnOnce(&mut dyn Session) -> Result<T, InferenceError>,
    ) -> Result<T, InferenceError> {
        start(self.bearers);
        let started = Instant::now();
        let outcome = run(self.session);
        let elapsed = started.elapsed();
        // The device may not have measured a failed run.
        let time = if outcome.is_ok() { self.session.device_time().unwrap_or(elapsed) } else { elapsed };
        charge(self.device, time, self.bearers);
        outcome
    }
}
