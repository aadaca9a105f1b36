use crate::support::{SEEDS, TestDevice, launch_fill};
use weir_device::Arena;
use weir_device::cuda::{
    AddressRange, BLOCK_BYTES, CommError, CommLimits, CommStore, IntermediatePlace, MemoryOwner, Priority,
    Stream,
};

const ONE: MemoryOwner = MemoryOwner(1);
const OTHER: MemoryOwner = MemoryOwner(2);

fn store(machine: &TestDevice, blocks: u64, free_percent_max: u64) -> CommStore {
    let limits = CommLimits { free_percent_max, entries_max: 100, idle_bytes_max: 0 };
    CommStore::new(7, limits, &machine.pool(blocks * BLOCK_BYTES), &machine.engine(), &Arena::new(1 << 30))
        .unwrap()
}

#[test]
fn intermediate_is_read_by_another_stream_without_the_host() {
    for seed in SEEDS {
        let machine = TestDevice::new(seed);
        let store = store(&machine, 64, 50);
        let function = machine.kernel("weir_test_fill");
        let slot = machine.allocate(1 << 20);
        let result = machine.allocate(1 << 20);
        launch_fill(&machine.stream, &function, slot.span(), 7);
        let index = store.put(slot.span(), &machine.stream, ONE, 0).unwrap();
        // The slot is reused for other data.
        launch_fill(&machine.stream, &function, slot.span(), 8);
        let consumer = Stream::new(&machine.context, Priority::Normal).unwrap();
        let held = store.get(index, ONE, 1).unwrap();
        let IntermediatePlace::Device(span) = held.place() else { panic!("it should be on the device") };
        held.order(&consumer).unwrap();
        consumer.copy(span, result.span()).unwrap();
        consumer.synchronize().unwrap();
        assert!(machine.read(result.span()) == 7_u32.to_ne_bytes().repeat(1 << 18), "seed {seed}");
        assert_eq!((machine.fake.count("copies_to_device"), store.usage().device_bytes), (0, 1 << 20));
        store.remove(index, ONE).unwrap();
        assert_eq!(store.usage().device_bytes, 1 << 20, "somebody uses it");
        drop(held);
        assert_eq!((store.usage().device_bytes, store.usage().mapped_bytes), (0, 0));
        assert_eq!(store.get(index, ONE, 2).unwrap_err(), CommError::NotFound(index));
    }
}

#[test]
fn store_stays_within_its_share_and_moves_oldest_to_host() {
    for seed in SEEDS {
        let machine = TestDevice::new(seed);
        let pool = machine.pool(20 * BLOCK_BYTES);
        let limits = CommLimits { free_percent_max: 50, entries_max: 100, idle_bytes_max: 0 };
        let store = CommStore::new(7, limits, &pool, &machine.engine(), &Arena::new(1 << 30)).unwrap();
        let slot = machine.allocate(4 * BLOCK_BYTES);
        let put = |value, now| {
            machine.stream.fill(slot.span(), value).unwrap();
            store.put(slot.span(), &machine.stream, ONE, now).unwrap()
        };
        let all: Vec<_> = (1..5).map(|value| put(value, u64::from(value))).collect();
        let on_device =
            |index| matches!(store.get(index, ONE, 0).unwrap().place(), IntermediatePlace::Device(_));
        let there: Vec<_> = all.iter().map(|index| on_device(*index)).collect();
        assert_eq!(there, [false, false, true, true], "seed {seed}");
        let held = store.get(all[0], ONE, 10).unwrap();
        assert_eq!(held.place(), IntermediatePlace::Host(bytes::Bytes::from(vec![1; 8 << 20]).into()));
        // Other consumers take most of the device, so less memory is free.
        let mut others = AddressRange::reserve(&pool, 20 * BLOCK_BYTES).unwrap();
        others.back(0..12, OTHER, None).unwrap();
        let newest = put(9, 11);
        let there: Vec<_> = all.iter().chain([&newest]).map(|index| on_device(*index)).collect();
        assert_eq!(there, [false, false, false, false, true], "half of eight blocks is enough for one");
        others.back(12..13, OTHER, None).unwrap();
        assert!(!on_device(put(10, 12)), "half of seven is not");
        assert!(on_device(newest), "and nothing is moved for what does not fit anyhow");
    }
}

