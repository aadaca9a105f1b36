//! Tests of `weir doctor --gpu` on the fake driver, within one process.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot be set up has failed")]

use super::chains::same;
use super::check;
use crate::config::{CheckConfig, CheckFailure};
use crate::outcome::{Check, OperationTier};
use crate::progress::StageProgress;
use crate::stage::{CaseSelection, Stage};
use std::path::{Path, PathBuf};
use weir_cuda::IntermediateLimits;
use weir_cuda::executor::{CompilerConfig, FLOPS_MIN, Gpu, GpuConfig, INSTRUCTIONS_MIN};
use weir_device::Arena;
use weir_device::cuda::{Devices, Search};
use weir_fake_cuda::Fake;
use weir_kernels::{Chain, Example};

const MEMORY_BYTES_MAX: u64 = 2 << 30;
const DIGITS: &str = "functions/classify-digits/model/digits.onnx";

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Setup for running stages on a fake driver.
struct Stages {
    config: CheckConfig,
    devices: Devices,
    fake: Fake,
}

impl Stages {
    fn new(fake: Fake) -> Self {
        let search = Search { driver: Some(fake.path().to_owned()), ..Search::default() };
        let devices = Devices::discover(&search).unwrap();
        // The fake libraries are in the folder of the fake driver.
        let search = Search { folders: vec![fake.path().with_file_name("")], ..search };
        let config = CheckConfig {
            ordinal: 0,
            memory_bytes_max: MEMORY_BYTES_MAX,
            models: Vec::new(),
            batches: vec![1],
            repeats: 1,
            warm_up_ms: 0,
            library_flops_min: FLOPS_MIN,
            selection: CaseSelection::default(),
            search,
        };
        Self { config, devices, fake }
    }

    fn only(mut self, case: &str) -> Self {
        self.config.selection.only = vec![case.to_owned()];
        self
    }

    fn events(&self, stage: Stage) -> (Vec<StageProgress>, Result<(), CheckFailure>) {
        let mut events = Vec::new();
        let ended = check(&self.devices, &self.config, stage, &mut |event| events.push(event));
        (events, ended)
    }

    fn checks(&self, stage: Stage) -> Vec<Check> {
        let (events, ended) = self.events(stage);
        ended.unwrap();
        checks(&events)
    }
}

fn checks(events: &[StageProgress]) -> Vec<Check> {
    let check = |event: &StageProgress| match event {
        StageProgress::Check(check) => Some((**check).clone()),
        StageProgress::Case(_) | StageProgress::Launches(_) => None,
    };
    events.iter().filter_map(check).collect()
}

fn cases(events: &[StageProgress]) -> Vec<String> {
    let case = |event: &StageProgress| match event {
        StageProgress::Case(case) => Some(case.clone()),
        StageProgress::Launches(_) | StageProgress::Check(_) => None,
    };
    events.iter().filter_map(case).collect()
}

#[test]
fn every_check_passes_and_belongs_to_a_listed_case() {
    let mut stages = Stages::new(Fake::new(4));
    stages.config.models = vec![repository(DIGITS)];
    stages.config.batches = vec![1, 3];
    // The test executable is not a worker. The end-to-end tests run the stages that need a worker.
    let in_workers = [Stage::Worker, Stage::KernelGraphs];
    for stage in Stage::ALL.into_iter().filter(|stage| !in_workers.contains(stage)) {
        let (events, ended) = stages.events(stage);
        ended.unwrap();
        let found = cases(&events);
        let checks = checks(&events);
        assert!(!checks.is_empty(), "{stage} checks nothing");
        let failed: Vec<_> = checks.iter().filter(|check| !check.passed).collect();
        assert!(failed.is_empty(), "{failed:#?}");
        if stage != Stage::Environment {
            let listed = stage.cases(&stages.config);
            // With one GPU there is no peer device for a hand-over.
            let listed: Vec<_> = listed.into_iter().filter(|case| !case.contains("from a sibling")).collect();
            assert_eq!(found, listed, "{stage}");
            assert!(checks.iter().all(|check| check.case.is_some()), "{checks:#?}");
        }
        for tier in [OperationTier::CublasLt, OperationTier::Nvrtc] {
            let by_library = checks.iter().filter(|check| check.tier == Some(tier)).count();
            assert_eq!(by_library > 0, stage == Stage::Operations, "{tier}: {checks:#?}");
        }
        // Checks with a compute rate also report the share of the floor.
        let has_floor = |check: &&Check| check.share_of_floor.is_some_and(|share| share > 0.0);
        let shares = checks.iter().filter(has_floor).count();
        let computing = checks.iter().filter(|check| check.flops_per_s.is_some()).count();
        assert!(shares >= computing.min(1), "{stage}: {shares} of {computing}");
    }
}

