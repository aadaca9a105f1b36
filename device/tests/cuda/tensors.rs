use crate::support::{SEEDS, TestDevice};
use bytes::Bytes;
use weir_device::cuda::{
    BLOCK_BYTES, CopySource, CudaError, TensorGuard, TensorKey, TensorStore, TransferError, Wanted,
};
use weir_types::ContentHash;

const SECOND_NS: u64 = 1_000_000_000;

fn wanted(len: usize, seed: u8) -> Wanted {
    let period: Vec<u8> = (0..241).map(|i| i ^ seed).collect();
    let mut bytes = period.repeat(len / period.len() + 1);
    bytes.truncate(len);
    let bytes = Bytes::from(bytes);
    Wanted {
        key: TensorKey { hash: ContentHash::from_content(&bytes), layout: 0 },
        source: CopySource::Pageable(bytes),
    }
}

fn store(machine: &TestDevice, blocks: u64) -> TensorStore {
    TensorStore::new(&machine.pool(blocks * BLOCK_BYTES), &machine.engine(), 0).unwrap()
}

fn holds(machine: &TestDevice, tensor: &TensorGuard, wanted: &Wanted) -> bool {
    tensor.order(&machine.stream).unwrap();
    machine.read(tensor.span()) == wanted.source.bytes()
}

#[test]
fn model_arrives_group_by_group_and_shares_equal_tensors() {
    for seed in SEEDS {
        let machine = TestDevice::new(seed);
        let store = store(&machine, 64);
        let model: Vec<Vec<Wanted>> = (0..4)
            .map(|group| {
                (0..5).map(|number| wanted(1000 + 300_000 * number, (group * 5 + number) as u8)).collect()
            })
            .collect();
        let held = store.acquire(model.clone()).unwrap();
        for (tensors, wanted) in held.iter().zip(&model) {
            for (tensor, wanted) in tensors.iter().zip(wanted) {
                assert_eq!(tensor.span().address() % 256, 0);
                assert!(holds(&machine, tensor, wanted), "seed {seed}");
            }
        }
        let bytes = store.usage().held_bytes;
        let loaded = machine.fake.count("bytes_to_device");
        // Another model with one group in common, and one weight twice.
        let other = vec![model[2].clone(), vec![wanted(5000, 99), wanted(5000, 99)]];
        let again = store.acquire(other).unwrap();
        assert!(holds(&machine, &again[1][1], &wanted(5000, 99)));
        assert_eq!(again[1][0].span(), again[1][1].span());
        assert_eq!(again[0][1].span(), held[2][1].span());
        assert_eq!(store.usage().held_bytes, bytes + 5120);
        assert_eq!(machine.fake.count("bytes_to_device"), loaded + 5120);
        drop((held, again));
        assert_eq!((store.usage().held_bytes, store.usage().idle_bytes), (0, bytes + 5120));
    }
}

#[test]
fn concurrent_acquires_share_one_load() {
    for seed in SEEDS {
        let machine = TestDevice::new(seed);
        let store = store(&machine, 64);
        let model = vec![vec![wanted(10 << 20, 1)]];
        machine.fake.pause();
        let first = store.acquire(model.clone()).unwrap();
        let second = store.acquire(model.clone()).unwrap();
        machine.fake.resume();
        drop(first);
        assert!(holds(&machine, &second[0][0], &model[0][0]), "seed {seed}");
        second[0][0].wait().unwrap();
        assert_eq!(machine.fake.count("bytes_to_device"), 10 << 20);
    }
}

#[test]
fn unheld_tensors_are_evicted_oldest_first() {
    let machine = TestDevice::new(1);
    let store = store(&machine, 10);
    let models: Vec<_> = (0..3).map(|number| wanted(3 << 21, number)).collect();
    for (second, model) in models.iter().enumerate() {
        store.sweep(second as u64 * SECOND_NS, 100 * SECOND_NS);
        let held = store.acquire(vec![vec![model.clone()]]).unwrap();
        held[0][0].wait().unwrap();
    }
    assert_eq!(store.usage().idle_bytes, 9 * BLOCK_BYTES);
    // The first is used again, so the second is the oldest.
    store.sweep(10 * SECOND_NS, 100 * SECOND_NS);
    let kept = store.acquire(vec![vec![models[0].clone()]]).unwrap();
    let more = wanted(3 << 21, 9);
    let held = store.acquire(vec![vec![more.clone()]]).unwrap();
    assert!(holds(&machine, &held[0][0], &more));
    let there: Vec<_> = models.iter().map(|model| store.contains(&model.key)).collect();
    assert_eq!(there, [true, false, true]);
    // Held tensors are not evicted, and a request that did not fit leaves no tensors.
    let usage = store.usage();
    let error = store.acquire(vec![vec![wanted(100, 50), wanted(5 << 21, 51)]]).unwrap_err();
    assert!(matches!(error, TransferError::Device(CudaError::OutOfMemory(_))), "{error}");
    assert!(!store.contains(&wanted(100, 50).key));
    assert_eq!(store.usage().held_bytes, usage.held_bytes);
    assert!(holds(&machine, &kept[0][0], &models[0]), "its neighbours' going has not touched it");
}

#[test]
fn unheld_tensors_expire_after_keep_alive() {
    let machine = TestDevice::new(1);
    let store = store(&machine, 64);
    let model = wanted(3 << 20, 1);
    store.sweep(SECOND_NS, 10 * SECOND_NS);
    let held = store.acquire(vec![vec![model.clone()]]).unwrap();
    held[0][0].wait().unwrap();
    assert_eq!(store.sweep(100 * SECOND_NS, 10 * SECOND_NS), 0, "it is held");
    drop(held);
    assert_eq!(store.sweep(109 * SECOND_NS, 10 * SECOND_NS), 0);
    assert_eq!(store.sweep(110 * SECOND_NS, 10 * SECOND_NS), 3 << 20);
    assert_eq!(store.usage().mapped_bytes, 0);
    assert_eq!(store.reclaim(1), 0);
}

#[test]
fn load_without_waiters_is_cancelled_and_can_be_repeated() {
    let machine = TestDevice::new(6);
    let store = store(&machine, 200);
    let model = vec![vec![wanted(40 << 20, 1)]];
    machine.fake.pause();
    drop(store.acquire(model.clone()).unwrap());
    assert!(!store.contains(&model[0][0].key));
    let again = store.acquire(model.clone()).unwrap();
    machine.fake.resume();
    assert!(holds(&machine, &again[0][0], &model[0][0]));
    again[0][0].wait().unwrap();
    drop(again);
    store.reclaim(u64::MAX);
    assert_eq!((store.usage().idle_bytes, store.usage().mapped_bytes), (0, 0));
}

#[test]
fn store_can_be_dropped_before_its_tensors_and_during_a_load() {
    for seed in SEEDS {
        let machine = TestDevice::new(seed);
        let store = store(&machine, 64);
        let held = store.acquire(vec![vec![wanted(20 << 20, 1)], vec![wanted(100, 2)]]).unwrap();
        drop(store);
        if seed % 2 == 0 {
            held[1][0].wait().unwrap();
        }
    }
}
