//! Hedged steps: a second copy of a step that takes unusually long. The first success wins, and the
//! other copy is dropped.
//!
//! The second copy runs on another node that has the models in memory, or else on another local
//! device that has them, or else on the device of the first copy. No scheduler places it, because
//! it uses only loaded models, and [`Hedge`] bounds the number of copies.

use super::super::Dispatch;
use super::steps::{NamedTensors, Steps, handles};
use crate::dispatch::remote::EncodedInference;
use axum::body::Body;
use bytes::Bytes;
use futures::future::{Either, select};
use std::pin::pin;
use std::time::Instant;
use weir_call::Fault;
use weir_call::next_invocation_id;
use weir_call::until;
use weir_cluster::{Cluster, GRACE, LocalPlacement, RemotePlacement};
use weir_cluster::{ForwardGrant, ForwardedCall};
use weir_control::models::ModelEntry;
use weir_control::workflows::{Hedge, StepTarget};
use weir_inference::Health;
use weir_telemetry::SpanKind;
use weir_types::{ErrorCode, ModelId};
use weir_workflow::Pinned;

impl Steps {
    /// Runs a step, and starts a second copy if the first takes longer than usual.
    pub(super) async fn run_hedged(
        &self,
        hedge: &Hedge,
        pinned: &Pinned,
        inputs: NamedTensors,
        outputs: Vec<String>,
    ) -> Result<NamedTensors, Fault> {
        let began = Instant::now();
        let due_after = hedge.begin();
        let measured = |given: Result<NamedTensors, Fault>| {
            if given.is_ok() {
                hedge.ran(began.elapsed());
            }
            given
        };
        let Some(due_after) = due_after else {
            return measured(self.run_pinned(pinned, inputs, outputs).await);
        };
        let mut first = pin!(self.run_pinned(pinned, inputs.clone(), outputs.clone()));
        match tokio::time::timeout(due_after, &mut first).await {
            Ok(given) => return measured(given),
            Err(_) if !hedge.start() => return measured(first.await),
            Err(_) => {}
        }
        let second = pin!(self.second_copy(pinned, inputs, outputs));
        match select(first, second).await {
            Either::Left((Ok(given), _)) => measured(Ok(given)),
            // The second copy may succeed where the first failed; if it fails too, the first fault
            // is reported.
            Either::Left((Err(fault), second)) => match second.await {
                Ok(given) => {
                    hedge.won();
                    Ok(given)
                }
                Err(_) => Err(fault),
            },
            Either::Right((Ok(given), _)) => {
                hedge.won();
                // The first copy's full duration is unknown. The measured time is a lower bound,
                // and longer than most runs, so it still counts as a long run.
                measured(Ok(given))
            }
            Either::Right((Err(_), first)) => measured(first.await),
        }
    }

    async fn second_copy(
        &self,
        pinned: &Pinned,
        inputs: NamedTensors,
        outputs: Vec<String>,
    ) -> Result<NamedTensors, Fault> {
        let found = self.found(pinned)?;
        if let Some(cluster) = &self.dispatch.cluster
            && let Some(remote) = cluster.holder_of(&self.models_of(&found))
        {
            let elsewhere = self.ask(cluster, &remote, pinned, (&inputs, &outputs)).await;
            match elsewhere {
                Ok(given) => return Ok(given),
                Err(fault) => {
                    tracing::debug!(
                        node = &*remote.address,
                        why = fault.text,
                        "hedged copy of a step failed"
                    );
                }
            }
        }
        match &found {
            StepTarget::Model(entry) => match self.other_placement(entry) {
                Some(placement) => Self { placement, ..self.clone() }.model(entry, inputs, outputs).await,
                None => self.model(entry, inputs, outputs).await,
            },
            StepTarget::Function(_) | StepTarget::Workflow(_) => {
                self.run_pinned(pinned, inputs, outputs).await
            }
        }
    }

    /// The models that must be resident for the copy to run at once.
    fn models_of(&self, found: &StepTarget) -> Vec<ModelId> {
        let catalog = &self.dispatch.catalog;
        let demands = match found {
            StepTarget::Model(entry) => return vec![entry.source.id().clone()],
            StepTarget::Function(deployment) => catalog.granted(deployment, self.models.as_deref()),
            StepTarget::Workflow(workflow) => catalog.demands(workflow, self.models.as_deref()),
        };
        demands.into_iter().map(|demand| demand.model).collect()
    }

    /// Another device of this node that has the model in memory: the one with the shortest queue.
    fn other_placement(&self, entry: &ModelEntry) -> Option<LocalPlacement> {
        let Dispatch { models, placements, .. } = &*self.dispatch;
        let others = models.devices_of(entry).into_iter().filter(|device| {
            Some(device.ordinal) != self.placement.device
                && device.health() == Health::Up
                && device.cache.is_resident(&entry.source.key)
        });
        let device = others.min_by_key(|device| device.cache.queue_len())?.ordinal;
        placements.grant_beside(self.placement.invocation, device, entry.source.id().clone());
        Some(LocalPlacement { device: Some(device), ..self.placement })
    }

    /// Runs the copy on another node, as a stand-alone inference.
    async fn ask(
        &self,
        cluster: &Cluster,
        remote: &RemotePlacement,
        pinned: &Pinned,
        (inputs, outputs): (&NamedTensors, &[String]),
    ) -> Result<NamedTensors, Fault> {
        let Dispatch { arena, intermediates, .. } = &*self.dispatch;
        let what = (&pinned.name, pinned.version);
        let written = EncodedInference::new(
            &arena.tenant(&self.tenant),
            what,
            self.priority,
            &handles(inputs.clone()),
            (Some(outputs), &[]),
        )?;
        let left = self.deadline.saturating_duration_since(Instant::now());
        let grant = ForwardGrant {
            invocation: next_invocation_id(),
            tenant: self.tenant.clone(),
            version: pinned.version,
            deadline_in_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
            left_for_ms: 0,
            is_step: true,
            chosen: self.models.as_ref().map(|models| models.chosen()).unwrap_or_default(),
            is_websocket: false,
            granted: remote.granted.clone(),
        };
        let body = Body::from(Bytes::from(written.body()));
        let latest = self.deadline + GRACE;
        let span = self.trace.child(SpanKind::Client, || "forward".into());
        let call = ForwardedCall { span: Some(&span), ..written.call() };
        let Some(forwarded) = until(latest, cluster.forward(remote, &grant, &call, body, (), latest)).await
        else {
            let text = format!("the node at {} did not answer in time", remote.address);
            return Err(Fault::new(ErrorCode::DeadlineExceeded, text));
        };
        let response = forwarded.map_err(|error| Fault::new(ErrorCode::NodeLost, error.to_string()))?;
        let read = EncodedInference::read(intermediates, &self.tenant, response, arena.bytes_max()).await?;
        Ok(read.completion.outputs)
    }
}