#[test]
fn surplus_intermediates_can_become_guests_elsewhere() {
    for seed in SEEDS {
        let machine = TestDevice::new(seed);
        // The share is ten blocks, of which seven and a half are for guests.
        let home = store(&machine, 20, 50);
        let other = store(&machine, 20, 50);
        let slot = machine.allocate(2 * BLOCK_BYTES);
        let fill = |value| machine.stream.fill(slot.span(), value).unwrap();
        let put = |value: u8, now| {
            fill(value);
            home.put(slot.span(), &machine.stream, ONE, now).unwrap()
        };
        let three: Vec<_> = (0..3).map(|value| put(value, u64::from(value))).collect();
        assert!(home.beyond(16).is_empty(), "bursts have room");
        (3..5).for_each(|value| _ = put(value, u64::from(value)));
        assert_eq!(home.beyond(16), three[..2], "what was unused for longest, and no more than that");
        assert_eq!(home.beyond(1), three[..1]);
        let held = home.get(three[0], ONE, 5).unwrap();
        assert_eq!(home.beyond(16), [three[1], three[2]], "what is in use stays");

        let IntermediatePlace::Device(span) = held.place() else { panic!("it should be on the device") };
        let take = || other.put_guest(span, &machine.stream, ONE, 10).unwrap();
        let guests: Vec<_> = (0..4).map(|_| take()).collect();
        assert_eq!(guests.iter().flatten().count(), 3, "a guest moves nobody");
        assert!(other.beyond(16).is_empty());
        drop(held);
        // The store's own intermediates may use the whole share: guests are moved first, even if
        // others are older.
        let own = || {
            fill(7);
            other.put(slot.span(), &machine.stream, ONE, 1).unwrap()
        };
        let own: Vec<_> = (0..5).map(|_| own()).collect();
        let on_device =
            |index| matches!(other.get(index, ONE, 11).unwrap().place(), IntermediatePlace::Device(_));
        assert!(own.iter().all(|index| on_device(*index)));
        assert!(guests.iter().flatten().all(|index| !on_device(*index)));
        assert_eq!(other.take_spilled_bytes(), 3 * 2 * BLOCK_BYTES);
        assert_eq!((other.take_spilled_bytes(), home.take_spilled_bytes()), (0, 0));
    }
}

#[test]
fn relieve_frees_device_memory_for_others() {
    let machine = TestDevice::new(3);
    let pool = machine.pool(8 * BLOCK_BYTES);
    let limits = CommLimits { free_percent_max: 100, entries_max: 100, idle_bytes_max: 0 };
    let store = CommStore::new(7, limits, &pool, &machine.engine(), &Arena::new(1 << 30)).unwrap();
    let slot = machine.allocate(2 * BLOCK_BYTES);
    let all: Vec<_> = (0..4)
        .map(|value| {
            machine.stream.fill(slot.span(), value).unwrap();
            store.put(slot.span(), &machine.stream, ONE, u64::from(value)).unwrap()
        })
        .collect();
    let kept = store.get(all[0], ONE, 9).unwrap();
    assert_eq!(store.relieve(3 * BLOCK_BYTES).unwrap(), 4 * BLOCK_BYTES);
    assert!(matches!(kept.place(), IntermediatePlace::Device(_)));
    assert_eq!(store.relieve(u64::MAX).unwrap(), 2 * BLOCK_BYTES, "but for what is in use");
    for (value, index) in all.iter().enumerate().skip(1) {
        let bytes = vec![u8::try_from(value).unwrap(); 4 << 20];
        assert_eq!(
            store.get(*index, ONE, 10).unwrap().place(),
            IntermediatePlace::Host(bytes::Bytes::from(bytes).into())
        );
    }
}

#[test]
fn idle_memory_is_kept_until_another_consumer_needs_it() {
    let machine = TestDevice::new(2);
    let pool = machine.pool(16 * BLOCK_BYTES);
    let limits = CommLimits { free_percent_max: 100, entries_max: 100, idle_bytes_max: 2 * BLOCK_BYTES };
    let store = CommStore::new(7, limits, &pool, &machine.engine(), &Arena::new(1 << 30)).unwrap();
    let slot = machine.allocate(3 * BLOCK_BYTES);
    let hand_over = || {
        let index = store.put(slot.span(), &machine.stream, ONE, 0).unwrap();
        store.remove(index, ONE).unwrap();
    };
    hand_over();
    assert_eq!(store.usage().mapped_bytes, 2 * BLOCK_BYTES, "and no more");
    let created = machine.fake.count("blocks_created");
    hand_over();
    assert_eq!(machine.fake.count("blocks_created"), created);
    assert_eq!(store.relieve(1).unwrap(), 2 * BLOCK_BYTES);
    assert_eq!(store.usage().mapped_bytes, 0);
    hand_over();
    store.trim();
    assert_eq!(store.usage().mapped_bytes, 0);
}

