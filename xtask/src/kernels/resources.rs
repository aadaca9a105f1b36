//! Table of kernel resources per architecture: `kernels/resources.tsv`.

use super::ARCHITECTURES;
use super::log::KernelUsage;
use anyhow::{Context as _, Result, ensure};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

const HEADING: &str = "# Registers of a thread, bytes of them spilled, bytes of its stack, and bytes of static shared memory of a block, as ptxas tells them.
# Made by `cargo xtask kernels`; compared with the launch plans by the tests of weir-kernels.
";

/// Resources by module, kernel and architecture.
#[derive(Debug, Default)]
pub(super) struct ResourceTable(BTreeMap<(String, String), BTreeMap<u32, KernelUsage>>);

impl ResourceTable {
    pub(super) fn read(file: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        Self::parse(&text).with_context(|| format!("{} is not a table of resources", file.display()))
    }

    /// Reads the table, or returns an empty table if the file is missing.
    pub(super) fn read_or_default(file: &Path) -> Result<Self> {
        match std::fs::exists(file) {
            Ok(false) => Ok(Self::default()),
            _ => Self::read(file),
        }
    }

    /// Resources of a module's kernels on an architecture, sorted by kernel.
    pub(super) fn get(&self, module: &str, architecture: u32) -> Vec<KernelUsage> {
        let rows = self.0.iter().filter(|((of, _), _)| of == module);
        rows.filter_map(|(_, figures)| figures.get(&architecture).cloned()).collect()
    }

    pub(super) fn set(&mut self, module: &str, architecture: u32, usages: &[KernelUsage]) {
        for usage in usages {
            let row = self.0.entry((module.to_owned(), usage.kernel.clone())).or_default();
            row.insert(architecture, usage.clone());
        }
    }

    /// Removes the rows of these modules.
    pub(super) fn forget(&mut self, modules: &[String]) {
        self.0.retain(|(module, _), _| !modules.contains(module));
    }

    fn parse(text: &str) -> Result<Self> {
        let mut resources = Self::default();
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        ensure!(lines.next() == Some(&columns()), "the columns are others");
        for line in lines {
            let mut cells = line.split('\t');
            let module = cells.next().unwrap_or_default();
            let kernel = cells.next().unwrap_or_default();
            for (architecture, cell) in ARCHITECTURES.into_iter().zip(cells.by_ref()) {
                if cell != "-" {
                    let usage = KernelUsage::parse(kernel, cell).with_context(|| format!("in {line:?}"))?;
                    resources.set(module, architecture, &[usage]);
                }
            }
            ensure!(cells.next().is_none(), "{line:?} has too many columns");
        }
        Ok(resources)
    }
}

impl fmt::Display for ResourceTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADING}{}", columns())?;
        for ((module, kernel), figures) in &self.0 {
            write!(f, "{module}\t{kernel}")?;
            for architecture in ARCHITECTURES {
                match figures.get(&architecture) {
                    Some(usage) => write!(f, "\t{usage}")?,
                    None => f.write_str("\t-")?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Header row with the names of the columns.
fn columns() -> String {
    let architectures = ARCHITECTURES.map(|number| format!("{}.{}", number / 10, number % 10));
    format!("module\tkernel\t{}", architectures.join("\t"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(kernel: &str, registers: u32) -> KernelUsage {
        KernelUsage {
            kernel: kernel.to_owned(),
            registers,
            spill_bytes: 0,
            stack_bytes: 8,
            shared_bytes: 512,
        }
    }

    #[test]
    fn table_round_trips() {
        let mut resources = ResourceTable::default();
        resources.set("gemm", 90, &[usage("b", 40), usage("a", 32)]);
        resources.set("gemm", 75, &[usage("a", 64)]);
        let text = resources.to_string();
        assert!(text.contains("gemm\ta\t64/0/8/512\t-\t-\t32/0/8/512\t-\t-\n"), "{text}");
        let mut read = ResourceTable::parse(&text).unwrap();
        assert_eq!(read.get("gemm", 90), [usage("a", 32), usage("b", 40)]);
        assert_eq!(read.to_string(), text);
        read.forget(&["gemm".to_owned()]);
        assert!(read.get("gemm", 90).is_empty());
    }

    #[test]
    fn malformed_table_is_rejected() {
        let text = format!("{}\ngemm\ta\t64/0/8\n", columns());
        assert!(ResourceTable::parse(&text).is_err());
        assert!(ResourceTable::parse("module\n").is_err());
    }
}
