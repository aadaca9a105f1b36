//! Other nodes that could run a call at once, according to their reports.

use super::Cluster;
use crate::placement::RemotePlacement;
use crate::wire::Granted;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use weir_types::ModelId;
use weir_types::Ordinal;

impl Cluster {
    /// The least busy of the other nodes that have all of these models in the memory of one device;
    /// any node if there are no models. A call sent there loads and evicts nothing, so no scheduler
    /// is asked.
    pub fn holder_of(&self, models: &[ModelId]) -> Option<RemotePlacement> {
        let view = self.view.borrow();
        let reports = self.reports.read();
        let others = view.nodes.iter().filter(|(node, _)| **node != self.node);
        let places = others.filter_map(|(node, member)| {
            let report = reports.get(node)?;
            let (waiting, device) = if models.is_empty() {
                (0, None)
            } else {
                let devices = (0..).zip(&report.devices).filter(|(_, device)| device.holds(models));
                let (ordinal, device) = devices.min_by_key(|(_, device)| device.runs_waiting)?;
                (device.runs_waiting, Some(ordinal))
            };
            Some((report.queued + waiting, report.running, device, &member.address))
        });
        let (_, _, device, address) = places.min_by_key(|(waiting, running, ..)| (*waiting, *running))?;
        Some(away(address, device, models))
    }
}

fn away(address: &str, device: Option<Ordinal>, models: &[ModelId]) -> RemotePlacement {
    let granted = Granted {
        device,
        models: models.to_vec(),
        evict: Vec::new(),
        origin: None,
        estimate_ns: None,
        is_fallback: false,
    };
    // Never cancelled: the loss of the node is not tracked, because the sender does not wait for
    // this call alone.
    RemotePlacement {
        address: address.into(),
        granted,
        lost: CancellationToken::new(),
        progress: Arc::default(),
    }
}
