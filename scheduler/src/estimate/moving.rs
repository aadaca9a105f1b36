//! Transfer times of inputs between nodes.

use super::round_ns;
use crate::InputsOn;
use serde::{Deserialize, Serialize};
use weir_types::NodeId;

/// Inter-node bandwidth and latency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Network {
    /// Bytes that a node receives per second.
    pub bytes_per_second: u64,
    /// Time from a request to another node to the first byte of the response.
    pub round_trip_ns: u64,
}

impl Default for Network {
    /// A 10 Gbit/s network, at the throughput of HTTP.
    fn default() -> Self {
        Self { bytes_per_second: 1_000_000_000, round_trip_ns: 500_000 }
    }
}

impl Network {
    /// Time to move these inputs to `node`; 0 if all of them are on `node`.
    #[must_use]
    pub fn move_time_ns(&self, inputs: &[InputsOn], node: NodeId) -> u64 {
        let elsewhere = inputs.iter().filter(|input| input.node != node).map(|input| input.bytes);
        let bytes = elsewhere.fold(0, u64::saturating_add);
        if bytes == 0 {
            return 0;
        }
        let per_second = self.bytes_per_second.max(1) as f64;
        self.round_trip_ns.saturating_add(round_ns(bytes as f64 * 1e9 / per_second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_inputs_take_no_move_time() {
        let network = Network { bytes_per_second: 2_000_000_000, round_trip_ns: 1_000 };
        let on = |node, bytes| InputsOn { node: NodeId(node), bytes };
        let time = |inputs: &[InputsOn]| network.move_time_ns(inputs, NodeId(1));
        assert_eq!(time(&[]), 0);
        assert_eq!(time(&[on(1, 4_000), on(2, 0)]), 0);
        assert_eq!(time(&[on(1, 4_000), on(2, 4_000), on(3, 2_000)]), 1_000 + 3_000);
        assert_eq!(time(&[on(2, u64::MAX), on(3, u64::MAX)]), 1_000 + 9_223_372_036_854_775_808);
        let broken = Network { bytes_per_second: 0, ..network };
        assert_eq!(broken.move_time_ns(&[on(2, u64::MAX)], NodeId(1)), u64::MAX);
    }
}
