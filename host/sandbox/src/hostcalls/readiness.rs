//! Implements `weir:inference/readiness`.

use super::InferenceView;
use super::bindings::weir::inference::readiness::Host;
use super::models::GuestRun;
use wasmtime::component::Resource;
use wasmtime_wasi::p2::{DynPollable, Pollable, subscribe};

impl Host for InferenceView<'_> {
    fn subscribe(&mut self, pending: Resource<GuestRun>) -> wasmtime::Result<Resource<DynPollable>> {
        subscribe(self.table, pending)
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for GuestRun {
    async fn ready(&mut self) {
        // The outcome stays for `wait`.
        let _ = self.run.clone().await;
    }
}
