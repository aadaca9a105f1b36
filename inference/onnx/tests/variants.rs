//! Many fine-tuned variants of one model: their common part is stored once, on disk and in memory.
//! A single test, so that no other code in the process allocates meanwhile.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot be set up has failed")]

mod support;

use std::sync::Arc;
use support::onnx::chain;
use support::{Cpu, MIB, floats};
use weir_inference::{ModelCache, ModelSource, RunRequest};

const VARIANTS: usize = 20;
/// Matrices of 1 MiB. The last one differs between variants, so 95 % of the weights are shared.
const LAYERS: usize = 20;
const SIZE: usize = 512;

/// Factor between the input and the output of a variant.
fn factor(variant: usize) -> f32 {
    2.0 + variant as f32
}

async fn variant(cpu: &Cpu, number: usize) -> Arc<ModelSource> {
    // All layers differ, and their product is 1.
    let backbone = (1..LAYERS).map(|i| (i as f32 + 1.0) / i as f32);
    let last = factor(number) / LAYERS as f32;
    let path = cpu.blobs().join("upload.onnx");
    std::fs::write(&path, chain(SIZE, &backbone.chain([last]).collect::<Vec<_>>())).unwrap();
    let source = cpu.source(&format!("variant-{number}"), &path).await;
    std::fs::remove_file(path).unwrap();
    source
}

/// Loads a variant, runs it, and leaves it in memory. Returns the time of the load.
async fn load(
    cpu: &Cpu,
    cache: &ModelCache,
    source: &Arc<ModelSource>,
    number: usize,
) -> std::time::Duration {
    let pin = cache.acquire(source, &[]).await.unwrap();
    let x = cpu.tensor(&[1, SIZE as u32], &[1.0_f32; SIZE]);
    let request = RunRequest { inputs: vec![("x".to_owned(), x)], ..RunRequest::default() };
    let outputs = pin.run(request).await.unwrap().outputs;
    let wrong = floats(&outputs[0].1).into_iter().find(|y| (y - factor(number)).abs() > 1e-3);
    assert_eq!(wrong, None, "variant {number} runs with weights of another");
    pin.load_time().unwrap()
}

/// Memory of this process in bytes: the mapped memory (Rss), and its proportional share (Pss).
fn memory() -> (u64, u64) {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let kib = |name: &str| {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    (kib("Rss:") << 10, kib("Pss:") << 10)
}

#[tokio::test]
async fn twenty_variants_take_a_fifth_of_their_separate_memory() {
    let cpu = Cpu::new();
    let cache = cpu.cache(1);
    // Warm-up, so that one-time allocations precede the measurement.
    let other = cpu.source("other", &support::own_model("wide.onnx")).await;
    drop(cache.acquire(&other, &[]).await.unwrap());
    cache.unload(&other.key).unwrap().await;
    let on_disk = || -> u64 {
        let files = std::fs::read_dir(cpu.blobs()).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
    };

    let (disk_before, (rss_before, pss_before)) = (on_disk(), memory());
    let mut sources = vec![variant(&cpu, 0).await];
    let first_time = load(&cpu, &cache, &sources[0], 0).await;
    let one_on_disk = on_disk() - disk_before;
    let one_accounted = cache.used_bytes();
    let rss_one = memory().0 - rss_before;
    let pss_one = memory().1 - pss_before;
    assert!(one_accounted >= LAYERS as u64 * MIB && rss_one >= LAYERS as u64 * MIB);

    let mut times = Vec::new();
    for number in 1..VARIANTS {
        sources.push(variant(&cpu, number).await);
        times.push(load(&cpu, &cache, &sources[number], number).await);
    }
    let rss = memory().0 - rss_before;
    let pss = memory().1 - pss_before;
    let of_one = |what: &str, one: u64, all: u64| {
        let apart = one * VARIANTS as u64;
        println!(
            "{what}: one takes {:.1} MiB, {VARIANTS} take {:.1} MiB, {:.1} % less than apart",
            one as f64 / MIB as f64,
            all as f64 / MIB as f64,
            100.0 - 100.0 * all as f64 / apart as f64
        );
        assert!(all * 5 <= apart, "{what}: {VARIANTS} variants take {all} bytes, one takes {one}");
    };
    of_one("on disk", one_on_disk, on_disk() - disk_before);
    of_one("as accounted", one_accounted, cache.used_bytes());
    of_one("resident (Rss)", rss_one, rss);
    of_one("resident (Pss)", pss_one, pss);
    times.sort();
    println!("load of the first {first_time:?}, of the others {:?} at the median", times[times.len() / 2]);
    // The accounted memory matches the measured memory.
    let accounted = cache.used_bytes();
    assert!(accounted.abs_diff(rss) * 4 <= rss, "{accounted} bytes are accounted for, and {rss} are there");

    // The variants are unloaded one by one, and the last one frees the shared part.
    for source in &sources[1..] {
        cache.unload(&source.key).unwrap().await;
    }
    assert!(cache.used_bytes().abs_diff(one_accounted) <= MIB, "{} bytes are left", cache.used_bytes());
    drop(cache.acquire(&sources[0], &[]).await.unwrap());
    cache.unload(&sources[0].key).unwrap().await;
    let left = memory().0.saturating_sub(rss_before);
    println!("{:.1} MiB are left when all have gone", left as f64 / MIB as f64);
    assert_eq!(cache.used_bytes(), 0);
    assert!(left <= 4 * MIB, "{left} bytes are left");
}
