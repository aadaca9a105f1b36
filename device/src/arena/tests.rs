use super::pool::RETURNS_PER_SWEEP;
use super::*;
use proptest::prelude::*;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

#[test]
fn freed_block_is_reused() {
    let arena = Arena::new(8 << 20);
    let first = arena.buffer(600_000).unwrap().freeze();
    let address = first.as_ptr();
    let bytes = arena.used_bytes();
    drop(first);
    assert_eq!((arena.used_bytes(), arena.pooled_bytes()), (0, bytes));
    let second = arena.buffer(590_000).unwrap().freeze();
    assert_eq!((second.as_ptr(), arena.used_bytes(), arena.pooled_bytes()), (address, bytes, 0));
}

#[test]
fn reused_block_is_zeroed() {
    let arena = Arena::new(8 << 20);
    for len in [100, 5_000, 600_000] {
        let mut secret = arena.buffer(len).unwrap();
        secret.fill(7);
        drop(secret);
        let mut streamed = arena.with_capacity(len).unwrap();
        streamed.extend_from_slice(&[7; 10]).unwrap();
        drop(streamed);
        assert!(arena.buffer(len).unwrap().iter().all(|byte| *byte == 0), "{len}");
    }
}

#[test]
fn limit_holds_and_idle_blocks_make_room() {
    let arena = Arena::new(1 << 20);
    let half = arena.buffer(512 << 10).unwrap();
    let error = arena.buffer(600 << 10).unwrap_err();
    assert_eq!((error.asked_bytes, error.used_bytes, error.bytes_max), (600 << 10, 512 << 10, 1 << 20));
    drop(half);
    assert_eq!(arena.pooled_bytes(), 512 << 10);
    let _other_size = arena.buffer(600 << 10).unwrap();
    assert_eq!(arena.pooled_bytes(), 0, "the idle block should have been given back");
    assert!(arena.buffer(usize::MAX).is_err());
}

#[test]
fn sweep_frees_only_blocks_idle_since_the_last_sweep() {
    let arena = Arena::new(64 << 20);
    let four: Vec<_> = (0..4).map(|_| arena.buffer(1 << 20).unwrap()).collect();
    drop(four);
    arena.sweep();
    assert_eq!(arena.pooled_bytes(), 4 << 20, "they were used since the last sweep");
    drop(arena.buffer(1 << 20).unwrap());
    arena.sweep();
    assert_eq!(arena.pooled_bytes(), 1 << 20, "one was used, three were not");
    arena.trim();
    assert_eq!((arena.used_bytes(), arena.pooled_bytes()), (0, 0));
}

#[test]
fn returned_blocks_trigger_sweeps() {
    let arena = Arena::new(64 << 20);
    let burst: Vec<_> = (0..8).map(|_| arena.buffer(1 << 20).unwrap()).collect();
    drop(burst);
    for _ in 0..2 * RETURNS_PER_SWEEP {
        drop(arena.buffer(1 << 20).unwrap());
    }
    assert_eq!(arena.pooled_bytes(), 1 << 20);
}

#[test]
fn shared_block_is_readable_at_its_offset_until_freed() {
    let arena = Arena::new(64 << 20);
    let before = arena.copy_of(&[1; 100 << 10]).unwrap();
    let file = arena.share().unwrap();
    assert_eq!((arena.shared_offset(&before), arena.share().is_ok()), (None, true));
    let small = arena.copy_of(&[2; 100]).unwrap();
    assert_eq!(arena.shared_offset(&small), None);

    let first = arena.copy_of(&[3; 300 << 10]).unwrap();
    let second = arena.copy_of(&[4; 300 << 10]).unwrap();
    for (buffer, value) in [(&first, 3), (&second, 4)] {
        let offset = arena.shared_offset(&buffer[1000..]).unwrap();
        let mut read = vec![0; 290 << 10];
        file.read_exact_at(&mut read, offset).unwrap();
        assert!(read.iter().all(|byte| *byte == value), "{value}");
    }
    assert!(file.write_at(&[0], 0).is_err(), "it can only be read");

    let offset = arena.shared_offset(&first).unwrap();
    drop((first, second));
    arena.trim();
    assert_eq!(file.metadata().unwrap().blocks(), 0, "the memory should have been given back");
    let mut read = [9; 10];
    file.read_exact_at(&mut read, offset).unwrap();
    assert_eq!(read, [0; 10]);
    let fresh = arena.buffer(300 << 10).unwrap();
    assert!(fresh.iter().all(|byte| *byte == 0) && arena.shared_offset(&fresh) != Some(offset));
}

#[test]
fn reserved_bytes_count_until_released() {
    let arena = Arena::new(1 << 20);
    drop(arena.buffer(600 << 10).unwrap());
    arena.reserve(1 << 20).unwrap();
    assert_eq!((arena.used_bytes(), arena.pooled_bytes()), (1 << 20, 0));
    assert!(arena.reserve(1).is_err() && arena.buffer(1).is_err());
    arena.release(1 << 20);
    arena.buffer(1).unwrap();
}

