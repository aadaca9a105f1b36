//! Memory of one device that another reads where it lies.

use crate::support::{Machine, SEEDS, devices};
use std::sync::Arc;
use weir_device::Arena;
use weir_device::cuda::{
    Allocation, BLOCK_BYTES, CommLimits, CommStore, CudaError, Exported, Held, Imported, Owner, Place,
    Priority, Stream,
};
use weir_fake_cuda::Fake;

const ONE: Owner = Owner(1);

/// A driver with two devices, of which the first is held.
fn machine(seed: u64) -> Machine {
    let fake = Fake::new(seed);
    fake.set("devices", 2);
    Machine::of(fake)
}

/// What another device reads, and where to.
struct Reader {
    stream: Stream,
    to: Allocation,
}

impl Reader {
    fn new(of: &Machine, bytes: u64) -> Self {
        let context = devices(&of.fake).open(1).unwrap();
        let (to, stream) =
            (Allocation::new(&context, bytes).unwrap(), Stream::new(&context, Priority::Normal).unwrap());
        Self { stream, to }
    }

    fn read(&self, exported: &Exported) -> Result<Vec<u8>, CudaError> {
        let imported = Imported::map(self.stream.context(), exported)?;
        self.stream.copy(imported.span(), self.to.span())?;
        let mut bytes = vec![0; usize::try_from(self.to.span().bytes()).unwrap()];
        self.stream.read(self.to.span(), &mut bytes)?;
        Ok(bytes)
    }
}

fn store(machine: &Machine) -> CommStore {
    let limits = CommLimits { free_percent_max: 100, entries_max: 100, idle_bytes_max: 0 };
    CommStore::new(7, limits, &machine.pool(64 * BLOCK_BYTES), &machine.engine(), &Arena::new(1 << 30))
        .unwrap()
}

/// Leave `bytes` bytes of that value in the store.
fn leave(machine: &Machine, store: &CommStore, bytes: u64, value: u8) -> Held {
    let slot = machine.allocate(bytes);
    machine.stream.fill(slot.span(), value).unwrap();
    let index = store.put(slot.span(), &machine.stream, ONE, 0).unwrap();
    machine.stream.synchronize().unwrap();
    store.get(index, ONE, 0).unwrap()
}

#[test]
fn another_device_reads_what_one_has_left_without_the_host() {
    for seed in SEEDS {
        let machine = machine(seed);
        let store = store(&machine);
        // One small, and one that lies in three blocks, or in two and parts of others.
        let (_before, held) =
            (leave(&machine, &store, 1000, 1), leave(&machine, &store, 3 * BLOCK_BYTES - 4096, 2));
        let exported = held.export().unwrap().unwrap();
        assert!(exported.blocks.len() <= 4, "{exported:?}");
        let reader = Reader::new(&machine, 3 * BLOCK_BYTES - 4096);
        // While it is read it stays, whoever needs the memory.
        assert_eq!(store.relieve(u64::MAX).unwrap(), 0);
        let up = machine.fake.count("bytes_to_device");
        let bytes = reader.read(&exported).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 2), "seed {seed}");
        assert_eq!(machine.fake.count("bytes_to_device"), up);
        assert_eq!(machine.fake.count("bytes_between_devices"), 3 * BLOCK_BYTES - 4096);
        // All that was mapped for it is gone; the memory is the store's as before.
        drop(held);
        drop(exported);
        assert!(store.relieve(u64::MAX).unwrap() > 0);
    }
}

/// Two drivers have no more in common than two processes.
#[test]
fn another_process_reads_it_too_and_only_reads() {
    let (owner, other) = (machine(3), machine(4));
    let store = store(&owner);
    let held = leave(&owner, &store, 100_000, 9);
    let exported = held.export().unwrap().unwrap();
    assert_eq!((exported.blocks.len(), exported.bytes), (1, 100_000));
    let reader = Reader::new(&other, 100_000);
    assert!(reader.read(&exported).unwrap().iter().all(|byte| *byte == 9));
    let imported = Imported::map(reader.stream.context(), &exported).unwrap();
    assert!(reader.stream.fill(imported.span(), 0).is_err(), "it has written");
    drop(imported);
    // Each sees it as it is when it looks.
    let Place::Device(span) = held.place() else { panic!("it should be on the device") };
    owner.stream.fill(span, 8).unwrap();
    owner.stream.synchronize().unwrap();
    assert!(reader.read(&exported).unwrap().iter().all(|byte| *byte == 8));
}

#[test]
fn devices_that_are_not_connected_are_told_apart_and_refused() {
    let machine = machine(1);
    assert_eq!(devices(&machine.fake).siblings(1).unwrap(), [0]);
    let store = store(&machine);
    let held = leave(&machine, &store, 100_000, 1);
    let exported = held.export().unwrap().unwrap();
    machine.fake.set("peer_access", 0);
    assert_eq!(devices(&machine.fake).siblings(1).unwrap(), []);
    assert!(Reader::new(&machine, 100_000).read(&exported).is_err());
    // Nothing is left of the attempt, which the fake looks for when it goes.
}

#[test]
fn a_device_that_exports_nothing_is_used_as_before() {
    let fake = Fake::new(1);
    fake.set("devices", 2).set("exports_memory", 0);
    let machine = Machine::of(fake);
    assert_eq!(devices(&machine.fake).siblings(1).unwrap(), []);
    let store = store(&machine);
    let held = leave(&machine, &store, 100_000, 1);
    assert!(held.export().is_err());
    let Place::Device(span) = held.place() else { panic!("it should be on the device") };
    assert!(machine.read(span).iter().all(|byte| *byte == 1));
}

#[test]
fn what_cannot_be_right_is_refused() {
    let machine = machine(1);
    let reader = Reader::new(&machine, 16);
    let refused = |exported: &Exported| {
        let context = Arc::clone(reader.stream.context());
        assert!(Imported::map(&context, exported).is_err(), "{exported:?}");
    };
    refused(&Exported { blocks: Vec::new(), offset: 0, bytes: 16 });
    let store = store(&machine);
    let held = leave(&machine, &store, 100_000, 1);
    let exported = held.export().unwrap().unwrap();
    refused(&Exported { offset: BLOCK_BYTES, ..exported });
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    refused(&Exported { blocks: vec![file.into()], offset: 0, bytes: 16 });
}
