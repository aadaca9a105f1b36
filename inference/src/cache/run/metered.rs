//! The one place that runs go through on their way to a device, whatever they are for: where their time is counted.

use crate::backend::Session;
use crate::error::InferenceError;
use crate::interrupt::Interrupt;
use crate::meter::{Meter, charge};
use crate::request::Job;
use crate::tensor::Tensor;
use std::time::{Duration, Instant};
use weir_device::Device;

/// A session whose runs are charged, also those that fail or are stopped, to `bearers` by their items.
pub(super) struct Metered<'a> {
    pub(super) session: &'a mut dyn Session,
    pub(super) device: Device,
    pub(super) bearers: &'a [(&'a Meter, u32)],
}

impl Session for Metered<'_> {
    fn run(&mut self, job: &Job, interrupt: &Interrupt) -> Result<Vec<Tensor>, InferenceError> {
        let started = Instant::now();
        let outcome = self.session.run(job, interrupt);
        let elapsed = started.elapsed();
        // Of one that failed, the device may know nothing.
        let time = if outcome.is_ok() { self.session.device_time().unwrap_or(elapsed) } else { elapsed };
        charge(self.device, time, self.bearers);
        outcome
    }

    fn device_time(&self) -> Option<Duration> {
        self.session.device_time()
    }

    fn was_cold(&self) -> bool {
        self.session.was_cold()
    }
}
