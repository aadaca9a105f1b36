//! Comparison of chains compiled by NVRTC with the interpreter: the results must be bit-identical.

use crate::bench::OWNER;
use crate::config::CheckFailure;
use crate::outcome::{Check, LaunchParameters, OperationTier};
use crate::progress::Reporter;
use crate::stage::Stage;
use weir_cuda::executor::{Bound, Gpu, LibraryState, ProductTier, Program, Weights, in_slot};
use weir_graph::reference::{ReferenceData, ReferenceTensor};
use weir_graph::{Graph, GraphPort, NumberType};
use weir_kernels::{Example, Precision};

/// Name of the case for all chains.
const CASE: &str = "compiled chains";

pub(super) fn cases() -> Vec<String> {
    vec![CASE.to_owned()]
}

/// Checks that every instruction gives the same bits compiled and interpreted, if NVRTC is usable.
pub(super) fn check(gpu: &Gpu, report: &mut Reporter<'_>) -> Result<(), CheckFailure> {
    if !matches!(gpu.chains.state(), LibraryState::Used(_)) {
        return Ok(());
    }
    report.case(CASE, |report| {
        let examples = Example::all();
        let mut wrong = Vec::new();
        for (number, example) in examples.iter().enumerate() {
            if let Err(why) = same(gpu, example, &mut |launches| report.launches(launches))? {
                wrong.push(format!("{number}: {why}"));
            }
        }
        let what =
            format!("{} chains of every instruction and type, compiled and interpreted", examples.len());
        let check = match &wrong[..] {
            [] => {
                Check { detail: "the same to the bit".to_owned(), ..Check::passed(Stage::Operations, what) }
            }
            wrong => Check::failed(Stage::Operations, what, wrong.join("; ")),
        };
        report.check(Check { tier: Some(OperationTier::Nvrtc), ..check });
        Ok(())
    })
}

/// Compares the bits of a chain compiled and interpreted, and returns the reason of a mismatch.
/// `announce` receives the launches before they are enqueued.
pub(crate) fn same(
    gpu: &Gpu,
    example: &Example,
    announce: &mut dyn FnMut(Vec<LaunchParameters>),
) -> Result<Result<(), String>, CheckFailure> {
    let graph = match example.graph() {
        Ok(graph) => graph,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let inputs: Vec<ReferenceTensor> = graph.inputs.iter().map(|port| input(&graph, port)).collect();
    let weights = Weights::none();
    let mut ways = Vec::new();
    for is_compiled in [false, true] {
        let mut program = match Program::from_graph(&graph, Precision::Fp32, &gpu.target, ProductTier::Own) {
            Ok(program) => program,
            Err(error) => return Ok(Err(error.to_string())),
        };
        if !is_compiled {
            program.interpret_chains();
        }
        announce(LaunchParameters::of_steps(&program.steps));
        let bound = Bound::new(gpu, program, &weights, OWNER)?;
        if is_compiled && bound.wait_for_compiler(&gpu.chains) == 0 {
            return Ok(Err("NVRTC has made no kernel of it".to_owned()));
        }
        ways.push(in_slot(gpu, OWNER, &bound, &weights, &inputs, |ready| {
            ready.run()?;
            ready.outputs()
        })?);
    }
    let Some(tensor) = graph.outputs.first().map(|port| graph.value(port.value).tensor.clone()) else {
        return Ok(Err("it has no output".to_owned()));
    };
    let read = |way: usize| ReferenceTensor::from_bytes(tensor.clone(), ways.get(way)?.first()?);
    Ok(match (read(0), read(1)) {
        (Some(interpreted), Some(compiled)) => compare(&interpreted, &compiled),
        _ => Err("its output is not as long as it should be".to_owned()),
    })
}

/// Input tensor: numbers between -1 and 1 and some between -30 and 30, or integers from -3 to 3.
fn input(graph: &Graph, port: &GraphPort) -> ReferenceTensor {
    let tensor = graph.value(port.value).tensor.clone();
    let hash = |at: usize| {
        ((at as u64 ^ u64::from(port.value.0) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as i64
    };
    let count = tensor.elements();
    match NumberType::for_element_type(tensor.element_type()) {
        NumberType::Float => {
            let number =
                |at| (hash(at) as f32 / (1 << 23) as f32 - 1.0) * if at % 7 == 0 { 30.0 } else { 1.0 };
            ReferenceTensor::floats(tensor, (0..count).map(number).collect())
        }
        NumberType::Integer => {
            ReferenceTensor::integers(tensor, (0..count).map(|at| hash(at) % 7 - 3).collect())
        }
    }
}

/// Compares two tensors bit by bit; all NaNs are equal.
fn compare(interpreted: &ReferenceTensor, compiled: &ReferenceTensor) -> Result<(), String> {
    let differ = |at: usize, one: &dyn std::fmt::Display, other: &dyn std::fmt::Display| {
        Err(format!("element {at} is {one} interpreted, and {other} compiled"))
    };
    match (interpreted.data(), compiled.data()) {
        (ReferenceData::Floats(one), ReferenceData::Floats(other)) => {
            for (at, (one, other)) in one.iter().zip(other.iter()).enumerate() {
                if one.to_bits() != other.to_bits() && !(one.is_nan() && other.is_nan()) {
                    return differ(at, one, other);
                }
            }
        }
        (ReferenceData::Integers(one), ReferenceData::Integers(other)) => {
            for (at, (one, other)) in one.iter().zip(other.iter()).enumerate() {
                if one != other {
                    return differ(at, one, other);
                }
            }
        }
        _ => return Err("floats and integers".to_owned()),
    }
    Ok(())
}
