//! Overhead of a launch, measured with a chain of operations on a few bytes, launch by launch and
//! as a graph; and the load time of every kernel module.

use crate::bench::{Bench, BothWays, OWNER, both_ways};
use crate::config::CheckFailure;
use crate::outcome::{Check, LaunchParameters, Mismatch};
use crate::progress::Reporter;
use crate::stage::Stage;
use crate::timer::MeasuredTime;
use std::time::Instant;
use weir_cuda::executor::{Bound, Gpu, ProductTier, Program, Weights, in_slot};
use weir_device::cuda::CudaError;
use weir_graph::reference::ReferenceTensor;
use weir_graph::{
    Elementwise, Graph, GraphNode, GraphPort, GraphValue, Instruction, NumberType, Op, TensorType, Unary,
    ValueId, ValueSource,
};
use weir_kernels::KernelModule;
use weir_types::ElementType::Fp32;
use weir_types::Precision;

const STAGE: Stage = Stage::Launches;
/// Number of operations in the chain.
const CHAIN: u32 = 64;
const ELEMENTS: usize = 32;
/// Formats in which kernels are shipped.
const FORMS: [Form; 2] = [Form::MachineCode, Form::Ptx];
/// Name of the case of the chain.
const OVERHEAD: &str = "launch overhead";

/// Format in which kernels are shipped.
#[derive(Debug, Clone, Copy)]
enum Form {
    MachineCode,
    Ptx,
}

pub(super) fn cases() -> Vec<String> {
    let modules =
        KernelModule::ALL.into_iter().flat_map(|module| FORMS.map(|form| module_case(module, form)));
    modules.chain([OVERHEAD.to_owned()]).collect()
}

fn module_case(module: KernelModule, form: Form) -> String {
    match form {
        Form::MachineCode => format!("module {} from machine code", module.name()),
        Form::Ptx => format!("module {} from PTX", module.name()),
    }
}

pub(super) fn check(bench: &Bench<'_>, report: &mut Reporter<'_>) -> Result<(), CheckFailure> {
    // Modules come first, before the process has loaded any of them.
    for module in KernelModule::ALL {
        for form in FORMS {
            report.single(&module_case(module, form), || load(bench, module, form))?;
        }
    }
    report.case(OVERHEAD, |report| overhead(bench, report))
}

/// Measures the load time of a module, including decompression and the driver's load, in a process
/// that has not loaded the module. The driver may have cached the compiled PTX in another process.
fn load(bench: &Bench<'_>, module: KernelModule, form: Form) -> Result<Check, CheckFailure> {
    let check = Check::passed(STAGE, module_case(module, form));
    let none = || Check { detail: "none for this device".to_owned(), ..check.clone() };
    if module.compute_capability_min() > bench.gpu.target.compute_capability {
        return Ok(none());
    }
    let modules = bench.gpu.kernels.modules();
    let began = Instant::now();
    let loaded = match form {
        Form::MachineCode => match modules.load_machine_code(module) {
            Some(loaded) => loaded?,
            None => return Ok(none()),
        },
        Form::Ptx => modules.load_ptx(module)?,
    };
    let measured = bench.timer.since(began);
    Ok(Check { detail: format!("{} bytes", loaded.image_bytes), ..check.took(measured, 0, 0) })
}

fn overhead(bench: &Bench<'_>, report: &mut Reporter<'_>) -> Result<(), CheckFailure> {
    let gpu = &*bench.gpu;
    let (program, input) = program(gpu)?;
    report.launches(LaunchParameters::of_steps(&program.steps));
    let weights = Weights::none();
    let bound = Bound::new(gpu, program, &weights, OWNER)?;
    let BothWays { launched, captured, .. } =
        in_slot(gpu, OWNER, &bound, &weights, &[input], |ready| both_ways(ready, &bench.timer))?;
    let each = |what: &str, MeasuredTime { time_ns, clocks }: MeasuredTime| {
        Check::passed(STAGE, what).took(MeasuredTime { time_ns: time_ns / u64::from(CHAIN), clocks }, 0, 0)
    };
    report.check(each("one of 64 launches, one after the other", launched.measured));
    let differs = Mismatch::of_outputs(&launched.outputs, &captured.outputs);
    let check = each("one of 64 launches in a graph", captured.measured);
    report.check(check.same(differs, "the graph computes something else"));
    Ok(())
}

/// Returns the chain's program for a device, and its input.
pub(super) fn program(gpu: &Gpu) -> Result<(Program, ReferenceTensor), CudaError> {
    let tensor = TensorType::new(Fp32, [ELEMENTS]).map_err(|error| CudaError::Invalid(error.to_string()))?;
    let program = Program::from_graph(&chain(&tensor), Precision::Fp32, &gpu.target, ProductTier::Own);
    let program = program.map_err(|error| CudaError::Invalid(error.to_string()))?;
    Ok((program, ReferenceTensor::floats(tensor, vec![1.0; ELEMENTS])))
}

/// Graph that negates its input repeatedly.
fn chain(tensor: &TensorType) -> Graph {
    let value = |name: String, source| GraphValue { name, tensor: tensor.clone(), source };
    let program = weir_graph::ElementwiseProgram {
        lane: NumberType::Float,
        instructions: vec![Instruction::Load(0), Instruction::Unary(Unary::Neg)],
    };
    let op = Op::Elementwise(Elementwise { program, dims: vec![ELEMENTS], strides: vec![vec![1]] });
    let node = |at: u32| GraphNode {
        name: format!("n{at}"),
        op: op.clone(),
        inputs: vec![Some(ValueId(at))],
        outputs: vec![Some(ValueId(at + 1))],
    };
    let made = (0..CHAIN).map(|at| value(format!("v{at}"), ValueSource::Node { node: at, output: 0 }));
    Graph {
        values: std::iter::once(value("x".to_owned(), ValueSource::Input)).chain(made).collect(),
        nodes: (0..CHAIN).map(node).collect(),
        prologue_len: 0,
        inputs: vec![GraphPort { name: "x".to_owned(), value: ValueId(0) }],
        outputs: vec![GraphPort { name: "y".to_owned(), value: ValueId(CHAIN) }],
    }
}
