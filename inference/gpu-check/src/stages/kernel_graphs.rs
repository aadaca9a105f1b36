//! Checks of kernel graphs: the examples, compared with the CPU; and kernels with out-of-bounds
//! writes or timeouts, whose tenants get an error while another tenant's graphs keep running.

use super::worker::source;
use crate::compare::{worst, worst_element};
use crate::config::{CheckConfig, CheckFailure};
use crate::folder::TemporaryFolder;
use crate::outcome::Check;
use crate::progress::Reporter;
use crate::stage::Stage;
use crate::timer::{MeasuredTime, Timer, median, nanoseconds};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use weir_cuda::KernelGraphConfig;
use weir_cuda::executor::{KernelGraphs, store_kernel_graph};
use weir_device::Arena;
use weir_device::cuda::Devices;
use weir_inference::{InferenceError, Interrupt, Job, Model, Session, Tensor};
use weir_kernel_graph::Bundle;
use weir_types::{ElementType, Shape, TenantId};

const STAGE: Stage = Stage::KernelGraphs;
/// Name of the case of kernels that fault and hang.
const MISBEHAVING: &str = "misbehaving kernels";
/// Host memory for inputs and outputs, in bytes.
const ARENA_BYTES_MAX: u64 = 1 << 30;
/// Device memory for the buffers of one tenant, in bytes.
const MEMORY_BYTES_MAX: u64 = 1 << 30;
/// Time limit that no valid run reaches.
const RUN_TIME_MAX: Duration = Duration::from_secs(300);
/// Time limit of the run that must time out.
const SHORT_TIME_MAX: Duration = Duration::from_millis(50);
/// Sweeps over a square grid with this side length. They move 600 GB, which exceeds the short time
/// limit.
const LONG_SWEEPS: u32 = 4_000;
const LONG_SIDE: u32 = 4_096;
/// Maximum relative error: the order of summation differs.
const TOLERANCE: f64 = 1e-4;

const CHAIN: Example = Example {
    name: "sgemm-chain",
    graph: include_str!("../../../../examples/kernel-graphs/sgemm-chain/graph.json"),
    ptx: include_str!("../../../../examples/kernel-graphs/sgemm-chain/sgemm.ptx"),
};
const JACOBI: Example = Example {
    name: "jacobi",
    graph: include_str!("../../../../examples/kernel-graphs/jacobi/graph.json"),
    ptx: include_str!("../../../../examples/kernel-graphs/jacobi/jacobi.ptx"),
};
const RESIZE: Example = Example {
    name: "resize-normalise",
    graph: include_str!("../../../../examples/kernel-graphs/resize-normalise/graph.json"),
    ptx: include_str!("../../../../examples/kernel-graphs/resize-normalise/resize.ptx"),
};

/// Example of a kernel graph.
struct Example {
    name: &'static str,
    graph: &'static str,
    ptx: &'static str,
}

/// Graph pushed by a tenant. Fields drop in order: the files last.
struct Pushed {
    session: Box<dyn Session>,
    _model: Box<dyn Model>,
    _files: TemporaryFolder,
}

/// Graph with its inputs and its expected first output.
struct GraphCase {
    example: Example,
    inputs: Vec<Tensor>,
    expected: Vec<f32>,
}

pub(super) fn cases() -> Vec<String> {
    [CHAIN.name, JACOBI.name, RESIZE.name, MISBEHAVING].map(str::to_owned).to_vec()
}

