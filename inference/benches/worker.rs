//! What it costs that models run in a worker: the way there and back, beside the run itself, on the fake driver. The same as `weir doctor --gpu --stage
//! worker`, which measures it on a real one.
//!
//! `cargo bench --package weir-inference --features cuda --bench worker`
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement that cannot be set up has failed"
)]

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use weir_device::cuda::{Devices, Search};
use weir_inference::gpu_check::{CheckConfig, Stage, check};
use weir_inference::{DEVICE_WORKER_COMMAND, device_worker_main};

fn main() -> ExitCode {
    // The worker is this same program.
    if std::env::args().nth(1).is_some_and(|argument| argument == DEVICE_WORKER_COMMAND) {
        return device_worker_main();
    }
    let search = Search { driver: Some(weir_fake_cuda::library()), folders: Vec::new() };
    let devices = Arc::new(Devices::discover(&search).unwrap());
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../functions/classify-digits/model/digits.onnx");
    let config =
        CheckConfig { ordinal: 0, memory_bytes_max: 256 << 20, models: vec![digits], repeats: 1_000 };
    let checked = check(&devices, &config, Stage::Worker, &mut |check| {
        let time_us = check.time_ns.unwrap_or_default() / 1_000;
        println!("{:48} {time_us:8} us  {}", check.what, check.detail);
    });
    checked.unwrap();
    ExitCode::SUCCESS
}
