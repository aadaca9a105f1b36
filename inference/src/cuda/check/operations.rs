//! Every kind of operation in every precision.

use super::super::bound::Bound;
use super::super::device::Gpu;
use super::super::libraries::LibraryState;
use super::super::program::{ProductTier, Program, Step};
use super::super::weights::Weights;
use super::bench::{OWNER, in_slot, worst};
use super::cases::{Case, FLOATS, all};
use super::floor::Floor;
use super::{Check, CheckConfig, CheckFailure, Stage, Tier, chains};
use weir_graph::reference::{self, Tensor};
use weir_kernels::{Cost, Precision};
use weir_types::ElementType;

pub(super) fn check(
    gpu: &Gpu,
    config: &CheckConfig,
    tell: &mut dyn FnMut(Check),
) -> Result<(), CheckFailure> {
    if let LibraryState::Unusable(why) = gpu.products.state() {
        tell(Check::failed(Stage::Operations, "cuBLASLt", why));
    }
    chains::check(gpu, tell)?;
    for case in all() {
        for float in FLOATS {
            let precisions: &[Precision] = match float {
                ElementType::Fp16 => &[Precision::Fp16],
                ElementType::Bf16 => &[Precision::Bf16],
                _ => &[Precision::Fp32, Precision::Tf32],
            };
            for precision in precisions {
                for tier in tiers(gpu, &case) {
                    one(gpu, config, &case, (float, *precision), *tier)?.map(&mut *tell);
                }
            }
        }
    }
    Ok(())
}

/// What can compute a case: products of matrices the library, too, and elementwise chains kernels of their own, where those are there.
fn tiers(gpu: &Gpu, case: &Case) -> &'static [Tier] {
    let has_library = gpu.products.tier() != ProductTier::Own;
    let has_compiler = matches!(gpu.chains.state(), LibraryState::Used(_));
    if has_library && case.is_product() {
        &[Tier::Own, Tier::CublasLt]
    } else if has_compiler && case.is_elementwise() {
        &[Tier::Own, Tier::Nvrtc]
    } else {
        &[Tier::Own]
    }
}

fn one(
    gpu: &Gpu,
    config: &CheckConfig,
    case: &Case,
    (float, precision): (ElementType, Precision),
    tier: Tier,
) -> Result<Option<Check>, CheckFailure> {
    let what = format!("{}, {precision}", case.name);
    let passed = Check { tier: Some(tier), ..Check::passed(Stage::Operations, what.clone()) };
    let failed = |why: &dyn std::fmt::Display| {
        Ok(Some(Check { tier: Some(tier), ..Check::failed(Stage::Operations, what.clone(), why) }))
    };
    let graph = match case.graph(float) {
        Ok(graph) => graph,
        Err(why) => return failed(&why),
    };
    let products = if tier == Tier::CublasLt { gpu.products.tier().for_all() } else { ProductTier::Own };
    let mut program = match Program::of(&graph, precision, &gpu.target, products) {
        Ok(program) => program,
        Err(why) => return failed(&why),
    };
    if tier != Tier::Nvrtc {
        program.interpret_chains();
    }
    let for_library = program.steps.iter().filter(|step| matches!(step, Step::Product { .. })).count();
    if tier == Tier::CublasLt && for_library == 0 {
        return Ok(None);
    }
    let cost = program.steps.iter().fold(Cost::default(), |cost, step| cost + step.cost());
    let floor_ns = Floor::of(gpu.context.info(), precision).map(|floor| floor.time_ns(&program.steps));
    let input = |(operand, port): (usize, &weir_graph::Port)| {
        let tensor = graph.value(port.value).tensor.clone();
        let elements = (0..tensor.elements()).map(|at| case.element(operand, at)).collect();
        Tensor::floats(tensor, elements)
    };
    let inputs: Vec<Tensor> = graph.inputs.iter().enumerate().map(input).collect();
    let expected = match reference::run(&graph, &inputs, &|_| None) {
        Ok(expected) => expected,
        Err(why) => return failed(&why),
    };
    let weights = Weights::none();
    let bound = Bound::new(gpu, program, &weights, OWNER)?;
    if bound.library_steps() < for_library {
        return Ok(Some(Check { detail: "the library has nothing for it".to_owned(), ..passed }));
    }
    if tier == Tier::Nvrtc && chains::compiled(gpu, &bound) == 0 {
        return failed(&"NVRTC has made no kernel of it");
    }
    let (outputs, time_ns) = in_slot(gpu, OWNER, &bound, &weights, &inputs, |ready| {
        ready.run()?;
        let outputs = ready.outputs()?;
        Ok((outputs, ready.time_ns(config.repeats, || ready.launch())?))
    })?;
    let mut error = 0.0_f64;
    for (bytes, expected) in outputs.iter().zip(&expected) {
        let Some(found) = Tensor::from_bytes(expected.tensor().clone(), bytes) else {
            return failed(&"an output is not as long as it should be");
        };
        error = error.max(worst(&found.to_floats(), &expected.to_floats()));
    }
    let check = passed.off_by(error, tolerance(precision, case.terms));
    Ok(Some(check.took(time_ns, cost.bytes, cost.flops).beside(floor_ns)))
}

/// How far sums of so many products may be off: each factor is rounded once, and errors grow as a random walk does.
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
