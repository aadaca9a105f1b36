use crate::support::{SEEDS, TestDevice, launch_scale_add};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use weir_device::Arena;
use weir_device::cuda::{
    BLOCK_BYTES, CopySource, PinnedMemory, PinnedSlice, Priority, Segment, Span, Stream, TransferError,
};
use weir_fake_cuda::Direction;

fn pattern(len: usize, seed: usize) -> Bytes {
    let period: Vec<u8> = (0..251).map(|i| ((i * 7 + seed * 13) % 251) as u8).collect();
    let mut bytes = period.repeat(len / period.len() + 1);
    bytes.truncate(len);
    bytes.into()
}

fn load(source: &Bytes, to: Span) -> Segment {
    Segment { from: CopySource::Pageable(source.clone()), to }
}

#[test]
fn copies_of_any_length_arrive_intact_from_any_memory() {
    for seed in SEEDS {
        let machine = TestDevice::new(seed);
        let engine = machine.engine();
        let block = BLOCK_BYTES as usize;
        for len in [1, 1000, block - 1, block, block + 1, 3 * block + 77] {
            let source = pattern(len, 1);
            let pinned = Arc::new(PinnedMemory::copy_of(&machine.context, &source).unwrap());
            let pinned = CopySource::Pinned(Arc::new(PinnedSlice::new(pinned, 0..len).unwrap()));
            let memory = [machine.allocate(len as u64 + 100), machine.allocate(len as u64)];
            let groups =
                [vec![load(&source, memory[0].span())], vec![Segment { from: pinned, to: memory[1].span() }]];
            // All blocks of the first group are on the device before the device starts with any.
            machine.fake.pause();
            let transfer = engine.load(&groups, Box::new(())).unwrap();
            transfer.order(0, &machine.stream).unwrap();
            machine.fake.resume();
            transfer.wait().unwrap();
            let first = machine.read(memory[0].span());
            assert!(first[..len] == source && first[len..] == [0; 100], "seed {seed}, {len} bytes");
            assert!(machine.read(memory[1].span()) == source, "seed {seed}, {len} bytes");
            let arena = Arena::new(64 << 20);
            let fetched = engine.fetch(memory[1].span(), &arena, Box::new(())).unwrap().wait().unwrap();
            assert!(fetched[..] == source[..], "seed {seed}, {len} bytes");
        }
    }
}

/// Computes with the first of two groups, on a stream that waits for the group or not. Returns
/// whether the result was right.
fn compute_behind(seed: u64, in_order: bool) -> bool {
    let machine = TestDevice::new(seed);
    let engine = machine.engine();
    let function = machine.kernel("weir_test_scale_add");
    let stream = Stream::new(&machine.context, Priority::Normal).unwrap();
    let x = machine.allocate(4096);
    let y = machine.allocate(4096);
    let rest = machine.allocate(8 * BLOCK_BYTES);
    machine.stream.fill(y.span(), 0).unwrap();
    machine.stream.synchronize().unwrap();
    let ones: Bytes = [1.0_f32; 1024].iter().flat_map(|one| one.to_ne_bytes()).collect::<Vec<_>>().into();
    let groups = vec![vec![load(&ones, x.span())], vec![load(&pattern(8 << 21, 2), rest.span())]];
    // The copy has been given to the device, which has not started it.
    machine.fake.pause();
    let transfer = engine.load(&groups, Box::new(())).unwrap();
    let waiting = if in_order { &stream } else { &machine.stream };
    transfer.order(0, waiting).unwrap();
    launch_scale_add(&stream, &function, y.span(), x.span(), 1.0);
    machine.fake.resume();
    stream.synchronize().unwrap();
    let right = machine.read(y.span()).chunks(4).all(|one| one == 1.0_f32.to_ne_bytes());
    transfer.wait().unwrap();
    right
}

/// A source that takes long to drop, as a large file that is unmapped: until the end of its copy is
/// known, if that is possible.
struct SlowSource {
    bytes: Bytes,
    known: Receiver<()>,
    in_time: Arc<AtomicBool>,
}

