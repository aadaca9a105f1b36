//! Description of the machine for the report.

use anyhow::Result;
use procfs::{CpuInfo, Current as _, Meminfo};

/// One line with processor, cores, memory and kernel.
pub(crate) fn describe() -> Result<String> {
    let cpus = CpuInfo::current()?;
    // Some architectures have no model names.
    let model = cpus.model_name(0).unwrap_or(std::env::consts::ARCH).to_owned();
    let cores = std::thread::available_parallelism()?;
    let memory_gib = Meminfo::current()?.mem_total.div_ceil(1 << 30);
    let virtual_machine = cpus.flags(0).is_some_and(|flags| flags.contains(&"hypervisor"));
    let kind = if virtual_machine { "virtual machine" } else { "machine" };
    let kernel = procfs::sys::kernel::Version::current()?;
    Ok(format!(
        "{kind} with {cores} cores of {model}, {memory_gib} GiB, Linux {}.{}",
        kernel.major, kernel.minor
    ))
}
