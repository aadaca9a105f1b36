//! Ctrl-C: whatever was started ends with the benchmark.
//!
//! The measuring itself needs no check for it. What it waits for (a server, wrk, a script) ends, so that it fails, and drops what it holds.

use crate::process::Tree;
use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::thread;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// How long everything may take to end in order.
const END_MAX: Duration = Duration::from_secs(20);
/// What shells show for a program that Ctrl-C has ended.
const STATUS: i32 = 130;

/// From now on Ctrl-C and SIGTERM end what this program has started, and then this program.
pub(crate) fn watch() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context("cannot watch for Ctrl-C")?;
    let (mut interrupt, mut terminate) = {
        let _runtime = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    // It lasts as long as the process.
    thread::Builder::new().name("interrupt".into()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        end()
    })?;
    Ok(())
}

/// The main thread ends the process as soon as it has stopped its servers; if it does not in time, this does.
fn end() -> ! {
    eprintln!("interrupted; ending what was started");
    let this = Tree::of(std::process::id());
    send(&this, Signal::TERM);
    thread::sleep(END_MAX);
    send(&this, Signal::KILL);
    std::process::exit(STATUS)
}

/// To all processes that the root has started, itself not.
fn send(tree: &Tree, what: Signal) {
    for process in tree.processes().unwrap_or_default().iter().skip(1) {
        if let Some(pid) = Pid::from_raw(process.pid()) {
            // It may have ended by itself.
            let _ = kill_process(pid, what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn what_the_root_has_started_ends_and_the_root_does_not() {
        // The shell tells how the program ended that it has started.
        let script = "sleep 60 & echo started; wait $!; echo $?; read x";
        let mut shell = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "started");
        send(&Tree::of(shell.id()), Signal::TERM);
        assert_eq!(lines.next().unwrap().unwrap(), (128 + Signal::TERM.as_raw()).to_string());
        assert!(shell.try_wait().unwrap().is_none());
        drop(shell.stdin.take());
        shell.wait().unwrap();
    }
}
