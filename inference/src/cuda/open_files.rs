//! How many files a GPU takes, in the node and in the processes that hold it: what their limits have to allow.

use super::worker::{CONNECTIONS_BESIDE, FILES_MAX};

/// Files of a process beside what is counted here: standard streams, its libraries, the clock's and the runtime's.
const PROCESS_FILES: u64 = 32;

/// Files that the driver opens in a process that holds a device: control devices, events, and memory that it shares with itself. Processes with CUDA are seen
/// with 40 to 100.
const DRIVER_FILES: u64 = 128;

/// Files that the driver opens for each device that it sees, whether the process holds that or not.
const DRIVER_FILES_PER_DEVICE: u64 = 16;

/// Files of a worker as the node has them: its control socket, twice, and the arena.
const WORKER_FILES: u64 = 3;

/// Files of a connection, as the node has them: its socket, the memory for tensors, and what wakes a waiting thread; and as the worker does: the first two, and
/// the arena.
const CONNECTION_FILES: u64 = 3;

/// Files of weights that a worker has open at once: they are read and checked by some threads, and closed again.
const WEIGHTS_FILES: u64 = 64;

/// Workers for kernel graphs that a device has at once, as far as files are concerned: one for each tenant with such graphs there.
const KERNEL_GRAPH_WORKERS: u64 = 16;
/// Files of each, as the node has them: its socket, and the memory for tensors.
const KERNEL_GRAPH_WORKER_FILES: u64 = 2;

/// The files that GPUs take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuFiles {
    /// For all of them together, in the node.
    pub node: u64,
    /// In the worker of each.
    pub worker: u64,
}

impl GpuFiles {
    /// For so many devices with so many runs at once on each.
    #[must_use]
    pub fn new(devices: u64, slots: u64) -> Self {
        let connections = slots.saturating_add(CONNECTIONS_BESIDE as u64).saturating_mul(CONNECTION_FILES);
        let of_kernel_graphs = KERNEL_GRAPH_WORKERS * KERNEL_GRAPH_WORKER_FILES;
        // Blocks of other devices' memory go through the node.
        let device = WORKER_FILES + FILES_MAX as u64 + DRIVER_FILES_PER_DEVICE + of_kernel_graphs;
        // They come from any of the others, and go there.
        let siblings = devices.saturating_mul(FILES_MAX as u64 + DRIVER_FILES_PER_DEVICE);
        Self {
            node: devices.saturating_mul(device.saturating_add(connections)),
            worker: (PROCESS_FILES + DRIVER_FILES + WEIGHTS_FILES)
                .saturating_add(connections)
                .saturating_add(siblings),
        }
    }
}

/// Files that a worker for kernel graphs may have open at once, whatever its kernels have the driver do.
pub(super) fn kernel_graph_worker_files(devices: u64) -> u64 {
    (PROCESS_FILES + DRIVER_FILES).saturating_add(devices.saturating_mul(DRIVER_FILES_PER_DEVICE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_devices_fit_common_hard_limits() {
        assert_eq!(GpuFiles::new(0, 4).node, 0);
        let GpuFiles { node, worker } = GpuFiles::new(8, 4);
        // The hard limit of systems that set a low one.
        assert!((1_024..4_096).contains(&node) && worker < 4_096, "{node} and {worker}");
    }
}