pub(super) fn check(
    devices: &Devices,
    config: &CheckConfig,
    report: &mut Reporter<'_>,
) -> Result<(), CheckFailure> {
    let timer = Timer::new(devices, config);
    let arena = Arena::new(ARENA_BYTES_MAX);
    let limits = |run_time_max| KernelGraphConfig {
        memory_bytes_max: MEMORY_BYTES_MAX.min(config.memory_bytes_max),
        context_bytes: 0,
        run_time_max,
        command: None,
    };
    let open =
        |limits| KernelGraphs::new(limits, devices.driver_path().to_owned(), config.ordinal, arena.clone());
    let graphs = open(limits(RUN_TIME_MAX));
    let hasty = open(limits(SHORT_TIME_MAX));
    let [one, other] = ["doctor", "other"].map(TenantId::new);
    let (Ok(one), Ok(other)) = (one, other) else { return Ok(()) };

    let cases = match examples(&arena) {
        Ok(cases) => cases,
        Err(why) => return report.single(CHAIN.name, || Ok(Check::failed(STAGE, "examples", why))),
    };
    for case in &cases {
        report.single(case.example.name, || Ok(case.check(&graphs, &one, &timer)))?;
    }
    let Some(case) = cases.first() else { return Ok(()) };
    report.case(MISBEHAVING, |report| {
        // The neighbour gets a separate worker here, which must survive the faults.
        let mut neighbour = match Pushed::new(&graphs, &other, case.example.bundle(|_| {})) {
            Ok(neighbour) => neighbour,
            Err(why) => {
                report.check(Check::failed(STAGE, "a second tenant", why));
                return Ok(());
            }
        };
        let beyond =
            case.example.bundle(|graph| graph["launches"][0]["arguments"][4] = json!({"i32": 1 << 30}));
        let lost = misbehaves(&graphs, &one, beyond, &case.inputs);
        report.check(told("a kernel that writes beyond its buffers", lost, case.check_again(&mut neighbour)));
        report
            .check(Check { what: "its tenant, afterwards".to_owned(), ..case.check(&graphs, &one, &timer) });

        let long = JACOBI.bundle(|graph| graph["launches"][0]["repeat"]["times"] = json!(LONG_SWEEPS));
        let began = Instant::now();
        let stopped = square(&arena, LONG_SIDE).and_then(|input| {
            let inputs = [input.clone(), input];
            misbehaves(&hasty, &one, long, &inputs)
        });
        let took = timer.since(began);
        let what = format!("a run longer than {} ms", SHORT_TIME_MAX.as_millis());
        report.check(told(&what, stopped, case.check_again(&mut neighbour)).took(took, 0, 0));
        Ok(())
    })
}

impl Example {
    /// Returns the bundle of the example, with a change applied to the graph.
    fn bundle(&self, change: impl FnOnce(&mut Value)) -> Result<Bundle, String> {
        let mut graph: Value = serde_json::from_str(self.graph).map_err(|error| error.to_string())?;
        change(&mut graph);
        let bundle = json!({"graph": graph, "sources": {"kernels.ptx": self.ptx}});
        Bundle::parse(bundle.to_string().as_bytes()).map_err(|error| error.to_string())
    }
}

impl Pushed {
    fn new(graphs: &KernelGraphs, tenant: &TenantId, bundle: Result<Bundle, String>) -> Result<Self, String> {
        let files = TemporaryFolder::new().map_err(|error| error.to_string())?;
        let prepared = store_kernel_graph(bundle?, files.path()).map_err(|error| error.to_string())?;
        let source = source(tenant.clone(), prepared, &files)?;
        let model = graphs.load(&source).map_err(|error| error.to_string())?;
        let session = model.session(1).map_err(|error| error.to_string())?;
        Ok(Self { session, _model: model, _files: files })
    }

    /// Runs the graph, and returns its first output.
    fn run(&mut self, inputs: &[Tensor]) -> Result<Tensor, InferenceError> {
        let job = Job { inputs: inputs.to_vec(), outputs: vec![0] };
        let outputs = self.session.run(&job, &Interrupt::default())?;
        outputs.into_iter().next().ok_or_else(|| InferenceError::Run("it gives nothing".into()))
    }
}

