//! Memory per deployed function.

use crate::args::Args;
use crate::process::ResidentMemory;
use crate::report::TextTable;
use crate::weir::{Spans, Weir};
use anyhow::Result;
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// Time limit for a node to become idle.
const SETTLE_MAX: Duration = Duration::from_secs(5);

/// Memory of a node with `functions` functions.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct NodeMemory {
    functions: u32,
    /// After a restart and one call of one function.
    deployed: ResidentMemory,
    /// After a call of each function.
    called: ResidentMemory,
}

/// Measures the memory with one function and with `functions` functions.
pub(super) fn memory(
    args: &Args,
    scratch: &Path,
    component: &[u8],
    functions: u32,
) -> Result<(NodeMemory, NodeMemory)> {
    let weir = Weir::new(args, &scratch.join("memory"))?;
    let deploy = |range: std::ops::Range<u32>| {
        let node = weir.start(Spans::Off)?;
        for index in range {
            node.put(&format!("/v1/functions/f{index}"), &variant(component, index))?;
            if (index + 1).is_multiple_of(100) {
                eprintln!("deployed {} functions", index + 1);
            }
        }
        anyhow::Ok(())
    };
    let measure = |functions: u32| {
        let node = weir.start(Spans::Off)?;
        let resident = || {
            node.server.tree().settle(SETTLE_MAX)?;
            node.server.tree().resident()
        };
        node.get("/fn/f0/")?;
        let deployed = resident()?;
        for index in 0..functions {
            node.get(&format!("/fn/f{index}/"))?;
        }
        anyhow::Ok(NodeMemory { functions, deployed, called: resident()? })
    };
    deploy(0..1)?;
    let one = measure(1)?;
    deploy(1..functions)?;
    Ok((one, measure(functions)?))
}

/// Adds a custom section, which makes a different component: code is shared by content, which must
/// not affect this measurement.
fn variant(component: &[u8], index: u32) -> Vec<u8> {
    const NAME: &[u8] = b"variant";
    let index = index.to_le_bytes();
    let length = 1 + NAME.len() + index.len();
    // Both lengths are below 128: their LEB128 is one byte.
    let head = [0, length as u8, NAME.len() as u8];
    [component, &head, NAME, &index].concat()
}

/// Additional memory per function after the first.
pub(super) fn per_function(one: NodeMemory, all: NodeMemory) -> TextTable {
    let title = format!("Memory of a node with {} different functions", all.functions);
    let columns = [
        "",
        "bound",
        "RSS per function KB",
        "anonymous memory per function KB",
        "RSS of the node MiB",
        "with one function MiB",
    ];
    let mut table = TextTable::new(title, &columns);
    let mut row = |what: &str, bound: &str, one: ResidentMemory, many: ResidentMemory| {
        let each = |one: u64, many: u64| (many as f64 - one as f64) / f64::from(all.functions - 1) / 1e3;
        let mib = |bytes: u64| format!("{:.0}", bytes as f64 / f64::from(1 << 20));
        table.row([
            what.to_owned(),
            bound.to_owned(),
            format!("{:.1}", each(one.total_bytes, many.total_bytes)),
            format!("{:.1}", each(one.anonymous_bytes, many.anonymous_bytes)),
            mib(many.total_bytes),
            mib(one.total_bytes),
        ]);
    };
    row("deployed, after a restart", "150", one.deployed, all.deployed);
    row("each called once", "150", one.called, all.called);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_are_different_valid_components() {
        let engine = wasmtime::Engine::default();
        let empty = b"\0asm\x0d\0\x01\0";
        let a = variant(empty, 1);
        let b = variant(empty, 1_000);
        assert_ne!(a, b);
        for component in [a, b] {
            wasmtime::component::Component::new(&engine, component).unwrap();
        }
    }
}