#[test]
fn timings_include_the_measured_clocks() {
    let stages = Stages::new(Fake::new(4)).only("launch overhead");
    let checks = stages.checks(Stage::Launches);
    assert_eq!(checks.len(), 2, "{checks:#?}");
    for check in checks {
        let clocks = check.clocks.unwrap();
        assert_eq!((clocks.sm_clock_mhz, clocks.memory_clock_mhz), (Some(1_980), Some(3_201)));
        assert_eq!((clocks.pcie_generation, clocks.pcie_width), (Some(5), Some(16)));
        assert_eq!(clocks.power_w, Some(123.5));
    }
}

#[test]
fn loads_from_the_page_cache_and_the_pinned_cache_have_goals() {
    let stages = Stages::new(Fake::new(4)).only("loads from host memory");
    let checks = stages.checks(Stage::Transfers);
    let what: Vec<_> = checks.iter().map(|check| check.what.as_str()).collect();
    assert_eq!(
        what,
        ["page cache", "pinned cache"].map(|from| format!("102400 KiB to the device, from the {from}"))
    );
    for check in checks {
        assert!(check.passed && check.goal.is_some() && check.bytes_per_s.is_some(), "{check:#?}");
        assert!(check.detail.contains(" copy threads, which copy at most "), "{check:#?}");
    }
}

#[test]
fn every_kernel_module_has_a_load_time_in_both_formats() {
    let stages = Stages::new(Fake::new(4));
    let loaded = stages.checks(Stage::Launches);
    for module in weir_kernels::KernelModule::ALL {
        for form in ["machine code", "PTX"] {
            let what = format!("module {} from {form}", module.name());
            let check = loaded.iter().find(|check| check.what == what).unwrap();
            assert!(check.time_ns.is_some() && check.detail.ends_with(" bytes"), "{check:?}");
        }
    }
}

#[test]
fn wrong_values_report_position_and_launch() {
    let fake = Fake::new(4);
    fake.set("idle_kernel", "reduce_f32");
    let stages = Stages::new(fake).only("sum of rows, fp32");
    let checks = stages.checks(Stage::Operations);
    let [check] = &checks[..] else { panic!("{checks:#?}") };
    let worst = check.worst.unwrap();
    assert!(!check.passed && worst.expected != worst.found, "{check:?}");
    let [launch] = &check.launches[..] else { panic!("{check:?}") };
    assert!(launch.kernel == "reduce_f32" && launch.grid[0] > 0 && launch.block[0] > 0);
    assert_eq!(check.case.as_deref(), Some("sum of rows, fp32, own"));
}

#[test]
fn fault_ends_stage_in_announced_case() {
    let fake = Fake::new(4);
    fake.set("fault_kernel", "reduce_f32");
    let mut stages = Stages::new(fake);
    stages.config.selection.only =
        ["softmax, fp32", "sum of rows, fp32", "top 5"].map(str::to_owned).to_vec();
    let (events, ended) = stages.events(Stage::Operations);
    assert!(ended.unwrap_err().is_device_lost());
    assert_eq!(cases(&events), ["softmax, fp32, own", "sum of rows, fp32, own"]);
    let Some(StageProgress::Launches(launches)) = events.last() else { panic!("{events:#?}") };
    assert_eq!(launches[0].kernel, "reduce_f32");
    assert!(checks(&events).iter().all(|check| check.passed));
}

