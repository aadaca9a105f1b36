//! Checks for arbitrary bytes as an upload of a kernel graph. The fuzzer uses them, and so does a
//! test of `kernel-graph/`.

use std::collections::BTreeMap;
use weir_kernel_graph::{Bundle, Expression, KernelGraph, Ptx};

/// Parses or rejects an upload: the document with its expressions, and its sources as PTX.
pub(crate) fn read_or_refuse(bytes: &[u8]) {
    if let Ok(bundle) = Bundle::parse(bytes) {
        for (name, text) in bundle.to_compile() {
            // A refusal is fine; the compiler gets what passes.
            let _ = weir_kernel_graph::check_source(name, text);
        }
        if let Ok(graph) = KernelGraph::new(bundle) {
            assert!(!graph.modules().is_empty());
            let signature = graph.signature();
            assert!(!signature.inputs.is_empty() && !signature.outputs.is_empty());
        }
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = Ptx::read(text);
    expression(text);
}

/// An expression that is read has the same value when it is written and read again.
fn expression(text: &str) {
    let Ok(expression) = Expression::parse(text) else { return };
    let dimensions: BTreeMap<String, u32> =
        expression.dimensions().map(|name| (name.to_owned(), 7)).collect();
    let value = expression.value(&dimensions);
    if let Ok(Some(constant)) = expression.constant() {
        assert_eq!(value.ok(), Some(constant));
    }
}
