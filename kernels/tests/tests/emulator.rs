//! Tests of the errors that the emulator detects.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use weir_kernels::{Argument, Kernel, KernelModule, Launch, LaunchCost};
use weir_kernels_tests::Emulator;

const ELEMENTS: usize = 64;

/// A launch of one block of `threads` on one or two buffers of 64 floats.
fn launch(name: &str, threads: u32, buffers: usize) -> Launch<usize> {
    Launch {
        kernel: Kernel { module: KernelModule::Copy, name: name.to_owned() },
        grid: [1, 1, 1],
        block: [threads, 1, 1],
        shared_bytes: 0,
        arguments: (0..buffers).map(Argument::Address).collect(),
        cost: LaunchCost::default(),
        chain: None,
    }
}

fn run(launch: Launch<usize>, order: u32, sanitised: bool) -> Result<Vec<f32>, String> {
    let buffers = vec![vec![0; ELEMENTS * 4]; 2];
    let mut emulator = Emulator::start(sanitised).unwrap();
    let after = emulator.run(&[launch], &buffers, order).map_err(|error| format!("{error:#}"))?;
    Ok(after[0].chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect())
}

#[test]
fn divergent_barrier_is_reported() {
    let error = run(launch("faulty_barriers", 64, 1), 0, false).unwrap_err();
    assert!(error.contains("different barriers") && error.contains("faulty.cpp:"), "{error}");
    let error = run(launch("faulty_wait", 64, 1), 0, false).unwrap_err();
    assert!(error.contains("wait for others that do not come"), "{error}");
}

#[test]
fn shuffle_with_exited_lanes_is_reported() {
    let error = run(launch("faulty_shuffle", 32, 1), 0, false).unwrap_err();
    assert!(error.contains("shuffle") && error.contains("ended"), "{error}");
}

#[test]
fn missing_barrier_changes_results_in_some_order() {
    let right: Vec<f32> = (0..64).rev().map(|value| value as f32).collect();
    let wrong = [0, 1, 2, 3]
        .into_iter()
        .filter(|order| run(launch("faulty_race", 64, 1), *order, false).unwrap() != right);
    assert_eq!(
        wrong.count(),
        4,
        "the neighbour at the other end runs later for half of the threads, whatever the order"
    );
}

#[test]
fn asynchronous_copy_is_invisible_before_wait() {
    let made = run(launch("faulty_copy", 32, 2), 0, false).unwrap();
    assert!(made[..32].iter().all(|value| *value != 0.0), "the copy was of zeroes: {made:?}");
}

#[test]
fn sanitiser_reports_out_of_bounds_accesses() {
    for name in ["faulty_store", "faulty_shared"] {
        let error = run(launch(name, 64, 1), 0, true).unwrap_err();
        assert!(error.contains("heap-buffer-overflow") && error.contains(name), "{error}");
    }
}

#[test]
fn launch_over_limits_is_rejected() {
    let mut many = launch("faulty_race", 64, 1);
    many.block = [65, 1, 1];
    assert!(run(many, 0, false).unwrap_err().contains("launch bounds"));
    let mut none = launch("faulty_race", 64, 1);
    none.grid = [0, 1, 1];
    assert!(run(none, 0, false).unwrap_err().contains("launch of nothing"));
    assert!(run(launch("faulty_race", 64, 2), 0, false).unwrap_err().contains("takes 1 arguments"));
}
