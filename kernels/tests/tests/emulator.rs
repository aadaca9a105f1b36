//! What the emulator is there to find, it finds.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use weir_kernels::{Argument, Cost, Kernel, Launch, Module};
use weir_kernels_tests::Emulator;

const ELEMENTS: usize = 64;

/// One block of `threads` of a kernel on one or two buffers of 64 floats.
fn launch(name: &str, threads: u32, buffers: usize) -> Launch<usize> {
    Launch {
        kernel: Kernel { module: Module::Copy, name: name.to_owned() },
        grid: [1, 1, 1],
        block: [threads, 1, 1],
        shared_bytes: 0,
        arguments: (0..buffers).map(Argument::Address).collect(),
        cost: Cost::default(),
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
fn barriers_that_not_all_threads_reach_are_reported() {
    let error = run(launch("faulty_barriers", 64, 1), 0, false).unwrap_err();
    assert!(error.contains("different barriers") && error.contains("faulty.cpp:"), "{error}");
    let error = run(launch("faulty_wait", 64, 1), 0, false).unwrap_err();
    assert!(error.contains("wait for others that do not come"), "{error}");
}

#[test]
fn a_shuffle_among_lanes_that_are_gone_is_reported() {
    let error = run(launch("faulty_shuffle", 32, 1), 0, false).unwrap_err();
    assert!(error.contains("shuffle") && error.contains("ended"), "{error}");
}

#[test]
fn a_missing_barrier_shows_in_some_order() {
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
fn what_is_not_waited_for_is_not_there() {
    let made = run(launch("faulty_copy", 32, 2), 0, false).unwrap();
    assert!(made[..32].iter().all(|value| *value != 0.0), "the copy was of zeroes: {made:?}");
}

#[test]
fn accesses_past_a_buffer_or_a_shared_variable_are_reported_by_the_sanitiser() {
    for name in ["faulty_store", "faulty_shared"] {
        let error = run(launch(name, 64, 1), 0, true).unwrap_err();
        assert!(error.contains("heap-buffer-overflow") && error.contains(name), "{error}");
    }
}

#[test]
fn launches_past_the_limits_are_refused() {
    let mut many = launch("faulty_race", 64, 1);
    many.block = [65, 1, 1];
    assert!(run(many, 0, false).unwrap_err().contains("launch bounds"));
    let mut none = launch("faulty_race", 64, 1);
    none.grid = [0, 1, 1];
    assert!(run(none, 0, false).unwrap_err().contains("launch of nothing"));
    assert!(run(launch("faulty_race", 64, 2), 0, false).unwrap_err().contains("takes 1 arguments"));
}
