//! Overhead of Weir per run: the same model in a plain ONNX Runtime session, and through the cache,
//! the queue and a device thread.
//!
//! ```sh
//! cargo bench -p weir-onnx --bench overhead -- MODEL.onnx ...
//! ```
//!
//! Each variant runs in separate processes, alternately. Two further measurements need no model:
//! the time to pin a resident model, and the time of a round trip through an idle device.
#![allow(clippy::unwrap_used, reason = "a measurement that cannot be set up has failed")]

#[path = "../tests/support/mod.rs"]
mod support;

use ort::session::Session;
use ort::session::builder::GraphOptimizationLevel;
use ort::value::Tensor as OrtTensor;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Cpu, id};
use weir_device::Arena;
use weir_inference::{
    CacheConfig, FakeBackend, ModelCache, ModelKey, ModelSource, Preparer, Profiles, RunRequest,
};
use weir_onnx::find_onnxruntime;
use weir_types::{Batching, ElementType};

const ROUNDS: usize = 5;
const MEASURED: Duration = Duration::from_secs(2);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--bare", model] => bare(Path::new(model)).print(),
        ["--weir", model] => weir(Path::new(model)).print(),
        _ => {
            idle_device();
            arguments.iter().for_each(|model| compare(model));
        }
    }
}

/// Cost of one run: median wall time and mean processor time.
struct Cost {
    clock: Duration,
    processor: Duration,
}

impl Cost {
    fn print(&self) {
        println!("{} {}", self.clock.as_nanos(), self.processor.as_nanos());
    }
}

fn compare(model: &str) {
    let mut costs = [(Vec::new(), Vec::new()), (Vec::new(), Vec::new())];
    for _ in 0..ROUNDS {
        for (way, (clock, processor)) in ["--bare", "--weir"].into_iter().zip(&mut costs) {
            let output = Command::new(std::env::current_exe().unwrap()).args([way, model]).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let output = String::from_utf8(output.stdout).unwrap();
            let mut times = output.split_whitespace().map(|time| Duration::from_nanos(time.parse().unwrap()));
            clock.push(times.next().unwrap());
            processor.push(times.next().unwrap());
        }
    }
    let name = Path::new(model).file_name().unwrap().display();
    let [bare, weir] =
        costs.map(|(clock, processor)| Cost { clock: median(clock), processor: median(processor) });
    for (what, bare, weir) in
        [("clock", bare.clock, weir.clock), ("processor", bare.processor, weir.processor)]
    {
        let more = (weir.as_secs_f64() - bare.as_secs_f64()) * 1e6;
        println!("{name}: {what}: bare {bare:.2?}, weir {weir:.2?}, {more:+.0} µs");
    }
}

/// A run of a session as a program without Weir would create it, with ONNX Runtime's defaults.
fn bare(model: &Path) -> Cost {
    let environment =
        ort::init_from(find_onnxruntime(None).unwrap()).unwrap().with_telemetry(false).build().unwrap();
    let builder =
        Session::builder(&environment).unwrap().with_optimization_level(GraphOptimizationLevel::All).unwrap();
    let mut session = builder.with_intra_threads(1).unwrap().commit_from_file(model).unwrap();
    let input = &session.inputs()[0];
    let name = input.name().to_owned();
    let shape = input.dtype().tensor_shape().unwrap().to_vec();
    let elements: i64 = shape.iter().product();
    let data = vec![0.5_f32; elements as usize];
    measure(|| {
        let value = OrtTensor::from_array((shape.clone(), data.clone())).unwrap();
        let outputs = session.run(ort::inputs![name.as_str() => value]).unwrap();
        assert!(outputs.len() > 0);
    })
}

/// A run through a pin, on tokio.
fn weir(model: &Path) -> Cost {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let cpu = Cpu::new();
    let source = runtime.block_on(cpu.source("model", model));
    let cache = cpu.cache(1);
    let pin = runtime.block_on(cache.acquire(&source, &[])).unwrap();
    let port = &pin.signature().inputs[0];
    let dimensions: Vec<u32> = port.shape.iter().map(|size| size.unwrap_or(1)).collect();
    let elements: u32 = dimensions.iter().product();
    let name = port.name.clone();
    let data = 0.5_f32.to_le_bytes().repeat(elements as usize);
    measure(|| {
        let inputs = vec![(name.clone(), cpu.raw(ElementType::Fp32, &dimensions, &data))];
        let completion = runtime.block_on(pin.run(RunRequest { inputs, ..RunRequest::default() })).unwrap();
        assert!(!completion.outputs.is_empty());
    })
}

/// The overhead of a run alone: a fake model that takes no time.
fn idle_device() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fake.json");
    std::fs::write(&file, r#"{ "resident_bytes": 1, "signature": { "inputs": [], "outputs": [] } }"#)
        .unwrap();
    let arena = Arena::new(1 << 20);
    let backend = Arc::new(FakeBackend::new(arena.clone()));
    let prepared = Arc::new(
        runtime.block_on(backend.prepare(&file, weir_types::Precision::default(), folder.path())).unwrap(),
    );
    let config = CacheConfig { capacity_bytes: 1 << 20, slots: 1, run_queue_len_max: 10 };
    let cache = ModelCache::start(config, backend, arena, Profiles::default()).unwrap();
    let source = Arc::new(ModelSource {
        key: ModelKey { id: id("fake"), generation: 1 },
        prepared,
        blobs: folder.path().to_owned(),
        slots: None,
        batching: Batching::default(),
        meter: weir_inference::Meter::default(),
    });
    let pin = runtime.block_on(cache.acquire(&source, &[])).unwrap();

    let batch = 1_000;
    let acquire = measure(|| {
        runtime.block_on(async {
            for _ in 0..batch {
                drop(cache.acquire(&source, &[]).await.unwrap());
            }
        });
    });
    println!("acquire and release of a resident model: {:.0?}", acquire.clock / batch);
    let through = measure(|| _ = runtime.block_on(pin.run(RunRequest::default())).unwrap());
    println!(
        "through an idle device and back: {:.1?}, {:.1?} of the processor",
        through.clock, through.processor
    );
}

fn measure(mut once: impl FnMut()) -> Cost {
    for _ in 0..5 {
        once();
    }
    let mut times = Vec::new();
    let started = Instant::now();
    let before = processor_time();
    while started.elapsed() < MEASURED {
        let one = Instant::now();
        once();
        times.push(one.elapsed());
    }
    let processor = (processor_time() - before) / u32::try_from(times.len()).unwrap();
    Cost { clock: median(times), processor }
}

/// Processor time of the whole process so far.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
