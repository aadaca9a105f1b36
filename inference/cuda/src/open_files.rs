//! Number of open files that GPUs need, in the node and in the worker processes. Resource limits
//! must allow these numbers.

use crate::worker::{CONNECTIONS_BESIDE, FILES_MAX};

/// Files of a process that are not listed below: standard streams, libraries, and the clock's and
/// runtime's files.
const PROCESS_FILES: u64 = 32;

/// Files that the driver opens in a process that owns a device: control devices, events and shared
/// memory. CUDA processes have been observed with 40 to 100 files.
const DRIVER_FILES: u64 = 128;

/// Files that the driver opens for each visible device, even if the process does not use the
/// device.
const DRIVER_FILES_PER_DEVICE: u64 = 16;

/// Files of a worker in the node: its control socket, twice, and the arena.
const WORKER_FILES: u64 = 3;

/// Files of a connection. In the node: its socket, the memory for tensors, and the file that wakes
/// a waiting thread. In the worker: its socket, the memory for tensors, and the arena.
const CONNECTION_FILES: u64 = 3;

/// Maximum number of weight files that a worker has open concurrently. Several threads read and
/// verify the files, and close them afterwards.
const WEIGHTS_FILES: u64 = 64;

/// Number of concurrent kernel-graph workers of a device that the limit allows for: one per tenant
/// with kernel graphs on the device.
const KERNEL_GRAPH_WORKERS: u64 = 16;
/// Files of a kernel-graph worker in the node: its socket, and the memory for tensors.
const KERNEL_GRAPH_WORKER_FILES: u64 = 2;

/// Numbers of open files that GPUs need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuFiles {
    /// Files of all devices in the node.
    pub node: u64,
    /// Files in the worker of each device.
    pub worker: u64,
}

impl GpuFiles {
    /// Computes the numbers for `devices` devices with `slots` concurrent runs each.
    #[must_use]
    pub fn new(devices: u64, slots: u64) -> Self {
        let connections = slots.saturating_add(CONNECTIONS_BESIDE as u64).saturating_mul(CONNECTION_FILES);
        let of_kernel_graphs = KERNEL_GRAPH_WORKERS * KERNEL_GRAPH_WORKER_FILES;
        // Memory blocks exported between devices pass through the node.
        let device = WORKER_FILES + FILES_MAX as u64 + DRIVER_FILES_PER_DEVICE + of_kernel_graphs;
        // Exported blocks can come from, and go to, every other device.
        let siblings = devices.saturating_mul(FILES_MAX as u64 + DRIVER_FILES_PER_DEVICE);
        Self {
            node: devices.saturating_mul(device.saturating_add(connections)),
            worker: (PROCESS_FILES + DRIVER_FILES + WEIGHTS_FILES)
                .saturating_add(connections)
                .saturating_add(siblings),
        }
    }
}

/// Maximum number of open files of a kernel-graph worker, which bounds the files that its kernels
/// can make the driver open.
pub(crate) fn kernel_graph_worker_files(devices: u64) -> u64 {
    (PROCESS_FILES + DRIVER_FILES).saturating_add(devices.saturating_mul(DRIVER_FILES_PER_DEVICE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_devices_fit_common_hard_limits() {
        assert_eq!(GpuFiles::new(0, 4).node, 0);
        let GpuFiles { node, worker } = GpuFiles::new(8, 4);
        // The hard limit on systems with a low default.
        assert!((1_024..4_096).contains(&node) && worker < 4_096, "{node} and {worker}");
    }
}
