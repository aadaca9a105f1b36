//! Tests of reloads of evicted models, and of the driver calls while serving.

use super::{DIGITS, Setup, assert_close, expected, read, run, values};
use crate::model::{CudaModel, ModelFiles};
use crate::weights::PinnedLookups;
use weir_fake_cuda::Fake;
use weir_inference::{InferenceError, Model};
use weir_kernels::Precision;

fn answer(setup: &Setup, model: &dyn Model) -> Vec<f32> {
    let input = setup.floats(&[3, 1, 8, 8], |at| (at * 5 % 17) as f32 / 17.0);
    values(&run(&mut *model.session(1).unwrap(), &input).unwrap().remove(0))
}

#[test]
fn evicted_model_is_reloaded_from_pinned_copies() {
    for seed in 1..5 {
        let setup = Setup::new(seed);
        let model = setup.load("digits", read(DIGITS));
        let first = answer(&setup, &*model);
        setup.gpu.pinned.settle();
        let pinned = setup.gpu.pinned.usage();
        assert!(pinned.used_bytes > 0 && pinned.hits == 0, "{pinned:?}");
        drop(model);
        setup.gpu.trim();
        assert_eq!(setup.gpu.tensors.usage().idle_bytes, 0, "the device has none of it");
        let model = setup.load("digits", read(DIGITS));
        assert!(answer(&setup, &*model) == first, "seed {seed}");
        let again = setup.gpu.pinned.usage();
        assert!(again.hits > 0 && again.misses == pinned.misses, "{again:?}");
        assert_eq!(again.used_bytes, pinned.used_bytes, "nothing is pinned twice");
    }
}

#[test]
fn serving_makes_no_pinning_or_mapping_calls() {
    let setup = Setup::new(2);
    setup.gpu.pinned.settle();
    let calls = |function| setup.fake.calls(function);
    let pinned = calls("cuMemHostAlloc");
    for _ in 0..3 {
        let mapped = calls("cuMemSetAccess");
        let model = setup.begin_load("digits", read(DIGITS));
        assert_eq!(calls("cuMemSetAccess"), mapped, "the memory was mapped ahead");
        model.arrive().unwrap();
        answer(&setup, &*model);
        drop(model);
        setup.gpu.pinned.settle();
        setup.gpu.tensors.trim();
    }
    assert_eq!((calls("cuMemHostAlloc"), calls("cuMemFreeHost")), (pinned, 0));
}

#[test]
fn premapped_memory_is_freed_for_runs() {
    // Room for the weights and little more than one run of the digits model.
    let setup = Setup::with(Fake::new(1), 64 << 20, Precision::Fp32);
    let spare = setup.gpu.tensors.usage().spare_bytes;
    assert!(spare > 0);
    let free = setup.gpu.pool.usage().capacity_bytes - setup.gpu.pool.usage().used_bytes;
    let mut taken = setup.gpu.slots.take(None);
    let slot = taken.slot().unwrap();
    let owner = weir_device::cuda::MemoryOwner(1);
    setup.gpu.make_room(|| slot.memory.prepare(free + spare, owner, 0).map(drop)).unwrap();
    assert_eq!(setup.gpu.tensors.usage().spare_bytes, 0);
}

#[test]
fn loads_count_the_bytes_that_they_copy_from_the_pinned_cache_and_from_files() {
    let setup = Setup::new(3);
    let source = setup.source("digits", read(DIGITS));
    let files = ModelFiles::for_source(&source).unwrap();
    let load = || {
        let model = CudaModel::load(setup.gpu.clone(), &files).unwrap();
        model.arrive().unwrap();
        setup.gpu.pinned.settle();
        model
    };
    let first = load();
    let PinnedLookups { hit_bytes, miss_bytes } = first.lookups();
    assert!(hit_bytes == 0 && miss_bytes > 0, "{miss_bytes}");
    assert_eq!(load().lookups(), PinnedLookups::default(), "the device has the weights");
    drop(first);
    setup.gpu.trim();
    assert_eq!(load().lookups(), PinnedLookups { hit_bytes: miss_bytes, miss_bytes: 0 });
}

/// A load must reject wrong bytes from every source.
#[test]
fn damaged_file_is_rejected_despite_a_valid_pinned_copy() {
    let setup = Setup::new(6);
    let source = setup.source("digits", read(DIGITS));
    let files = ModelFiles::for_source(&source).unwrap();
    let load = || CudaModel::load(setup.gpu.clone(), &files).unwrap();
    load().arrive().unwrap();
    setup.gpu.pinned.settle();
    let skeleton = source.prepared.variants[0].skeleton.to_string();
    let paths = std::fs::read_dir(setup.blobs.path()).unwrap().map(|file| file.unwrap().path());
    let paths: Vec<_> = paths.filter(|path| !path.ends_with(&skeleton)).collect();
    assert!(!paths.is_empty());
    for path in paths {
        let right = std::fs::read(&path).unwrap();
        std::fs::write(&path, right.iter().map(|byte| byte ^ 0x40).collect::<Vec<_>>()).unwrap();
        setup.gpu.trim();
        let model = load();
        let input = setup.floats(&[1, 1, 8, 8], |at| at as f32 / 64.0);
        let told = run(&mut *model.session(1).unwrap(), &input).unwrap_err();
        assert!(matches!(told, InferenceError::Load { .. }), "{told:?}");
        assert!(model.arrive().is_err());
        std::fs::write(&path, right).unwrap();
        let model = load();
        let found = run(&mut *model.session(1).unwrap(), &input).unwrap().remove(0);
        assert_close(&values(&found), &expected(read(DIGITS), &input), 1e-5);
    }
}
