//! Checks of the messages of GPU workers with arbitrary bytes, for fuzz targets and for tests without
//! a fuzzer.

#![allow(clippy::expect_used, reason = "a finding is a panic")]

#[path = "../../../fuzz/worker_messages.rs"]
mod worker_messages;

use crate::kernel_graphs::message::{KernelGraphReply, KernelGraphRequest};
use crate::worker::message::{GpuWorkerReply, GpuWorkerRequest};
use worker_messages::messages;

/// Reads or refuses messages in either direction, each with its length in front.
pub fn gpu_worker(bytes: &[u8]) {
    for request in messages::<GpuWorkerRequest>(bytes) {
        let _ = request.files();
    }
    for reply in messages::<GpuWorkerReply>(bytes) {
        let _ = reply.memory();
    }
    messages::<KernelGraphRequest>(bytes);
    messages::<KernelGraphReply>(bytes);
}

#[cfg(test)]
#[path = "../../../fuzz/seeds.rs"]
mod seeds;

#[cfg(test)]
mod tests {
    use super::seeds::{mutated, seeds};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn seeds_are_accepted() {
        for seed in seeds("gpu_worker") {
            gpu_worker(&seed);
            let of_device =
                messages::<GpuWorkerRequest>(&seed).len() + messages::<GpuWorkerReply>(&seed).len();
            let of_graphs =
                messages::<KernelGraphRequest>(&seed).len() + messages::<KernelGraphReply>(&seed).len();
            assert!(of_device + of_graphs > 0, "{}", String::from_utf8_lossy(&seed));
        }
    }

    proptest! {
        #[test]
        fn mutated_messages_are_read_or_refused(bytes in mutated("gpu_worker")) {
            gpu_worker(&bytes);
        }
    }
}