fn shared_by(names: [&str; 2]) -> (Arena, [Arena; 2]) {
    let arena = Arena::with_shares(1 << 20, |_| 512 << 10);
    let tenants = names.map(|name| arena.tenant(&TenantId::new(name).unwrap()));
    (arena, tenants)
}

#[test]
fn tenant_with_its_whole_share_leaves_the_rest_to_others() {
    let (arena, [ours, theirs]) = shared_by(["ours", "theirs"]);
    let held = ours.buffer(500 << 10).unwrap().freeze();
    let error = ours.buffer(100 << 10).unwrap_err();
    assert_eq!((error.scope, error.bytes_max), (ArenaScope::Tenant, 512 << 10));
    assert!(error.to_string().contains("arena_bytes_max of [node.tenants]"), "{error}");
    assert_eq!(ours.reserve(100 << 10).unwrap_err().scope, ArenaScope::Tenant);
    let others = theirs.buffer(500 << 10).unwrap();
    let error = arena.buffer(100 << 10).unwrap_err();
    assert_eq!((error.asked_bytes, error.scope), (100 << 10, ArenaScope::Node));
    assert!(!error.to_string().contains("tenant"), "{error}");
    drop(held);
    assert_eq!(ours.buffer(500 << 10).unwrap().len(), 500 << 10);
    drop(others);
    assert!(arena.tenants_used_bytes().iter().all(|(_, bytes)| *bytes == 0));
}

#[test]
fn slices_and_growth_count_against_the_share_until_dropped() {
    let (arena, [ours, theirs]) = shared_by(["ours", "theirs"]);
    let used = |name: &str| {
        let tenants = arena.tenants_used_bytes();
        tenants.into_iter().find(|(tenant, _)| tenant.as_str() == name).unwrap().1
    };
    let mut body = ours.with_capacity(0).unwrap();
    body.extend_from_slice(&[1; 200 << 10]).unwrap();
    let bytes = used("ours");
    assert!((200 << 10..=256 << 10).contains(&bytes), "{bytes}");
    let part = body.freeze().slice(..1);
    assert_eq!((used("ours"), used("theirs")), (bytes, 0));
    drop(part);
    assert_eq!((used("ours"), arena.pooled_bytes()), (0, bytes));
    // A block that one tenant has returned counts for the tenant that takes it.
    let taken = theirs.buffer(200 << 10).unwrap();
    assert_eq!((used("ours"), used("theirs"), arena.pooled_bytes()), (0, bytes, 0));
    drop(taken);
    ours.reserve(512 << 10).unwrap();
    assert!(ours.buffer(1).is_err() && theirs.buffer(1).is_ok());
    ours.release(512 << 10);
    assert_eq!((used("ours"), arena.used_bytes()), (0, 0));
}

#[test]
fn bytes_that_the_arena_refuses_do_not_count_against_the_share() {
    let (arena, [ours, _]) = shared_by(["ours", "theirs"]);
    let all = arena.buffer(1 << 20).unwrap();
    assert_eq!(ours.buffer(1).unwrap_err().scope, ArenaScope::Node);
    assert_eq!(ours.reserve(1).unwrap_err().scope, ArenaScope::Node);
    drop(all);
    assert!(ours.buffer(512 << 10).is_ok());
}

#[test]
fn share_of_the_whole_arena_is_not_counted() {
    let arena = Arena::with_shares(1 << 20, |_| 1 << 20);
    let tenant = arena.tenant(&TenantId::default());
    let _held = tenant.buffer(1 << 20).unwrap();
    assert_eq!((tenant.share.is_none(), arena.tenants_used_bytes()), (true, Vec::new()));
    assert!(Arena::new(1).tenant(&TenantId::default()).share.is_none());
}

proptest! {
    #[test]
    fn counts_add_up_after_any_operations(steps in prop::collection::vec((0_u8..8, 0_usize..2_000_000), 1..60)) {
        let arena = Arena::new(16 << 20);
        let mut alive = Vec::new();
        for (step, len) in steps {
            match step {
                0 => arena.sweep(),
                1 => arena.trim(),
                2 | 3 if !alive.is_empty() => drop(alive.swap_remove(len % alive.len())),
                _ => if let Ok(buffer) = arena.buffer(len) { alive.push(buffer.freeze()) },
            }
            let held: u64 = alive.iter().map(|b| class_of(b.len()).unwrap().block_bytes as u64).sum();
            prop_assert_eq!(arena.used_bytes(), held);
            prop_assert!(arena.used_bytes() + arena.pooled_bytes() <= arena.bytes_max());
        }
        alive.clear();
        arena.trim();
        prop_assert_eq!((arena.used_bytes(), arena.pooled_bytes()), (0, 0));
    }
}
