//! Checks of the messages of CPU workers with arbitrary bytes, for fuzz targets and for tests without
//! a fuzzer.

#![allow(clippy::expect_used, reason = "a finding is a panic")]

#[path = "../../../../fuzz/worker_messages.rs"]
mod worker_messages;

use super::message::{CpuWorkerReply, CpuWorkerRequest};
use std::fs::File;
use std::sync::LazyLock;
use weir_device::Arena;
use weir_types::ElementType;
use weir_worker::{TensorLocation, read_tensor, tensor_memory, write_memory};
use worker_messages::messages;

/// Bytes of the shared memory of a connection.
const MEMORY_BYTES: u64 = 64;

static MEMORY: LazyLock<File> = LazyLock::new(|| {
    let memory = tensor_memory(MEMORY_BYTES).expect("there is memory for a small file");
    write_memory(&memory, &[7; MEMORY_BYTES as usize], 0).expect("the memory is large enough");
    memory
});

/// Reads or refuses messages in either direction, each with its length in front, and the tensors of
/// which they have the locations.
pub fn cpu_worker(bytes: &[u8]) {
    for request in messages::<CpuWorkerRequest>(bytes) {
        if let CpuWorkerRequest::Run { inputs, .. } = request {
            tensors(&inputs);
        }
    }
    for reply in messages::<CpuWorkerReply>(bytes) {
        if let CpuWorkerReply::Ran { outputs } = reply {
            tensors(&outputs);
        }
    }
}

/// A tensor that is read has the size that its shape requires.
fn tensors(locations: &[TensorLocation]) {
    let arena = Arena::new(1 << 20);
    for location in locations {
        for element_type in ElementType::ALL {
            if let Ok(tensor) = read_tensor(*element_type, location, &MEMORY, &arena) {
                assert!(tensor.shape().check(*element_type, tensor.data()).is_ok());
                assert!(tensor.data().len() as u64 <= MEMORY_BYTES);
            }
        }
    }
}

#[cfg(test)]
#[path = "../../../../fuzz/seeds.rs"]
mod seeds;

#[cfg(test)]
mod tests {
    use super::seeds::{mutated, seeds};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn seeds_are_accepted() {
        for seed in seeds("cpu_worker") {
            cpu_worker(&seed);
            let count = messages::<CpuWorkerRequest>(&seed).len() + messages::<CpuWorkerReply>(&seed).len();
            assert!(count > 0, "{}", String::from_utf8_lossy(&seed));
        }
    }

    proptest! {
        #[test]
        fn mutated_messages_are_read_or_refused(bytes in mutated("cpu_worker")) {
            cpu_worker(&bytes);
        }
    }
}