impl AsRef<[u8]> for SlowSource {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for SlowSource {
    fn drop(&mut self) {
        self.in_time.store(self.known.recv_timeout(Duration::from_secs(20)).is_ok(), Ordering::Release);
    }
}

#[test]
fn copy_ends_before_its_file_is_unmapped() {
    let machine = TestDevice::new(4);
    let engine = machine.engine();
    let memory = machine.allocate(BLOCK_BYTES);
    let (ended, known) = channel();
    let in_time = Arc::new(AtomicBool::new(false));
    let bytes = pattern(BLOCK_BYTES as usize, 3);
    let slow = SlowSource { bytes: bytes.clone(), known, in_time: in_time.clone() };
    let groups = [vec![load(&Bytes::from_owner(slow), memory.span())]];
    let transfer = engine.load(&groups, Box::new(())).unwrap();
    drop(groups);
    transfer.wait().unwrap();
    // Fails if the source has given up.
    let _ = ended.send(());
    assert!(machine.read(memory.span()) == bytes);
    drop(engine);
    assert!(in_time.load(Ordering::Acquire), "the caller waited for the source to drop");
}

#[test]
fn group_is_usable_while_the_next_is_in_flight() {
    assert!(SEEDS.into_iter().all(|seed| compute_behind(seed, true)));
    assert!(
        !SEEDS.into_iter().all(|seed| compute_behind(seed, false)),
        "the fake should show that the event is missing"
    );
}

#[test]
fn short_copy_overtakes_a_long_one() {
    let machine = TestDevice::new(9);
    let engine = machine.engine();
    let long = machine.allocate(60 * BLOCK_BYTES);
    let short = machine.allocate(1000);
    // The device takes only the first few blocks, so the short copy arrives while the long one is
    // in progress.
    machine.fake.pause();
    let first = engine.load(&[vec![load(&pattern(60 << 21, 3), long.span())]], Box::new(())).unwrap();
    let second = engine.load(&[vec![load(&pattern(1000, 4), short.span())]], Box::new(())).unwrap();
    machine.fake.resume();
    second.wait().unwrap();
    first.wait().unwrap();
    let copies = machine.fake.copies();
    let loads: Vec<_> = copies.iter().filter(|copy| copy.direction == Direction::ToDevice).collect();
    assert_eq!(loads.len(), 61);
    let place = loads.iter().position(|copy| copy.address == short.span().address()).unwrap();
    // The blocks already on the device, and one turn.
    assert!(place <= 8 + 2, "{place} blocks went before it");
}

#[test]
fn cancelled_copy_ends_early_and_releases_its_memory() {
    struct DropFlag(Arc<AtomicBool>);
    impl Drop for DropFlag {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let machine = TestDevice::new(2);
    let engine = machine.engine();
    let memory = machine.allocate(40 * BLOCK_BYTES);
    let dropped = Arc::new(AtomicBool::new(false));
    machine.fake.pause();
    let groups = vec![vec![load(&pattern(40 << 21, 5), memory.span())]];
    let transfer = engine.load(&groups, Box::new(DropFlag(dropped.clone()))).unwrap();
    transfer.cancel();
    assert!(!dropped.load(Ordering::SeqCst) || transfer.end().is_some());
    machine.fake.resume();
    assert_eq!(transfer.wait(), Err(TransferError::Cancelled));
    assert!(dropped.load(Ordering::SeqCst));
    assert_eq!(transfer.order(0, &machine.stream), Err(TransferError::Cancelled));
    assert!(machine.fake.copies().len() < 40);
    // The engine stays usable.
    engine
        .load(&[vec![load(&pattern(10, 6), memory.span().slice(0, 10).unwrap())]], Box::new(()))
        .unwrap()
        .wait()
        .unwrap();
}

#[test]
fn dropping_the_engine_ends_current_copies() {
    let machine = TestDevice::new(4);
    let engine = machine.engine();
    let memory = machine.allocate(40 * BLOCK_BYTES);
    let transfers: Vec<_> = (0..4)
        .map(|_| engine.load(&[vec![load(&pattern(40 << 21, 5), memory.span())]], Box::new(())).unwrap())
        .collect();
    drop(engine);
    assert!(transfers.iter().all(|transfer| matches!(transfer.wait(), Ok(()) | Err(TransferError::Stopped))));
    assert!(transfers.iter().any(|transfer| transfer.wait().is_err()));
}

#[test]
fn source_that_does_not_fit_is_refused() {
    let machine = TestDevice::new(1);
    let engine = machine.engine();
    let memory = machine.allocate(100);
    let error = engine.load(&[vec![load(&pattern(101, 1), memory.span())]], Box::new(())).unwrap_err();
    assert_eq!(error, TransferError::DoesNotFit { source_bytes: 101, place_bytes: 100 });
    let small = Arena::new(10);
    let error = engine.fetch(memory.span(), &small, Box::new(())).unwrap_err();
    assert!(matches!(error, TransferError::Host(_)), "{error}");
    assert_eq!(engine.under_way(), 0);
}

#[test]
fn empty_groups_complete_at_once() {
    let machine = TestDevice::new(1);
    let engine = machine.engine();
    let nothing = engine.load(&[vec![], vec![]], Box::new(())).unwrap();
    nothing.order(1, &machine.stream).unwrap();
    nothing.wait().unwrap();
    let memory = machine.allocate(10);
    let transfer =
        engine.load(&[vec![], vec![load(&pattern(10, 1), memory.span())], vec![]], Box::new(())).unwrap();
    for group in 0..3 {
        transfer.order(group, &machine.stream).unwrap();
    }
    assert_eq!(machine.read(memory.span()), pattern(10, 1));
    transfer.wait().unwrap();
}
