//! Checks of each stage. Each module lists its cases and runs them.

mod cases;

mod chains;
mod environment;
mod functions;
mod handing_over;
mod kernel_graphs;
mod launches;
mod memory;
mod network;
mod operations;
mod transfers;
mod worker;

#[cfg(test)]
mod tests;

use crate::bench::Bench;
use crate::config::{CheckConfig, CheckFailure};
use crate::progress::{Reporter, StageProgress};
use crate::stage::Stage;
use weir_device::cuda::Devices;

/// Runs the selected cases of one stage, and reports their progress. Blocks.
///
/// A device fault ends the stage with an error. The process cannot use the device afterwards.
pub fn check(
    devices: &Devices,
    config: &CheckConfig,
    stage: Stage,
    tell: &mut dyn FnMut(StageProgress),
) -> Result<(), CheckFailure> {
    let report = &mut Reporter::new(stage, &config.selection, tell);
    // In these stages, only the worker processes open the device.
    match stage {
        Stage::Environment => return environment::check(devices, config, report),
        Stage::Worker => return worker::check(devices, config, report),
        Stage::KernelGraphs => return kernel_graphs::check(devices, config, report),
        _ => {}
    }
    let bench = Bench::open(devices, config, stage)?;
    match stage {
        Stage::Environment | Stage::Worker | Stage::KernelGraphs => Ok(()),
        Stage::Operations => operations::check(&bench, report),
        Stage::Transfers => transfers::check(&bench, report),
        Stage::Launches => launches::check(&bench, report),
        Stage::Memory => memory::check(&bench, report),
        Stage::HandingOver => handing_over::check(&bench, report),
        Stage::Networks => network::check(&bench, report),
        Stage::Functions => functions::check(&bench, report),
    }
}

impl Stage {
    /// Returns the names of the stage's cases in execution order, without opening a device. A case
    /// may be skipped at run time, such as a case of a library that is not installed.
    #[must_use]
    pub fn cases(self, config: &CheckConfig) -> Vec<String> {
        match self {
            Self::Environment => Vec::new(),
            Self::Operations => chains::cases().into_iter().chain(operations::cases()).collect(),
            Self::Transfers => transfers::cases(),
            Self::Launches => launches::cases(),
            Self::Memory => memory::cases(),
            Self::HandingOver => handing_over::cases(),
            Self::Networks => network::cases(config),
            Self::Functions => functions::cases(config),
            Self::Worker => worker::cases(config),
            Self::KernelGraphs => kernel_graphs::cases(),
        }
    }
}