impl GraphCase {
    /// Checks the results of a run kernel by kernel and as a graph, and measures the device time of
    /// a run.
    fn check(&self, graphs: &KernelGraphs, tenant: &TenantId, timer: &Timer) -> Check {
        let check = Check::passed(STAGE, self.example.name);
        match self.run(graphs, tenant, timer) {
            Ok((found, measured, started_ms)) => {
                let detail = format!("the first run ended after {started_ms} ms, including waits");
                let (error, worst) = worst_element(&floats(&found), &self.expected);
                let check = check.took(measured, 0, 0).off_by(error, TOLERANCE);
                Check { detail, ..check.with_worst(Some(worst)) }
            }
            Err(why) => Check { passed: false, detail: why, ..check },
        }
    }

    /// Returns the output of the first run, the median device time of later runs, and the
    /// milliseconds until the first run ended.
    fn run(
        &self,
        graphs: &KernelGraphs,
        tenant: &TenantId,
        timer: &Timer,
    ) -> Result<(Tensor, MeasuredTime, u128), String> {
        let began = Instant::now();
        let mut pushed = Pushed::new(graphs, tenant, self.example.bundle(|_| {}))?;
        let first = pushed.run(&self.inputs).map_err(|error| error.to_string())?;
        let started_ms = began.elapsed().as_millis();
        let mut again = || {
            let again = pushed.run(&self.inputs).map_err(|error| error.to_string())?;
            if again != first {
                return Err("a later run gives other results".to_owned());
            }
            Ok(nanoseconds(pushed.session.device_time().unwrap_or_default()))
        };
        timer.warm_up(|| again().map(drop))?;
        let times = (0..timer.repeats().max(3)).map(|_| again()).collect::<Result<Vec<_>, _>>()?;
        Ok((first, timer.measured(median(times)), started_ms))
    }

    /// Checks that a pushed graph still returns the expected results.
    fn check_again(&self, pushed: &mut Pushed) -> Result<(), String> {
        let found = pushed.run(&self.inputs).map_err(|error| format!("a neighbour got an error: {error}"))?;
        let is_right = worst(&floats(&found), &self.expected) <= TOLERANCE;
        is_right.then_some(()).ok_or_else(|| "a neighbour gets other results".to_owned())
    }
}

/// Runs a graph that must fail, and returns the error that its tenant gets.
fn misbehaves(
    graphs: &KernelGraphs,
    tenant: &TenantId,
    bundle: Result<Bundle, String>,
    inputs: &[Tensor],
) -> Result<String, String> {
    match Pushed::new(graphs, tenant, bundle)?.run(inputs) {
        Err(InferenceError::WorkerLost(why)) => Ok(why.to_string()),
        Err(other) => Err(format!("it got another error: {other}")),
        Ok(_) => Err("it ended as if nothing were wrong".to_owned()),
    }
}

fn told(what: &str, own: Result<String, String>, neighbour: Result<(), String>) -> Check {
    match own.and_then(|told| neighbour.map(|()| told)) {
        Ok(told) => Check { detail: told, ..Check::passed(STAGE, what) },
        Err(why) => Check::failed(STAGE, what, why),
    }
}

fn examples(arena: &Arena) -> Result<Vec<GraphCase>, String> {
    Ok(vec![chain(arena)?, jacobi(arena)?, resize(arena)?])
}

/// Two matrix products, with sizes that are no multiples of the tile size.
fn chain(arena: &Arena) -> Result<GraphCase, String> {
    const SIZES: [usize; 4] = [65, 33, 70, 17];
    let [m, k, n, p] = SIZES;
    let made = |rows: usize, columns: usize, step: usize| -> Vec<f32> {
        (0..rows * columns).map(|at| (at * step % 19) as f32 / 19.0 - 0.5).collect()
    };
    let product = |a: &[f32], b: &[f32], k: usize, n: usize| -> Vec<f32> {
        let row = |a: &[f32]| -> Vec<f32> {
            let element = |column| a.iter().zip(b.iter().skip(column).step_by(n)).map(|(a, b)| a * b).sum();
            (0..n).map(element).collect()
        };
        a.chunks(k).flat_map(row).collect()
    };
    let a = made(m, k, 7);
    let b = made(k, n, 5);
    let c = made(n, p, 3);
    let expected = product(&product(&a, &b, k, n), &c, n, p);
    let inputs = [(a, [m, k]), (b, [k, n]), (c, [n, p])];
    let inputs = inputs
        .into_iter()
        .map(|(values, dims)| of_floats(arena, &dims, &values))
        .collect::<Result<_, _>>()?;
    Ok(GraphCase { example: CHAIN, inputs, expected })
}

