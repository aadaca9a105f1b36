//! Record of the compiled kernels: `kernels/compiled.tsv`.
//!
//! The record has the digest of what each file was compiled from and the digest of the file. A
//! change of a source is found by its digest, without a compiler.

use anyhow::{Context as _, Result, bail, ensure};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

const HEADING: &str = "# SHA-256 of the inputs (sources and compiler, or PTX and assembler) and of the output of each compiled file.
# Made by `cargo xtask kernels`; `cargo xtask test` compares it with the files.
file\tinputs\toutput
";

/// Digests by file, relative to `kernels/`.
#[derive(Debug, Default, PartialEq)]
pub(super) struct CompilationRecord(BTreeMap<String, Digests>);

/// Digests of a compilation, in hexadecimal digits.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Digests {
    pub(super) inputs: String,
    pub(super) output: String,
}

/// Digest of a list of texts or files. Equal lists have equal digests; the limits between the
/// parts count.
pub(super) fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    format!("{:x}", hasher.finalize())
}

impl CompilationRecord {
    pub(super) fn read(file: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        Self::parse(&text).with_context(|| format!("{} is not a record of compilations", file.display()))
    }

    /// Reads the record, or returns an empty record if the file is missing.
    pub(super) fn read_or_default(file: &Path) -> Result<Self> {
        match std::fs::exists(file) {
            Ok(false) => Ok(Self::default()),
            _ => Self::read(file),
        }
    }

    pub(super) fn set(&mut self, file: String, digests: Digests) {
        self.0.insert(file, digests);
    }

    /// Keeps only the rows of files that satisfy `is_kept`.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.0.retain(|file, _| is_kept(file));
    }

    /// Fails unless `file` has this output and was compiled from these inputs.
    pub(super) fn check(&self, file: &str, found: &Digests) -> Result<()> {
        let advice = "run `cargo xtask kernels`";
        match self.0.get(file) {
            None => bail!("kernels/compiled.tsv does not list kernels/{file}: {advice}"),
            Some(recorded) if recorded.inputs != found.inputs => {
                bail!("kernels/{file} was compiled from other sources or by another compiler: {advice}")
            }
            Some(recorded) if recorded.output != found.output => {
                bail!(
                    "kernels/{file} or its rows in kernels/resources.tsv changed after compilation: {advice}"
                )
            }
            Some(_) => Ok(()),
        }
    }

    fn parse(text: &str) -> Result<Self> {
        let rows = text.strip_prefix(HEADING).context("the heading is another")?;
        let mut record = Self::default();
        for row in rows.lines() {
            let cells: Vec<&str> = row.split('\t').collect();
            let [file, inputs, output] = cells[..] else { bail!("{row:?} does not have three columns") };
            let digests = Digests { inputs: inputs.to_owned(), output: output.to_owned() };
            ensure!(record.0.insert(file.to_owned(), digests).is_none(), "{file} has two rows");
        }
        Ok(record)
    }
}

impl fmt::Display for CompilationRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HEADING)?;
        self.0
            .iter()
            .try_for_each(|(file, Digests { inputs, output })| writeln!(f, "{file}\t{inputs}\t{output}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digests(inputs: &str, output: &str) -> Digests {
        Digests { inputs: inputs.to_owned(), output: output.to_owned() }
    }

    #[test]
    fn record_round_trips() {
        let mut record = CompilationRecord::default();
        record.set("ptx/gemm_80.ptx".to_owned(), digests("a", "b"));
        record.set("ptx/gemm_75.ptx".to_owned(), digests("c", "d"));
        let text = record.to_string();
        assert!(text.ends_with("ptx/gemm_75.ptx\tc\td\nptx/gemm_80.ptx\ta\tb\n"), "{text}");
        assert_eq!(CompilationRecord::parse(&text).unwrap(), record);
        for row in ["ptx/gemm_75.ptx\tc\td\n", "ptx/x.ptx\tc\n"] {
            assert!(CompilationRecord::parse(&(text.clone() + row)).is_err(), "{row}");
        }
        assert!(CompilationRecord::parse("").is_err());
    }

    #[test]
    fn change_of_a_source_or_a_file_fails_the_check() {
        let mut record = CompilationRecord::default();
        record.set("ptx/gemm_80.ptx".to_owned(), digests("a", "b"));
        let error = |file: &str, found| record.check(file, &found).unwrap_err().to_string();
        record.check("ptx/gemm_80.ptx", &digests("a", "b")).unwrap();
        assert!(error("ptx/gemm_80.ptx", digests("x", "b")).contains("from other sources"));
        assert!(error("ptx/gemm_80.ptx", digests("a", "x")).contains("changed after compilation"));
        assert!(error("ptx/gemm_75.ptx", digests("a", "b")).contains("does not list"));
    }

    #[test]
    fn digest_depends_on_the_limits_between_parts() {
        let of = |parts: &[&str]| digest(parts.iter().map(|part| part.as_bytes()));
        assert_eq!(of(&["ab", "c"]), of(&["ab", "c"]));
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_ne!(of(&["ab"]), of(&["ab", ""]));
    }
}
