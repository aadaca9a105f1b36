//! Kernels that NVRTC makes of chains of elementwise operations, beside the interpreter: the same to the bit.

use super::super::bound::Bound;
use super::super::device::Gpu;
use super::super::libraries::LibraryState;
use super::super::program::{ProductTier, Program};
use super::super::weights::Weights;
use super::bench::{OWNER, in_slot};
use super::{Check, CheckFailure, Stage, Tier};
use weir_graph::reference::{Data, Tensor};
use weir_graph::{Lane, Port};
use weir_kernels::{Example, Precision};

/// Check that all instructions do the same either way, where there is a compiler.
pub(super) fn check(gpu: &Gpu, tell: &mut dyn FnMut(Check)) -> Result<(), CheckFailure> {
    match gpu.chains.state() {
        LibraryState::None => return Ok(()),
        LibraryState::Unusable(why) => {
            tell(Check::failed(Stage::Operations, "NVRTC", why));
            return Ok(());
        }
        LibraryState::Used(_) => {}
    }
    let examples = Example::all();
    let mut wrong = Vec::new();
    for (number, example) in examples.iter().enumerate() {
        if let Err(why) = same(gpu, example)? {
            wrong.push(format!("{number}: {why}"));
        }
    }
    let what = format!("{} chains of every instruction and type, compiled and interpreted", examples.len());
    let tier = Some(Tier::Nvrtc);
    tell(if wrong.is_empty() {
        let detail = "the same to the bit".to_owned();
        Check { tier, detail, ..Check::passed(Stage::Operations, what) }
    } else {
        Check { tier, ..Check::failed(Stage::Operations, what, wrong.join("; ")) }
    });
    Ok(())
}

/// How many steps of a program have kernels of their own, once the compiler is done with it.
pub(in crate::cuda) fn compiled(gpu: &Gpu, bound: &Bound) -> usize {
    gpu.chains.wait_until(|| bound.settle(&gpu.chains));
    bound.compiled_steps()
}

/// Whether a chain gives the same bits either way, and if not, why not.
pub(in crate::cuda) fn same(gpu: &Gpu, example: &Example) -> Result<Result<(), String>, CheckFailure> {
    let graph = match example.graph() {
        Ok(graph) => graph,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let input = |port: &Port| {
        let tensor = graph.value(port.value).tensor.clone();
        // Between -1 and 1, and some beyond; in integers from -3 to 3.
        let hash = |at: usize| {
            ((at as u64 ^ u64::from(port.value.0) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as i64
        };
        match Lane::of(tensor.element_type()) {
            Lane::Float => {
                let number =
                    |at| (hash(at) as f32 / (1 << 23) as f32 - 1.0) * if at % 7 == 0 { 30.0 } else { 1.0 };
                let elements = (0..tensor.elements()).map(number).collect();
                Tensor::floats(tensor, elements)
            }
            Lane::Integer => {
                let elements = (0..tensor.elements()).map(|at| hash(at) % 7 - 3).collect();
                Tensor::integers(tensor, elements)
            }
        }
    };
    let inputs: Vec<Tensor> = graph.inputs.iter().map(input).collect();
    let weights = Weights::none();
    let mut ways = Vec::new();
    for is_compiled in [false, true] {
        let mut program = match Program::of(&graph, Precision::Fp32, &gpu.target, ProductTier::Own) {
            Ok(program) => program,
            Err(error) => return Ok(Err(error.to_string())),
        };
        if !is_compiled {
            program.interpret_chains();
        }
        let bound = Bound::new(gpu, program, &weights, OWNER)?;
        if is_compiled && compiled(gpu, &bound) == 0 {
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
    let read = |way: usize| Tensor::from_bytes(tensor.clone(), ways.get(way)?.first()?);
    Ok(match (read(0), read(1)) {
        (Some(interpreted), Some(compiled)) => compare(&interpreted, &compiled),
        _ => Err("its output is not as long as it should be".to_owned()),
    })
}

/// The same to the bit, but that any two that are not a number are the same.
fn compare(interpreted: &Tensor, compiled: &Tensor) -> Result<(), String> {
    let differ = |at: usize, one: &dyn std::fmt::Display, other: &dyn std::fmt::Display| {
        Err(format!("element {at} is {one} interpreted, and {other} compiled"))
    };
    match (interpreted.data(), compiled.data()) {
        (Data::Floats(one), Data::Floats(other)) => {
            for (at, (one, other)) in one.iter().zip(other.iter()).enumerate() {
                if one.to_bits() != other.to_bits() && !(one.is_nan() && other.is_nan()) {
                    return differ(at, one, other);
                }
            }
        }
        (Data::Integers(one), Data::Integers(other)) => {
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
