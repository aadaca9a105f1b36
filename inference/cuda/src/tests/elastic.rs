//! Device memory after a burst of runs and loads.

use super::networks::MINILM;
use super::*;
use crate::elastic::{MAPPED_NS, WEIGHTS_NS};
use std::sync::mpsc::channel;
use std::time::Duration;

const SECOND_NS: u64 = 1_000_000_000;

/// The adjustments of one device over time, and its memory after each.
struct Clock<'a> {
    setup: &'a Setup,
    now_ns: u64,
}

impl Clock<'_> {
    /// Adjusts the memory each second for `time_ns`. Returns the bytes that the pool has after
    /// each adjustment.
    fn pass(&mut self, time_ns: u64) -> Vec<u64> {
        let seconds = time_ns.div_ceil(SECOND_NS);
        let adjust = |_| {
            self.now_ns += SECOND_NS;
            self.setup.gpu.adjust_memory(self.now_ns);
            self.pool_bytes()
        };
        (0..seconds).map(adjust).collect()
    }

    fn pool_bytes(&self) -> u64 {
        let usage = self.setup.gpu.pool.usage();
        usage.used_bytes + usage.idle_bytes
    }

    /// The bytes of whole blocks with weights of loaded models.
    fn weight_bytes(&self) -> u64 {
        let usage = self.setup.gpu.tensors.usage();
        assert_eq!(usage.idle_bytes, 0, "{usage:?}");
        usage.mapped_bytes - usage.spare_bytes
    }
}

#[test]
fn memory_falls_to_the_weights_in_use_and_then_to_nothing() {
    let setup = Setup::new(3);
    let outside_bytes = setup.fake.count("used_bytes") - setup.gpu.tensors.usage().spare_bytes;
    let kept = setup.load("digits", read(DIGITS));
    let left = setup.load("minilm", read(MINILM));
    let mut session = kept.session(1).unwrap();
    let large = setup.floats(&[256, 1, 8, 8], |at| (at % 17) as f32);
    let small = setup.floats(&[1, 1, 8, 8], |at| at as f32);
    run(&mut *session, &large).unwrap();
    let mut clock = Clock { setup: &setup, now_ns: setup.gpu.now_ns() };
    let burst_bytes = clock.pool_bytes();
    let slots_bytes = setup.gpu.slots.held_bytes();

    // The run slots follow the demand, and the weights of the unloaded model leave.
    drop(left);
    let bytes = clock.pass(WEIGHTS_NS + SECOND_NS);
    assert!(bytes.iter().all(|bytes| *bytes <= burst_bytes), "{bytes:?}");
    let held_bytes = setup.gpu.slots.held_bytes();
    assert!(held_bytes <= slots_bytes / 2, "{held_bytes} of {slots_bytes}");
    let spare_bytes = setup.gpu.tensors.usage().spare_bytes;
    assert!(spare_bytes > 0, "the next load is fast");
    assert_eq!(clock.pool_bytes(), clock.weight_bytes() + spare_bytes + held_bytes);

    // Without loads, only the weights in use remain.
    clock.pass(MAPPED_NS);
    let weight_bytes = clock.weight_bytes();
    assert!(weight_bytes > 0 && weight_bytes < burst_bytes);
    assert_eq!(clock.pool_bytes(), weight_bytes);
    run(&mut *session, &small).unwrap();

    drop((session, kept));
    clock.pass(WEIGHTS_NS + 10 * SECOND_NS);
    assert_eq!(clock.pool_bytes(), 0);
    assert!(setup.fake.count("used_bytes") <= outside_bytes);
    let again = setup.load("digits", read(DIGITS));
    run(&mut *again.session(1).unwrap(), &small).unwrap();
}

