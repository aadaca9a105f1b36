//! Checks of the kernel and of the process limits.

use super::Finding;
use rustix::process::{Resource, getrlimit};
use weir_host::{NodeConfig, OpenFiles};

/// Address space that a node reserves for instance memories: slots of 4 GiB with guard regions.
const ADDRESS_SPACE_BYTES: u64 = 16 << 40;

/// Checks for PAGEMAP_SCAN, which makes resetting an instance's memory faster.
pub(super) fn kernel() -> Finding {
    const CHECK: &str = "kernel";
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = format!("Linux {}", release.trim());
    if wasmtime::PoolingAllocationConfig::is_pagemap_scan_available() {
        return Finding::ok(CHECK, format!("{release}, with PAGEMAP_SCAN"));
    }
    Finding::warning(
        CHECK,
        format!("{release}, without PAGEMAP_SCAN"),
        "Linux 6.7 or newer resets an instance's memory faster; some containers forbid the call",
    )
}

/// Checks that terabytes of address space can be reserved.
pub(super) fn address_space() -> Finding {
    const CHECK: &str = "address space";
    if let Some(limit) = getrlimit(Resource::As).current.filter(|limit| *limit < ADDRESS_SPACE_BYTES) {
        return Finding::missing(
            CHECK,
            format!("limited to {}", crate::output::size(limit)),
            "run with `ulimit -v unlimited`: instances reserve address space that they do not use",
        );
    }
    let overcommit = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    if overcommit.trim() == "2" {
        return Finding::missing(
            CHECK,
            "vm.overcommit_memory is 2: reserved address space counts as used memory",
            "run `sysctl vm.overcommit_memory=0`",
        );
    }
    Finding::ok(CHECK, "unlimited")
}

/// Checks the open-file limit against the node's connections and GPUs.
pub(super) fn open_files(node: &NodeConfig) -> Finding {
    const CHECK: &str = "open files";
    let files = with_gpus(OpenFiles::new(node.gateway.connections_max), node);
    match getrlimit(Resource::Nofile).maximum {
        Some(hard) if hard < files.wanted() => {
            Finding::warning(CHECK, format!("at most {hard}"), files.advice())
        }
        hard => Finding::ok(CHECK, hard.map_or_else(|| "unlimited".into(), |hard| format!("up to {hard}"))),
    }
}

/// Adds the files of this machine's GPUs. A node uses all GPUs by default.
#[cfg(feature = "cuda")]
fn with_gpus(files: OpenFiles, node: &NodeConfig) -> OpenFiles {
    use weir_device::cuda::{Devices, Search};
    let devices = Devices::discover(&Search::from_environment()).map_or(0, |devices| devices.infos().len());
    files.with_gpus(devices, node.models.slots)
}

#[cfg(not(feature = "cuda"))]
fn with_gpus(files: OpenFiles, _: &NodeConfig) -> OpenFiles {
    files
}
