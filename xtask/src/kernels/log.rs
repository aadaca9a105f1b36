//! What NVIDIA's assembler says of the kernels that it compiles.

use anyhow::{Context as _, Result};

/// What a kernel takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) kernel: String,
    /// Registers of a thread.
    pub(super) registers: u32,
    /// Bytes of registers that it keeps in memory, for want of more.
    pub(super) spill_bytes: u32,
}

/// The kernels that `log` tells of.
pub(super) fn usages(log: &str) -> Result<Vec<Usage>> {
    let mut usages: Vec<Usage> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let kernel = rest.split('\'').next().unwrap_or_default().to_owned();
            usages.push(Usage { kernel, registers: 0, spill_bytes: 0 });
        }
        let Some(last) = usages.last_mut() else { continue };
        if line.contains("bytes spill") {
            last.spill_bytes =
                number_before(line, " bytes spill stores")? + number_before(line, " bytes spill loads")?;
        }
        if line.contains(" registers") {
            last.registers = number_before(line, " registers")?;
        }
    }
    Ok(usages)
}

/// The number that stands before `unit`.
fn number_before(line: &str, unit: &str) -> Result<u32> {
    let before = line.split(unit).next().unwrap_or_default();
    let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    digits.parse().with_context(|| format!("no number before {unit:?} in {line:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_and_spills_are_found() {
        let log = "ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'gemm' for 'sm_80'
ptxas info    : Function properties for gemm
    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 96 registers, 1024 bytes smem, 400 bytes cmem[0]
";
        assert_eq!(
            usages(log).unwrap(),
            [Usage { kernel: "gemm".to_owned(), registers: 96, spill_bytes: 20 }]
        );
        usages("Compiling entry function 'a'\n bytes spill stores\n").unwrap_err();
    }
}
