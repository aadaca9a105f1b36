//! The limit on open files: computes the node's demand and raises the limit to it.

use anyhow::{Context, bail};
use weir_child::raise_open_files;

/// Open files other than connections and GPUs: blobs, artefacts, the registry, logs, other nodes,
/// the runtime.
const NODE_FILES: u64 = 1_000;

/// The minimum of open files that a node needs under any load.
const NODE_FILES_MIN: u64 = 128;

/// The maximum number of files that a node opens at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenFiles {
    connections: u64,
    gpus: u64,
    /// The demand of a GPU's worker process, which inherits the node's limit.
    worker: u64,
    devices: u64,
}

impl OpenFiles {
    /// The demand of a node with this many connections.
    #[must_use]
    pub fn new(connections_max: usize) -> Self {
        Self { connections: connections_max as u64, gpus: 0, worker: 0, devices: 0 }
    }

    /// Adds GPUs. `slots` is the number of concurrent runs on each; `None`: the default.
    #[cfg(feature = "cuda")]
    #[must_use]
    pub fn with_gpus(self, devices: usize, slots: Option<u32>) -> Self {
        let devices = devices as u64;
        let files = weir_cuda::GpuFiles::new(devices, slots.unwrap_or(super::devices::GPU_SLOTS).into());
        Self { gpus: files.node, worker: if devices == 0 { 0 } else { files.worker }, devices, ..self }
    }

    /// The limit that covers the whole demand.
    #[must_use]
    pub fn wanted(&self) -> u64 {
        self.connections.saturating_add(NODE_FILES).saturating_add(self.gpus).max(self.worker)
    }

    /// Advice for the case that the limit is lower.
    #[must_use]
    pub fn advice(&self) -> String {
        let wanted = self.wanted();
        let devices = self.devices;
        let gpus = if devices == 0 { String::new() } else { format!(" or use fewer than {devices} GPUs") };
        format!(
            "raise the hard limit to {wanted} (`ulimit -Hn {wanted}`, or LimitNOFILE= of the service), or lower gateway.connections_max{gpus}"
        )
    }

    /// Raises the limit of this process and its workers up to the hard limit. Returns the limit.
    pub(super) fn raise(&self) -> anyhow::Result<u64> {
        raise_open_files(self.wanted()).context("cannot raise the limit on open files")
    }

    /// Raises the limit once the GPUs are known. Warns if the limit does not cover all connections
    /// and devices; fails if it does not cover the devices.
    pub(super) fn require(&self) -> anyhow::Result<()> {
        let files = self.raise()?;
        let Self { devices, .. } = self;
        if files < self.gpus.saturating_add(NODE_FILES_MIN).max(self.worker) {
            bail!("{files} open files, the hard limit, are too few for {devices} GPUs: {}", self.advice());
        }
        if files < self.wanted() {
            let wanted = self.wanted();
            let advice = self.advice();
            tracing::warn!(
                files,
                wanted,
                "the hard limit on open files is too low for gateway.connections_max: {advice}"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_covers_connections() {
        let files = OpenFiles::new(10_000);
        assert_eq!(files.wanted(), 11_000);
        assert!(files.advice().contains("`ulimit -Hn 11000`") && !files.advice().contains("GPU"));
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn limit_covers_gpus_and_their_workers() {
        let files = OpenFiles::new(100).with_gpus(8, Some(4));
        assert!(files.wanted() > 1_100 + 8 * 100, "{files:?}");
        assert!(files.wanted() >= files.worker && files.advice().contains("8 GPUs"), "{}", files.advice());
        assert_eq!(OpenFiles::new(100).with_gpus(0, None), OpenFiles::new(100));
    }
}
