//! Ctrl-C handling: started programs end with the benchmark.
//!
//! The measurements need no checks for it. The programs that they wait for (a server, wrk, a
//! script) end, so the measurement fails and drops its resources.

use crate::process::ProcessTree;
use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::thread;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Time limit for an orderly end.
const END_MAX: Duration = Duration::from_secs(20);
/// Exit status of shells for a program that Ctrl-C ended.
const STATUS: i32 = 130;

/// Installs handlers for Ctrl-C and SIGTERM that end the started programs and then this program.
pub(crate) fn watch() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context("cannot watch for Ctrl-C")?;
    let (mut interrupt, mut terminate) = {
        let _runtime = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    // The thread runs until the process ends.
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

/// Ends the started programs. The main thread exits when its servers have stopped; after the time
/// limit this function exits.
fn end() -> ! {
    eprintln!("interrupted; ending what was started");
    let this = ProcessTree::new(std::process::id());
    send(&this, Signal::TERM);
    thread::sleep(END_MAX);
    send(&this, Signal::KILL);
    std::process::exit(STATUS)
}

/// Sends a signal to all descendants of the root, but not to the root.
fn send(tree: &ProcessTree, what: Signal) {
    for process in tree.processes().unwrap_or_default().iter().skip(1) {
        if let Some(pid) = Pid::from_raw(process.pid()) {
            // The process may have exited already.
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
    fn signal_reaches_descendants_but_not_the_root() {
        // The shell prints the exit status of the program that it started.
        let script = "sleep 60 & echo started; wait $!; echo $?; read x";
        let mut shell = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "started");
        send(&ProcessTree::new(shell.id()), Signal::TERM);
        assert_eq!(lines.next().unwrap().unwrap(), (128 + Signal::TERM.as_raw()).to_string());
        assert!(shell.try_wait().unwrap().is_none());
        drop(shell.stdin.take());
        shell.wait().unwrap();
    }
}
