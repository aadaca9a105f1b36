//! Memory that a worker shares with its node, seen from inside: a hostile worker tries to resize it,
//! and to write to the arena.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use rustix::fs::{FallocateFlags, Mode, SealFlags, fallocate, fchmod, fchown, fcntl_add_seals};
use rustix::process::getuid;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;
use weir_child::keep_file_modes;
use weir_device::Arena;
use weir_inference::Interrupt;
use weir_worker::{ConnectionFiles, Control, ControlMessage, Forecast, receive_control, write_memory};

const MIB: u64 = 1 << 20;

/// Runs `attack` as a worker does: with the files of a connection, and confined like the worker of a
/// device. Returns the attacks that succeeded, and the connection's and the arena's length
/// thereafter.
fn attacked_by(attack: fn(&ConnectionFiles) -> Vec<&'static str>) -> (Vec<String>, u64, Vec<u8>) {
    let arena = Arena::new(4 * MIB);
    let shared = arena.share().unwrap();
    let tensor = arena.copy_of(&vec![7; 100_000]).unwrap();
    let (control, theirs): (Control, OwnedFd) = Control::pair().unwrap();
    // A filter of system calls applies to the thread that asks for it.
    let worker = std::thread::spawn(move || {
        keep_file_modes().unwrap();
        let Some(ControlMessage::Connection(mut connection, files)) = receive_control(&theirs).unwrap()
        else {
            return;
        };
        let _: Option<u32> = connection.receive(&mut Forecast::sleeping()).unwrap();
        connection.reply(&attack(&files)).unwrap();
    });
    let mut connection = control.connect(MIB, Some(&shared)).unwrap();
    let call = connection.call(&0, &mut (), Duration::from_secs(60), &Interrupt::default());
    let succeeded = call.unwrap();
    worker.join().unwrap();
    // The node still uses both.
    write_memory(&connection.memory, &[1; 1_000], MIB - 1_000).unwrap();
    (succeeded, connection.memory.metadata().unwrap().len(), tensor.to_vec())
}

fn succeeded<E>(attacks: Vec<(&'static str, Result<(), E>)>) -> Vec<&'static str> {
    attacks.into_iter().filter(|(_, outcome)| outcome.is_ok()).map(|(what, _)| what).collect()
}

fn reopened(file: &File, options: &mut OpenOptions) -> std::io::Result<File> {
    options.open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

#[test]
fn worker_can_neither_truncate_nor_extend_the_memory_of_its_connection() {
    let (succeeded, bytes, _) = attacked_by(|files| {
        let memory = &files.memory;
        let again = reopened(memory, OpenOptions::new().write(true)).unwrap();
        succeeded(vec![
            ("truncate", memory.set_len(0)),
            ("truncate after opening it again", again.set_len(0)),
            (
                "truncate while opening it",
                reopened(memory, OpenOptions::new().write(true).truncate(true)).map(drop),
            ),
            ("extend", memory.set_len(2 * MIB)),
            ("extend by a write", memory.write_all_at(&[1], MIB)),
            (
                "extend by allocation",
                fallocate(memory, FallocateFlags::empty(), 0, 2 * MIB).map_err(Into::into),
            ),
            ("forbid writes", fcntl_add_seals(memory, SealFlags::WRITE).map_err(Into::into)),
        ])
    });
    assert_eq!((succeeded, bytes), (Vec::new(), MIB));
}

#[test]
fn worker_can_neither_write_nor_resize_the_arena() {
    let (succeeded, _, tensor) = attacked_by(|files| {
        let arena = files.arena.as_ref().unwrap();
        let id = getuid();
        succeeded(vec![
            ("write", arena.write_all_at(&[1], 0)),
            ("truncate", arena.set_len(0)),
            ("extend", arena.set_len(1 << 62)),
            ("open it for writing", reopened(arena, OpenOptions::new().write(true)).map(drop)),
            (
                "truncate while opening it",
                reopened(arena, OpenOptions::new().write(true).truncate(true)).map(drop),
            ),
            ("change its mode", fchmod(arena, Mode::RWXU).map_err(Into::into)),
            ("change its owner", fchown(arena, Some(id), None).map_err(Into::into)),
            ("open it for writing after that", reopened(arena, OpenOptions::new().write(true)).map(drop)),
        ])
    });
    assert_eq!((succeeded, tensor), (Vec::new(), vec![7; 100_000]));
}

#[test]
fn not_even_the_node_can_resize_the_arena() {
    let arena = Arena::new(MIB).share().unwrap();
    // The owner of a file may change its mode, unless that is refused as for workers.
    fchmod(&arena, Mode::RUSR | Mode::WUSR).unwrap();
    let writable = reopened(&arena, OpenOptions::new().write(true)).unwrap();
    assert!(writable.set_len(0).is_err() && writable.set_len((1 << 62) + 1).is_err());
    assert!(fcntl_add_seals(&writable, SealFlags::WRITE).is_err());
}
