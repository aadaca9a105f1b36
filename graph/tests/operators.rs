//! Tests of every operator and variant of its attributes against ONNX Runtime: see
//! `data/generate.py`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed setup fails the test")]

mod running;
mod support;

use base64::Engine as _;
use running::run;
use serde::Deserialize;
use std::collections::BTreeSet;
use support::shape;
use weir_graph::reference::ReferenceTensor;
use weir_graph::{OnnxModel, TensorType, operators};
use weir_types::ElementType;

/// A graph and its expected outputs.
#[derive(Deserialize)]
struct OperatorCase {
    name: String,
    model: String,
    /// Numbers; numbers that JSON cannot represent are strings.
    outputs: Vec<Vec<serde_json::Value>>,
}

fn cases() -> Vec<OperatorCase> {
    serde_json::from_slice(&support::file("graph/tests/data/operators.json")).unwrap()
}

impl OperatorCase {
    fn model(&self) -> OnnxModel {
        let file = base64::engine::general_purpose::STANDARD.decode(&self.model).unwrap();
        OnnxModel::read(file.into()).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    /// Names of the operations of each run, after fusion.
    fn fused_operations(&self) -> String {
        let model = self.model();
        let dims = |port: &weir_types::Port| port.shape.iter().map(|dim| dim.unwrap()).collect::<Vec<u32>>();
        let shapes: Vec<_> = model.signature().inputs.iter().map(|port| shape(&dims(port))).collect();
        let graph = model.specialise(&shapes).unwrap().fuse().unwrap();
        let main: Vec<&str> = graph.nodes[graph.prologue_len..].iter().map(|node| node.op.name()).collect();
        main.join(" ")
    }

    fn expected(&self) -> Vec<Vec<f32>> {
        let number = |value: &serde_json::Value| match value.as_str() {
            Some(word) => word.parse().unwrap(),
            None => value.as_f64().unwrap() as f32,
        };
        self.outputs.iter().map(|output| output.iter().map(number).collect()).collect()
    }

    /// Compare the reference's results, fused and unfused, with the expected ones.
    fn check(&self) -> Result<(), String> {
        let model = self.model();
        let ports = &model.signature().inputs;
        let dims = |index: usize| ports[index].shape.iter().map(|dim| dim.unwrap()).collect::<Vec<u32>>();
        let shapes: Vec<_> = (0..ports.len()).map(|index| shape(&dims(index))).collect();
        let inputs: Vec<ReferenceTensor> =
            (0..ports.len()).map(|index| formula(index, ports[index].datatype, &dims(index))).collect();
        let plain = model.specialise(&shapes).map_err(|error| error.to_string())?;
        let fused = plain.clone().fuse().map_err(|error| error.to_string())?;
        for (graph, how) in [(&plain, "plain"), (&fused, "fused")] {
            let found = run(&model, graph, &inputs);
            for (at, (found, expected)) in found.iter().zip(self.expected()).enumerate() {
                let found = found.to_floats();
                if found.len() != expected.len() {
                    return Err(format!(
                        "{how}, output {at}: {} elements, not {}",
                        found.len(),
                        expected.len()
                    ));
                }
                // Half-precision floats are rounded to eleven bits; powers of large numbers lose
                // more.
                let worst = difference(&found, &expected);
                if worst.is_nan() || worst > 2e-5 {
                    return Err(format!("{how}, output {at}: {worst:e} off: {found:?}, not {expected:?}"));
                }
            }
        }
        Ok(())
    }
}

/// Inputs of a case: the same formula as in `data/generate.py`.
fn formula(number: usize, element_type: ElementType, dims: &[u32]) -> ReferenceTensor {
    let dims: Vec<usize> = dims.iter().map(|dim| *dim as usize).collect();
    let tensor = TensorType::new(element_type, dims).unwrap();
    let raw = (0..tensor.elements()).map(|at| (at * 7919 + number * 104_729 + 13) % 1000);
    match element_type {
        ElementType::Fp32 => {
            ReferenceTensor::floats(tensor, raw.map(|raw| raw as f32 / 250.0 - 2.0).collect())
        }
        ElementType::Bool => ReferenceTensor::integers(tensor, raw.map(|raw| (raw % 2) as i64).collect()),
        _ => ReferenceTensor::integers(tensor, raw.map(|raw| (raw % 7) as i64).collect()),
    }
}

#[test]
fn every_case_matches_onnx_runtime() {
    let wrong: Vec<String> =
        cases().iter().filter_map(|case| Some(format!("{}: {}", case.name, case.check().err()?))).collect();
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Operations that remain of each pattern, by name.
#[test]
fn patterns_are_fused() {
    let wanted = [
        ("attention", "MatMul MatMul MatMul Attention MatMul"),
        ("attention of positions first", "Copy MatMul Attention Copy MatMul"),
        ("layer normalisation", "LayerNorm Elementwise"),
        ("residual block", "Conv Conv"),
        ("squeeze and excite", "Conv Reduce Conv Conv Elementwise"),
        ("detection neck", "Conv Pool Copy Resize Copy Elementwise"),
        ("quantised convolution", "Elementwise Conv Elementwise"),
        ("feed-forward", "MatMul MatMul"),
    ];
    let cases = cases();
    for (name, ops) in wanted {
        let case = cases.iter().find(|case| case.name == format!("pattern: {name}")).unwrap();
        assert_eq!(case.fused_operations(), ops, "{name}");
    }
}

/// Attention of the standard becomes one operation, also with a mask and with shared keys.
#[test]
fn attention_is_fused() {
    let cases = cases();
    for (name, ops) in [
        ("Attention", "Attention Copy"),
        ("Attention causal", "Attention Copy"),
        ("Attention packed", "Attention"),
        ("Attention groups [4, 5]", "Reduce Attention Copy Elementwise"),
        ("Attention packed causal", "Attention"),
        ("Attention softcap", "MatMul Elementwise Reduce Softmax MatMul Elementwise"),
    ] {
        let case = cases.iter().find(|case| case.name == name).unwrap();
        assert_eq!(case.fused_operations(), ops, "{name}");
    }
}

#[test]
fn every_operator_has_a_case() {
    let tried: BTreeSet<String> = cases().iter().flat_map(|case| case.model().operators()).collect();
    let untried: Vec<&str> =
        operators().iter().map(|operator| operator.name).filter(|name| !tried.contains(*name)).collect();
    assert!(untried.is_empty(), "no case tries {untried:?}");
}

#[test]
fn documentation_lists_every_operator() {
    let row = |operator: &weir_graph::Operator| {
        let since =
            if operator.name.contains(':') { String::new() } else { operator.since.max(7).to_string() };
        format!("| `{}` | {since} | {} |\n", operator.name, operator.without)
    };
    let rows: String = operators().iter().map(row).collect();
    let table = format!("\n| operator | from opset | without |\n|---|---|---|\n{rows}\n");
    let page = String::from_utf8(support::file("docs/reference/operators.md").to_vec()).unwrap();
    let start = page.find("<!-- operators:").and_then(|at| Some(at + page[at..].find("-->\n")? + 4)).unwrap();
    let end = page.find("<!-- end -->").unwrap();
    if std::env::var_os("WEIR_WRITE_DOCS").is_some() {
        let page = format!("{}{table}{}", &page[..start], &page[end..]);
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/operators.md"), page).unwrap();
        return;
    }
    assert_eq!(page[start..end], table, "write it anew with WEIR_WRITE_DOCS=1");
}

/// Largest difference between elements, relative to the expected element where its magnitude is
/// over 1.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(expected);
    pairs
        .map(
            |(a, b)| {
                if a == b || (a.is_nan() && b.is_nan()) { 0.0 } else { (a - b).abs() / b.abs().max(1.0) }
            },
        )
        .fold(0.0, |worst, now| if now > worst || now.is_nan() { now } else { worst })
}