#[test]
fn memory_of_recent_intermediates_stays_mapped_while_they_recur() {
    const SECOND_NS: u64 = 1_000_000_000;
    let machine = TestDevice::new(2);
    let pool = machine.pool(64 * BLOCK_BYTES);
    let limits = CommLimits { free_percent_max: 100, entries_max: 100, idle_bytes_max: 32 * BLOCK_BYTES };
    let store = CommStore::new(7, limits, &pool, &machine.engine(), &Arena::new(1 << 30)).unwrap();
    let slot = machine.allocate(2 * BLOCK_BYTES);
    // Four intermediates at once, as of concurrent workflows.
    let hand_over = |now_ns| {
        let put = |_| store.put(slot.span(), &machine.stream, ONE, now_ns).unwrap();
        let four: Vec<_> = (0..4).map(put).collect();
        four.into_iter().for_each(|index| store.remove(index, ONE).unwrap());
    };
    hand_over(0);
    let mapped = machine.fake.costs().mapping_ns;
    for second in 1..5 {
        hand_over(second * SECOND_NS);
        store.settle(second * SECOND_NS);
    }
    assert_eq!(machine.fake.costs().mapping_ns, mapped, "nothing is mapped again");
    assert_eq!(store.usage().mapped_bytes, 8 * BLOCK_BYTES);
    // Unused memory returns to the pool in the course of some seconds, and sooner if it is needed.
    store.settle(6 * SECOND_NS);
    assert_eq!(store.usage().mapped_bytes, 4 * BLOCK_BYTES);
    assert_eq!(store.release_idle(BLOCK_BYTES), BLOCK_BYTES);
    assert_eq!(
        (store.usage().mapped_bytes, store.release_idle(u64::MAX)),
        (3 * BLOCK_BYTES, 3 * BLOCK_BYTES)
    );
    hand_over(7 * SECOND_NS);
    store.settle(100 * SECOND_NS);
    assert_eq!(store.usage().mapped_bytes, 0);
}

#[test]
fn foreign_and_expired_intermediates_are_not_found() {
    let machine = TestDevice::new(1);
    let store = store(&machine, 64, 50);
    let slot = machine.allocate(1000);
    machine.stream.fill(slot.span(), 1).unwrap();
    let old = store.put(slot.span(), &machine.stream, ONE, 100).unwrap();
    let new = store.put(slot.span(), &machine.stream, ONE, 200).unwrap();
    assert_ne!(old, new);
    assert_eq!(store.get(old, OTHER, 0).unwrap_err(), CommError::NotFound(old));
    assert_eq!(store.remove(old, OTHER).unwrap_err(), CommError::NotFound(old));
    let elsewhere = weir_device::cuda::CommIndex { store: 8, ..old };
    assert!(store.get(elsewhere, ONE, 0).is_err());
    let held = store.get(old, ONE, 100).unwrap();
    assert_eq!(store.sweep(700, 550), 0, "it is in use");
    drop(held);
    assert!(store.get(old, ONE, 0).is_err(), "and goes when it is not");
    assert_eq!(store.sweep(700, 500), 1);
    assert_eq!(store.usage().device_bytes, 0);
}

#[test]
fn store_refuses_more_than_its_entry_limit() {
    let machine = TestDevice::new(1);
    let limits = CommLimits { free_percent_max: 50, entries_max: 2, idle_bytes_max: 0 };
    let pool = machine.pool(8 * BLOCK_BYTES);
    let store = CommStore::new(7, limits, &pool, &machine.engine(), &Arena::new(100)).unwrap();
    let slot = machine.allocate(1000);
    machine.stream.fill(slot.span(), 1).unwrap();
    for _ in 0..2 {
        store.put(slot.span(), &machine.stream, ONE, 0).unwrap();
    }
    assert_eq!(store.put(slot.span(), &machine.stream, ONE, 0), Err(CommError::TooMany { entries_max: 2 }));
    assert_eq!(store.usage().device_bytes, 2000);
    // If neither device nor host has room, the call fails, and existing intermediates stay.
    let large = machine.allocate(8 * BLOCK_BYTES);
    assert!(matches!(store.put(large.span(), &machine.stream, ONE, 0), Err(CommError::Transfer(_))));
    assert_eq!(store.usage().device_bytes, 2000);
}