/// A hundred Jacobi sweeps.
fn jacobi(arena: &Arena) -> Result<GraphCase, String> {
    const SIDE: usize = 50;
    const SWEEPS: usize = 100;
    let source: Vec<f32> = (0..SIDE * SIDE).map(|at| (at % 11) as f32 / 11.0).collect();
    let mut x = vec![0.0; SIDE * SIDE];
    for _ in 0..SWEEPS {
        let at = |row: Option<usize>, column: Option<usize>| -> f32 {
            let inside = row.zip(column).filter(|(row, column)| *row < SIDE && *column < SIDE);
            inside.and_then(|(row, column)| x.get(row * SIDE + column).copied()).unwrap_or_default()
        };
        let swept = |(point, source): (usize, &f32)| {
            let row = point / SIDE;
            let column = point % SIDE;
            let around = at(row.checked_sub(1), Some(column))
                + at(Some(row + 1), Some(column))
                + at(Some(row), column.checked_sub(1))
                + at(Some(row), Some(column + 1));
            0.25 * (around + source)
        };
        x = source.iter().enumerate().map(swept).collect();
    }
    let guess = of_floats(arena, &[SIDE, SIDE], &vec![0.0; SIDE * SIDE])?;
    let inputs = vec![guess, of_floats(arena, &[SIDE, SIDE], &source)?];
    Ok(GraphCase { example: JACOBI, inputs, expected: x })
}

/// Image of one colour per channel, which looks the same at any size.
fn resize(arena: &Arena) -> Result<GraphCase, String> {
    const DIMS: [usize; 3] = [50, 31, 3];
    const SIDE: usize = 224;
    const COLOURS: [(u8, f32, f32); 3] = [(10, 0.485, 0.229), (128, 0.456, 0.224), (255, 0.406, 0.225)];
    let colours = COLOURS.map(|(colour, ..)| colour);
    let bytes: Vec<u8> = colours.iter().copied().cycle().take(DIMS.iter().product()).collect();
    let channel =
        |(colour, mean, deviation): &(u8, f32, f32)| (f32::from(*colour) / 255.0 - mean) / deviation;
    let expected =
        COLOURS.iter().flat_map(|colour| std::iter::repeat_n(channel(colour), SIDE * SIDE)).collect();
    Ok(GraphCase {
        example: RESIZE,
        inputs: vec![tensor(arena, ElementType::Uint8, &DIMS, &bytes)?],
        expected,
    })
}

fn square(arena: &Arena, side: u32) -> Result<Tensor, String> {
    let side = usize::try_from(side).map_err(|error| error.to_string())?;
    tensor(arena, ElementType::Fp32, &[side, side], &vec![0; 4 * side * side])
}

fn of_floats(arena: &Arena, dims: &[usize], values: &[f32]) -> Result<Tensor, String> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    tensor(arena, ElementType::Fp32, dims, &bytes)
}

fn tensor(arena: &Arena, element_type: ElementType, dims: &[usize], bytes: &[u8]) -> Result<Tensor, String> {
    let dims: Option<Vec<u32>> = dims.iter().map(|dim| u32::try_from(*dim).ok()).collect();
    let shape = Shape::new(&dims.unwrap_or_default()).map_err(|error| error.to_string())?;
    let data = arena.copy_of(bytes).map_err(|error| error.to_string())?;
    Tensor::new(element_type, shape, data).map_err(|error| error.to_string())
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    let floats = tensor.data().chunks_exact(4).filter_map(|bytes| bytes.try_into().ok());
    floats.map(f32::from_le_bytes).collect()
}
