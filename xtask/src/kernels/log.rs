//! Kernel resources from the assembler's log.

use anyhow::{Context as _, Result, ensure};
use std::fmt;

/// Resources of a kernel on a multiprocessor.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct KernelUsage {
    pub(super) kernel: String,
    /// Registers per thread.
    pub(super) registers: u32,
    /// Bytes of register spills, stores and loads.
    pub(super) spill_bytes: u32,
    /// Stack bytes per thread.
    pub(super) stack_bytes: u32,
    /// Bytes of static shared memory per block.
    pub(super) shared_bytes: u32,
}

impl KernelUsage {
    /// Sorts by kernel name.
    pub(super) fn sorted(mut usages: Vec<Self>) -> Vec<Self> {
        usages.sort_by(|a, b| a.kernel.cmp(&b.kernel));
        usages
    }

    /// Parses the resources of a kernel in the format of [`fmt::Display`].
    pub(super) fn parse(kernel: &str, figures: &str) -> Result<Self> {
        let numbers = figures.split('/').map(str::parse).collect::<Result<Vec<u32>, _>>()?;
        let [registers, spill_bytes, stack_bytes, shared_bytes] = numbers[..] else {
            anyhow::bail!("{figures:?} is not four numbers");
        };
        Ok(Self { kernel: kernel.to_owned(), registers, spill_bytes, stack_bytes, shared_bytes })
    }
}

impl fmt::Display for KernelUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { registers, spill_bytes, stack_bytes, shared_bytes, .. } = self;
        write!(f, "{registers}/{spill_bytes}/{stack_bytes}/{shared_bytes}")
    }
}

/// Extracts the kernels' resources from `log`. A device function is reported after the kernel that
/// calls it, and its spills count for the kernel.
pub(super) fn usages(log: &str) -> Result<Vec<KernelUsage>> {
    let mut usages: Vec<KernelUsage> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let kernel = rest.split('\'').next().unwrap_or_default().to_owned();
            usages.push(KernelUsage { kernel, ..KernelUsage::default() });
        }
        let Some(usage) = usages.last_mut() else { continue };
        if line.contains(" bytes spill stores") {
            usage.stack_bytes += number_before(line, " bytes stack frame")?;
            usage.spill_bytes +=
                number_before(line, " bytes spill stores")? + number_before(line, " bytes spill loads")?;
        }
        if line.contains(" registers") {
            usage.registers = number_before(line, " registers")?;
            if line.contains(" bytes smem") {
                usage.shared_bytes = number_before(line, " bytes smem")?;
            }
        }
    }
    ensure!(
        usages.iter().all(|usage| usage.registers > 0),
        "the assembler reports a kernel without registers:\n{log}"
    );
    Ok(usages)
}

/// Parses the number before `unit`.
fn number_before(line: &str, unit: &str) -> Result<u32> {
    let before = line.split(unit).next().unwrap_or_default();
    let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    digits.parse().with_context(|| format!("no number before {unit:?} in {line:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'gemm' for 'sm_80'
ptxas info    : Function properties for gemm
    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 96 registers, used 1 barriers, 16 bytes cumulative stack size, 1024 bytes smem, 400 bytes cmem[0]
ptxas info    : Function properties for helper
    0 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Compiling entry function 'fill' for 'sm_80'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers
";

    #[test]
    fn log_reports_registers_spills_stack_and_shared_memory() {
        let gemm = KernelUsage {
            kernel: "gemm".to_owned(),
            registers: 96,
            spill_bytes: 28,
            stack_bytes: 16,
            shared_bytes: 1024,
        };
        let fill = KernelUsage { kernel: "fill".to_owned(), registers: 8, ..KernelUsage::default() };
        let found = usages(LOG).unwrap();
        assert_eq!(found, [gemm.clone(), fill.clone()]);
        assert_eq!(KernelUsage::sorted(found), [fill, gemm.clone()]);
        assert_eq!(KernelUsage::parse("gemm", &gemm.to_string()).unwrap(), gemm);
    }

    #[test]
    fn log_without_numbers_is_rejected() {
        usages("Compiling entry function 'a'\n bytes spill stores\n").unwrap_err();
        usages("Compiling entry function 'a'\n").unwrap_err();
    }
}