#[test]
fn failed_driver_call_fails_only_its_case() {
    let stages = Stages::new(Fake::new(4));
    let expected = stages.checks(Stage::Memory).len();
    // The first allocation of the stage other than the device's own belongs to a slot.
    let fake = Fake::new(4);
    let stages = Stages::new(fake);
    let mut failed = false;
    let mut checked = Vec::new();
    let ended = check(&stages.devices, &stages.config, Stage::Memory, &mut |event| match event {
        StageProgress::Case(case)
            if case.starts_with("memory handed over") || case.contains("another tenant") =>
        {
            failed = true;
            stages.fake.fail_allocations(0, 1);
        }
        StageProgress::Check(check) => checked.push(*check),
        StageProgress::Case(_) | StageProgress::Launches(_) => {}
    });
    ended.unwrap();
    assert!(failed && checked.len() == expected, "{checked:#?}");
    let wrong: Vec<_> = checked.iter().filter(|check| !check.passed).collect();
    assert_eq!(wrong.len(), 1, "{wrong:#?}");
    assert_eq!(wrong[0].case.as_deref(), Some("memory handed to another tenant"));
}

#[test]
fn library_start_failure_fails_one_check() {
    let fake = Fake::new(1);
    fake.set("cublaslt_create", 1);
    let stages = Stages::new(fake);
    let failed: Vec<_> = stages.checks(Stage::Operations).into_iter().filter(|check| !check.passed).collect();
    assert_eq!(failed.len(), 1, "all but the library is as it should be: {failed:#?}");
    assert!(failed[0].what == "cuBLASLt" && failed[0].detail.contains("does not start"), "{failed:#?}");
}

#[test]
fn context_bytes_exclude_installed_libraries() {
    let fake = Fake::new(4);
    fake.set("context_bytes", 300 << 20);
    let stages = Stages::new(fake).only("context");
    let checks = stages.checks(Stage::Memory);
    let found = checks[0].memory_bytes.unwrap() >> 20;
    assert!((300..332).contains(&found), "{checks:#?}");
}

#[test]
fn intermediates_are_handed_over_between_peer_devices() {
    let run = |devices: u32, peer_access: u32| {
        let fake = Fake::new(5);
        fake.set("devices", devices).set("peer_access", peer_access);
        let stages = Stages::new(fake);
        let mut checks = stages.checks(Stage::HandingOver);
        assert!(checks.iter().all(|check| check.passed), "{checks:#?}");
        let goals: Vec<_> = checks.iter().filter(|check| check.goal.is_some()).collect();
        assert!(goals.iter().all(|check| check.what.starts_with("16384") || check.what.starts_with("65536")));
        (checks.len(), goals.len(), checks.pop().unwrap(), stages.fake.count("bytes_between_devices"))
    };
    // Each hand-over runs once for the comparison of the bytes, and four times for the measurement.
    let (count, goals, last, between) = run(2, 1);
    let sizes = (64 << 10) + (1 << 20) + (16 << 20) + (64 << 20);
    assert_eq!((count, goals, between), (16, 4, 5 * sizes));
    assert!(last.what.contains("sibling") && last.bytes_per_s.is_some(), "{last:?}");
    for (devices, peer_access, why) in [(1, 1, "there is one GPU"), (2, 0, "no other")] {
        let (count, goals, last, between) = run(devices, peer_access);
        assert_eq!((count, goals, between), (9, 2, 0));
        assert!(last.detail.contains(why), "{last:?}");
    }
}

#[test]
fn every_instruction_gives_the_same_bits_compiled_and_interpreted() {
    let fake = Fake::new(5);
    let compiler = CompilerConfig { path: fake.nvrtc(12), instructions_min: INSTRUCTIONS_MIN };
    let config = GpuConfig {
        ordinal: 0,
        memory_bytes_max: MEMORY_BYTES_MAX,
        slots: 1,
        intermediates: IntermediateLimits::default(),
        pinned_cache_bytes_max: 0,
        library: None,
        compiler: Some(compiler),
    };
    let stages = Stages::new(fake);
    let gpu = Gpu::open(&stages.devices, &config, &Arena::new(1 << 30)).unwrap();
    for (number, example) in Example::all().iter().enumerate() {
        let compared = same(&gpu, example, &mut |_| ()).unwrap();
        compared.unwrap_or_else(|why| panic!("example {number}, {:?}: {why}", example.op.program));
    }
    let launched = stages.fake.count(&format!("launches of {}", Chain::KERNEL));
    assert_eq!(launched, Example::all().len() as u64);
}
