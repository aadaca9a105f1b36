//! Device memory that another device reads in place.

use crate::support::{SEEDS, TestDevice, devices};
use weir_device::Arena;
use weir_device::cuda::{
    Allocation, BLOCK_BYTES, CommLimits, CommStore, CudaError, ExportedMemory, Imported, IntermediateGuard,
    IntermediatePlace, MemoryOwner, Priority, Stream,
};
use weir_fake_cuda::Fake;

const ONE: MemoryOwner = MemoryOwner(1);

/// A driver with two devices, the first of which is open.
fn machine(seed: u64) -> TestDevice {
    let fake = Fake::new(seed);
    fake.set("devices", 2);
    TestDevice::from_fake(fake)
}

/// A reading device, with its stream and target.
struct Reader {
    stream: Stream,
    to: Allocation,
}

impl Reader {
    fn new(of: &TestDevice, bytes: u64) -> Self {
        let context = devices(&of.fake).open(1).unwrap();
        let (to, stream) =
            (Allocation::new(&context, bytes).unwrap(), Stream::new(&context, Priority::Normal).unwrap());
        Self { stream, to }
    }

    fn read(&self, exported: &ExportedMemory) -> Result<Vec<u8>, CudaError> {
        let imported = Imported::map(self.stream.context(), exported)?;
        self.stream.copy(imported.span(), self.to.span())?;
        let mut bytes = vec![0; usize::try_from(self.to.span().bytes()).unwrap()];
        self.stream.read(self.to.span(), &mut bytes)?;
        Ok(bytes)
    }
}

fn store(machine: &TestDevice) -> CommStore {
    let limits = CommLimits { free_percent_max: 100, entries_max: 100, idle_bytes_max: 0 };
    CommStore::new(7, limits, &machine.pool(64 * BLOCK_BYTES), &machine.engine(), &Arena::new(1 << 30))
        .unwrap()
}

/// Stores `bytes` bytes of this value.
fn leave(machine: &TestDevice, store: &CommStore, bytes: u64, value: u8) -> IntermediateGuard {
    let slot = machine.allocate(bytes);
    machine.stream.fill(slot.span(), value).unwrap();
    let index = store.put(slot.span(), &machine.stream, ONE, 0).unwrap();
    machine.stream.synchronize().unwrap();
    store.get(index, ONE, 0).unwrap()
}

#[test]
fn exported_memory_is_read_by_another_device_without_the_host() {
    for seed in SEEDS {
        let machine = machine(seed);
        let store = store(&machine);
        // A small intermediate, and one that spans three blocks, or two and parts of others.
        let (_before, held) =
            (leave(&machine, &store, 1000, 1), leave(&machine, &store, 3 * BLOCK_BYTES - 4096, 2));
        let exported = held.export().unwrap().unwrap();
        assert!(exported.blocks.len() <= 4, "{exported:?}");
        let reader = Reader::new(&machine, 3 * BLOCK_BYTES - 4096);
        // While it is read it stays in place, even if other consumers need the memory.
        assert_eq!(store.relieve(u64::MAX).unwrap(), 0);
        let up = machine.fake.count("bytes_to_device");
        let bytes = reader.read(&exported).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 2), "seed {seed}");
        assert_eq!(machine.fake.count("bytes_to_device"), up);
        assert_eq!(machine.fake.count("bytes_between_devices"), 3 * BLOCK_BYTES - 4096);
        // All mappings of the reader were removed, and the memory belongs to the store as before.
        drop(held);
        drop(exported);
        assert!(store.relieve(u64::MAX).unwrap() > 0);
    }
}

/// Two drivers share no more state than two processes.
#[test]
fn exported_memory_is_readable_but_not_writable_by_another_process() {
    let owner = machine(3);
    let other = machine(4);
    let store = store(&owner);
    let held = leave(&owner, &store, 100_000, 9);
    let exported = held.export().unwrap().unwrap();
    assert_eq!((exported.blocks.len(), exported.bytes), (1, 100_000));
    let reader = Reader::new(&other, 100_000);
    assert!(reader.read(&exported).unwrap().iter().all(|byte| *byte == 9));
    let imported = Imported::map(reader.stream.context(), &exported).unwrap();
    assert!(reader.stream.fill(imported.span(), 0).is_err(), "it has written");
    drop(imported);
    // Each read sees the contents at the time of the read.
    let IntermediatePlace::Device(span) = held.place() else { panic!("it should be on the device") };
    owner.stream.fill(span, 8).unwrap();
    owner.stream.synchronize().unwrap();
    assert!(reader.read(&exported).unwrap().iter().all(|byte| *byte == 8));
}

#[test]
fn unconnected_devices_are_detected_and_refused() {
    let machine = machine(1);
    assert_eq!(devices(&machine.fake).siblings(1).unwrap(), [0]);
    let store = store(&machine);
    let held = leave(&machine, &store, 100_000, 1);
    let exported = held.export().unwrap().unwrap();
    machine.fake.set("peer_access", 0);
    assert_eq!(devices(&machine.fake).siblings(1).unwrap(), []);
    assert!(Reader::new(&machine, 100_000).read(&exported).is_err());
    // The attempt leaves no resources, which the fake checks when it drops.
}

#[test]
fn device_without_export_support_still_works() {
    let fake = Fake::new(1);
    fake.set("devices", 2).set("exports_memory", 0);
    let machine = TestDevice::from_fake(fake);
    assert_eq!(devices(&machine.fake).siblings(1).unwrap(), []);
    let store = store(&machine);
    let held = leave(&machine, &store, 100_000, 1);
    assert!(held.export().is_err());
    let IntermediatePlace::Device(span) = held.place() else { panic!("it should be on the device") };
    assert!(machine.read(span).iter().all(|byte| *byte == 1));
}

#[test]
fn invalid_exports_are_refused() {
    let machine = machine(1);
    let reader = Reader::new(&machine, 16);
    let refused = |exported: &ExportedMemory| {
        let context = reader.stream.context().clone();
        assert!(Imported::map(&context, exported).is_err(), "{exported:?}");
    };
    refused(&ExportedMemory { blocks: Vec::new(), offset: 0, bytes: 16 });
    let store = store(&machine);
    let held = leave(&machine, &store, 100_000, 1);
    let exported = held.export().unwrap().unwrap();
    refused(&ExportedMemory { offset: BLOCK_BYTES, ..exported });
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    refused(&ExportedMemory { blocks: vec![file.into()], offset: 0, bytes: 16 });
}
