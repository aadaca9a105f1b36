//! Overhead of running models in a worker process: the round trip in addition to the run, on the
//! fake driver. `weir doctor --gpu --stage worker` measures the same on a real driver. For
//! comparison, the benchmark measures the minimum cost of a worker: two wake-ups.
//!
//! `cargo bench --package weir-gpu-check --bench worker`
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement that cannot be set up has failed"
)]

use std::hint::black_box;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use weir_cuda::{DEVICE_WORKER_COMMAND, device_worker_main};
use weir_device::cuda::{Devices, Search};
use weir_gpu_check::{CaseSelection, CheckConfig, FLOPS_MIN, Stage, StageProgress, WARM_UP_MS, check};

/// Repetitions of each measurement.
const REPEATS: u32 = 1_000;

fn main() -> ExitCode {
    // The worker is this same program.
    if std::env::args().nth(1).is_some_and(|argument| argument == DEVICE_WORKER_COMMAND) {
        return device_worker_main();
    }
    println!("{:48} {:8.1} us", "a byte to a thread that computes, and back", a_byte_and_back());
    let search = Search { driver: Some(weir_fake_cuda::library()), ..Search::default() };
    let devices = Devices::discover(&search).unwrap();
    let digits =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../functions/classify-digits/model/digits.onnx");
    let config = CheckConfig {
        ordinal: 0,
        memory_bytes_max: 256 << 20,
        models: vec![digits],
        batches: vec![1],
        repeats: REPEATS,
        warm_up_ms: WARM_UP_MS,
        library_flops_min: FLOPS_MIN,
        selection: CaseSelection::default(),
        search,
    };
    let checked = check(&devices, &config, Stage::Worker, &mut |event| {
        let StageProgress::Check(check) = event else { return };
        let time_us = check.time_ns.map(Duration::from_nanos).unwrap_or_default().as_secs_f64() * 1e6;
        println!("{:48} {time_us:8.1} us  {}", check.what, check.detail);
    });
    checked.unwrap();
    ExitCode::SUCCESS
}

/// Median time in microseconds of a round trip to another thread, without the thread's computation,
/// which takes about as long as a run.
fn a_byte_and_back() -> f64 {
    const COMPUTES: Duration = Duration::from_millis(2);
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    let echo = move || {
        let mut byte = [0];
        while theirs.read_exact(&mut byte).is_ok() {
            let began = Instant::now();
            while began.elapsed() < COMPUTES {
                black_box(&byte);
            }
            let took_ns = u64::try_from(began.elapsed().as_nanos()).unwrap();
            theirs.write_all(&took_ns.to_le_bytes()).unwrap();
        }
    };
    let thread = std::thread::spawn(echo);
    let mut times: Vec<f64> = (0..REPEATS)
        .map(|_| {
            let began = Instant::now();
            ours.write_all(&[0]).unwrap();
            let mut took_ns = [0; 8];
            ours.read_exact(&mut took_ns).unwrap();
            (began.elapsed() - Duration::from_nanos(u64::from_le_bytes(took_ns))).as_secs_f64() * 1e6
        })
        .collect();
    drop(ours);
    thread.join().unwrap();
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}