#[test]
fn blocks_in_turn_between_runs_stay_in_the_pool() {
    let setup = Setup::new(4);
    let mut clock = Clock { setup: &setup, now_ns: setup.gpu.now_ns() };
    clock.pass(MAPPED_NS + SECOND_NS);
    setup.gpu.pool.warm(clock.pool_bytes() + (8 << 20)).unwrap();
    let warmed_bytes = clock.pool_bytes();
    assert_eq!(clock.pass(SECOND_NS), [warmed_bytes], "idle for less than an interval");
    assert_eq!(clock.pass(SECOND_NS), [warmed_bytes - (8 << 20)]);
}

#[test]
fn concurrent_large_intermediates_map_no_memory_again() {
    /// Number of intermediates at once.
    const AT_ONCE: usize = 4;
    let setup = Setup::new(5);
    let gpu = &setup.gpu;
    let bytes = MEMORY_BYTES_MAX / 128;
    let mut taken = gpu.slots.take(None);
    let slot = taken.slot().unwrap();
    let from = slot.memory.prepare(bytes, OWNER, gpu.now_ns()).unwrap();
    let hand_over = || {
        let put = |_| gpu.intermediates.put(from, &slot.stream, OWNER, gpu.now_ns()).unwrap();
        let all: Vec<_> = (0..AT_ONCE).map(put).collect();
        all.into_iter().for_each(|index| gpu.intermediates.remove(index, OWNER).unwrap());
    };
    hand_over();
    let mapped = setup.fake.calls("cuMemMap");
    (0..3).for_each(|_| hand_over());
    assert_eq!(setup.fake.calls("cuMemMap"), mapped);
}

#[test]
fn empty_memory_of_intermediates_is_freed_before_cached_weights() {
    let setup = Setup::new(6);
    let gpu = &setup.gpu;
    let block_bytes = 2 << 20;
    let mut taken = gpu.slots.take(None);
    let slot = taken.slot().unwrap();
    let from = slot.memory.prepare(4 * block_bytes, OWNER, gpu.now_ns()).unwrap();
    let index = gpu.intermediates.put(from, &slot.stream, OWNER, gpu.now_ns()).unwrap();
    gpu.intermediates.remove(index, OWNER).unwrap();
    drop(setup.load("digits", read(DIGITS)));
    let cached_bytes = gpu.tensors.usage().idle_bytes;
    assert!(cached_bytes > 0);
    gpu.tensors.release_spare();

    let mapped_bytes = || gpu.intermediates.usage().mapped_bytes;
    assert_eq!(mapped_bytes(), 4 * block_bytes);
    let usage = gpu.pool.usage();
    let free_bytes = usage.capacity_bytes - usage.used_bytes;
    gpu.make_room_for_weights(free_bytes);
    assert_eq!(mapped_bytes(), 4 * block_bytes, "the weights fit");
    gpu.make_room_for_weights(free_bytes + block_bytes);
    assert_eq!(mapped_bytes(), 3 * block_bytes);
    assert!(gpu.give_up(3 * block_bytes));
    assert_eq!((mapped_bytes(), gpu.tensors.usage().idle_bytes), (0, cached_bytes));
    assert!(gpu.give_up(block_bytes));
    assert_eq!(gpu.tensors.usage().idle_bytes, 0);
}

#[test]
fn runs_take_other_slots_while_one_returns_memory() {
    let setup = Setup::new(7);
    let gpu = &setup.gpu;
    setup.fake.pause();
    let mut taken = gpu.slots.take(Some(0));
    let slot = taken.slot().unwrap();
    // The slot's memory is filled, and is not returned before that has ended.
    slot.memory.prepare(8 << 20, OWNER, 0).unwrap();
    drop(taken);
    let (sender, receiver) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| gpu.slots.settle(100 * SECOND_NS));
        scope.spawn(move || {
            while gpu.slots.held_bytes() > 0 {
                std::thread::yield_now();
            }
            sender.send(gpu.slots.take(Some(1)).slot().map(|slot| slot.number))
        });
        let number = receiver.recv_timeout(Duration::from_secs(20));
        setup.fake.resume();
        assert_eq!(number, Ok(Some(1)));
    });
    assert_eq!(gpu.slots.held_bytes(), 0);
}
