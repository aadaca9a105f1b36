//! Memory that remains after unloads. A single test, so that no other code in the process allocates
//! meanwhile.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot be set up has failed"
)]

mod support;

use support::{Cpu, floats, own_model};
use weir_inference::{Backend, Interrupt, Job, RunRequest, Session};

const CYCLES: usize = 200;

/// Resident memory of this process.
fn memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test]
async fn sessions_share_weights_and_unload_frees_them() {
    let cpu = Cpu::new();
    // 16 MiB of weights, and as much again for the packed copy.
    let source = cpu.source("wide", &own_model("wide.onnx")).await;
    let x = cpu.tensor(&[1, 2048], &[1.0_f32; 2048]);
    let job = Job { inputs: vec![x], outputs: vec![0] };

    let load = || cpu.backend.load(&source).unwrap();
    let run = |session: &mut Box<dyn Session>| {
        let outputs = session.run(&job, &Interrupt::default()).unwrap();
        assert_eq!(floats(&outputs[0])[..2], [1024.0, 1024.0]);
    };
    let model = load();
    let mut first = model.session(1).unwrap();
    run(&mut first);
    let one = memory_kib();
    let mut second = model.session(1).unwrap();
    run(&mut second);
    let two = memory_kib();
    println!("with one session {one} KiB, with two {two} KiB");
    assert!(two < one + 1024, "a second session takes {} KiB more", two - one);
    drop((first, second, model));

    // The remaining cycles use the cache, as a node does.
    let cache = cpu.cache(1);
    let cycle = async || {
        let pin = cache.acquire(&source, &[]).await.unwrap();
        let request =
            RunRequest { inputs: vec![("x".to_owned(), job.inputs[0].clone())], ..RunRequest::default() };
        pin.run(request).await.unwrap();
        let loaded = memory_kib();
        drop(pin);
        cache.unload(&source.key).unwrap().await;
        loaded
    };
    // The first cycle includes one-time allocations.
    cycle().await;
    let start = memory_kib();
    let loaded = cycle().await;
    assert!(
        loaded > start + (16 << 10),
        "the weights are there: {start} KiB without, {loaded} KiB with them"
    );
    for _ in 0..CYCLES {
        cycle().await;
    }
    let end = memory_kib();
    println!("at the start {start} KiB, after {CYCLES} cycles {end} KiB");
    assert!(end.abs_diff(start) * 20 <= start, "{start} KiB at the start, {end} KiB after {CYCLES} cycles");
}
