//! Checks of every kind of operation in every precision, with every tier that can compute it.

use super::cases::{FLOATS, OperationCase, all};
use super::chains;
use crate::ahead::PrecomputedResults;
use crate::bench::{Bench, OWNER};
use crate::compare::worst_element;
use crate::config::CheckFailure;
use crate::floor::Floor;
use crate::outcome::{Check, LaunchParameters, Mismatch, OperationTier};
use crate::progress::Reporter;
use crate::stage::Stage;
use weir_cuda::executor::{Bound, Gpu, LibraryState, ProductTier, Program, StepWork, Weights, in_slot};
use weir_graph::Graph;
use weir_graph::reference::{self, ReferenceTensor};
use weir_kernels::{LaunchCost, Precision};
use weir_types::ElementType;

const STAGE: Stage = Stage::Operations;
/// Name of the case that opens NVIDIA's libraries.
const LIBRARIES: &str = "libraries";

/// Operation in one precision, computed by one tier.
struct OperationVariant {
    operation: usize,
    float: ElementType,
    precision: Precision,
    tier: OperationTier,
    name: String,
}

/// Operation on floats of one type, its inputs, and the reference's outputs.
struct ReferenceCase {
    graph: Graph,
    inputs: Vec<ReferenceTensor>,
    expected: Vec<ReferenceTensor>,
}

pub(super) fn cases() -> Vec<String> {
    let variants = variants(&all()).into_iter().map(|variant| variant.name);
    std::iter::once(LIBRARIES.to_owned()).chain(variants).collect()
}

pub(super) fn check(bench: &Bench<'_>, report: &mut Reporter<'_>) -> Result<(), CheckFailure> {
    let gpu = &*bench.gpu;
    chains::check(gpu, report)?;
    report.case(LIBRARIES, |report| {
        for (what, state) in [("cuBLASLt", gpu.products.state()), ("NVRTC", gpu.chains.state())] {
            if let LibraryState::Unusable(why) = state {
                report.check(Check::failed(STAGE, what, why));
            }
        }
        Ok(())
    })?;
    let operations = all();
    let mut variants = variants(&operations);
    variants.retain(|variant| is_available(gpu, variant.tier) && report.includes(&variant.name));
    // The reference computes each operation once per float type.
    let mut wanted: Vec<(usize, ElementType)> = variants.iter().map(OperationVariant::answer).collect();
    wanted.dedup();
    let job = |(operation, float): &(usize, ElementType)| {
        let case = operations.get(*operation);
        let float = *float;
        move || case.map_or_else(|| Err("no such operation".to_owned()), |case| answer(case, float))
    };
    PrecomputedResults::new(wanted.iter().map(job).collect()).run(|answers| {
        for variant in &variants {
            let answer = wanted.iter().position(|wanted| *wanted == variant.answer());
            let Some((case, answer)) =
                operations.get(variant.operation).zip(answer.and_then(|at| answers.get(at)))
            else {
                continue;
            };
            report.case(&variant.name, |report| {
                let checked = match answer {
                    Ok(answer) => variant.check(bench, case, answer, report)?,
                    Err(why) => Some(Check { passed: false, detail: why.clone(), ..variant.passed(case) }),
                };
                checked.into_iter().for_each(|checked| report.check(checked));
                Ok(())
            })?;
        }
        Ok(())
    })
}

/// Returns whether a tier is available on this device.
fn is_available(gpu: &Gpu, tier: OperationTier) -> bool {
    match tier {
        OperationTier::Own => true,
        OperationTier::CublasLt => gpu.products.tier() != ProductTier::Own,
        OperationTier::Nvrtc => matches!(gpu.chains.state(), LibraryState::Used(_)),
    }
}

fn variants(operations: &[OperationCase]) -> Vec<OperationVariant> {
    let mut variants = Vec::new();
    for (operation, case) in operations.iter().enumerate() {
        // The library can compute products, and NVRTC can compile elementwise chains.
        let tiers: &[OperationTier] = match case {
            case if case.is_product() => &[OperationTier::Own, OperationTier::CublasLt],
            case if case.is_elementwise() => &[OperationTier::Own, OperationTier::Nvrtc],
            _ => &[OperationTier::Own],
        };
        for float in FLOATS {
            let precisions: &[Precision] = match float {
                ElementType::Fp16 => &[Precision::Fp16],
                ElementType::Bf16 => &[Precision::Bf16],
                _ => &[Precision::Fp32, Precision::Tf32],
            };
            for precision in precisions {
                variants.extend(tiers.iter().map(|tier| OperationVariant {
                    operation,
                    float,
                    precision: *precision,
                    tier: *tier,
                    name: format!("{}, {precision}, {tier}", case.name),
                }));
            }
        }
    }
    variants
}

