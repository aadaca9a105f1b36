//! Checks for arbitrary bytes as an ONNX file. The fuzzer uses them, and so does a test of `graph/`.

use bytes::Bytes;
use weir_graph::{MemoryPlan, OnnxModel};
use weir_types::{Port, Shape};

/// Reads or rejects a file, and lowers it for small inputs.
pub(crate) fn read_or_refuse(bytes: &[u8]) {
    let Ok(model) = OnnxModel::read(Bytes::copy_from_slice(bytes)) else { return };
    let Some(shapes) = model.signature().inputs.iter().map(small).collect::<Option<Vec<_>>>() else { return };
    let Ok(graph) = model.specialise(&shapes) else { return };
    let Ok(fused) = graph.fuse() else { return };
    let plan = MemoryPlan::new(&fused);
    assert!(plan.arena_bytes.is_multiple_of(weir_graph::ALIGNMENT_BYTES));
}

/// A small shape of an input, unless its fixed dimensions are large.
fn small(port: &Port) -> Option<Shape> {
    let sizes: Vec<u32> = port.shape.iter().map(|size| size.unwrap_or(2)).collect();
    let elements = sizes.iter().try_fold(1_u32, |elements, size| elements.checked_mul(*size))?;
    (elements <= 1 << 16).then(|| Shape::new(&sizes).ok()).flatten()
}