fn answer(case: &OperationCase, float: ElementType) -> Result<ReferenceCase, String> {
    let graph = case.graph(float).map_err(|error| error.to_string())?;
    let input = |(operand, port): (usize, &weir_graph::GraphPort)| {
        let tensor = graph.value(port.value).tensor.clone();
        let elements = (0..tensor.elements()).map(|at| case.element(operand, at)).collect();
        ReferenceTensor::floats(tensor, elements)
    };
    let inputs: Vec<ReferenceTensor> = graph.inputs.iter().enumerate().map(input).collect();
    let expected = reference::run(&graph, &inputs, &|_| None).map_err(|error| error.to_string())?;
    Ok(ReferenceCase { graph, inputs, expected })
}

impl OperationVariant {
    fn answer(&self) -> (usize, ElementType) {
        (self.operation, self.float)
    }

    fn passed(&self, case: &OperationCase) -> Check {
        let what = format!("{}, {}", case.name, self.precision);
        Check { tier: Some(self.tier), ..Check::passed(STAGE, what) }
    }

    /// Runs the check. Returns `None` if the tier does not compute the operation.
    fn check(
        &self,
        bench: &Bench<'_>,
        case: &OperationCase,
        answer: &ReferenceCase,
        report: &mut Reporter<'_>,
    ) -> Result<Option<Check>, CheckFailure> {
        let gpu = &*bench.gpu;
        let precision = self.precision;
        let tier = self.tier;
        let passed = self.passed(case);
        let failed = |why: String| Ok(Some(Check { passed: false, detail: why, ..self.passed(case) }));
        let products =
            if tier == OperationTier::CublasLt { gpu.products.tier().for_all() } else { ProductTier::Own };
        let mut program = match Program::from_graph(&answer.graph, precision, &gpu.target, products) {
            Ok(program) => program,
            Err(why) => return failed(why.to_string()),
        };
        if tier != OperationTier::Nvrtc {
            program.interpret_chains();
        }
        let for_library =
            program.steps.iter().filter(|step| matches!(step.work, StepWork::Product { .. })).count();
        if tier == OperationTier::CublasLt && for_library == 0 {
            return Ok(None);
        }
        report.launches(LaunchParameters::of_steps(&program.steps));
        let cost = program.steps.iter().fold(LaunchCost::default(), |cost, step| cost + step.cost());
        let floor_ns =
            Floor::for_device(gpu.context.info(), precision).map(|floor| floor.time_ns(&program.steps));
        let weights = Weights::none();
        let bound = Bound::new(gpu, program, &weights, OWNER)?;
        if bound.library_steps() < for_library {
            return Ok(Some(Check { detail: "the library has nothing for it".to_owned(), ..passed }));
        }
        if tier == OperationTier::Nvrtc && bound.wait_for_compiler(&gpu.chains) == 0 {
            return failed("NVRTC has made no kernel of it".to_owned());
        }
        let (outputs, measured) = in_slot(gpu, OWNER, &bound, &weights, &answer.inputs, |ready| {
            ready.run()?;
            let outputs = ready.outputs()?;
            Ok((outputs, bench.timer.device(ready.stream, || ready.launch())?))
        })?;
        let Some((error, worst)) = worst(&outputs, &answer.expected) else {
            return failed("an output is not as long as it should be".to_owned());
        };
        let check = passed.off_by(error, tolerance(precision, case.terms)).with_worst(Some(worst));
        Ok(Some(check.took(measured, cost.bytes, cost.flops).beside(floor_ns)))
    }
}

/// Returns the error and position of the worst element of all outputs; `None` if an output has a
/// wrong length.
fn worst(outputs: &[Vec<u8>], expected: &[ReferenceTensor]) -> Option<(f64, Mismatch)> {
    let mut worst: Option<(f64, Mismatch)> = None;
    for (output, (bytes, expected)) in outputs.iter().zip(expected).enumerate() {
        let found = ReferenceTensor::from_bytes(expected.tensor().clone(), bytes)?;
        let (error, at) = worst_element(&found.to_floats(), &expected.to_floats());
        if worst.is_none_or(|(before, _)| error > before) {
            worst = Some((error, Mismatch { output, ..at }));
        }
    }
    worst
}

/// Maximum error of a sum of `terms` products: each factor is rounded once, and errors grow like a
/// random walk.
#[expect(clippy::cast_precision_loss, reason = "a tolerance")]
fn tolerance(precision: Precision, terms: usize) -> f64 {
    let rounding = match precision {
        Precision::Fp32 => 2e-6,
        Precision::Tf32 => 1e-3,
        Precision::Fp16 => 1.5e-3,
        Precision::Bf16 => 1.2e-2,
    };
    rounding * (terms as f64).sqrt().max(2.0)
}
