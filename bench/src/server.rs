//! One program under measurement: started, found by the address it prints, and stopped.

use crate::process::Tree;
use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::fs::File;
use std::io::Read as _;
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take until it listens: `wasmtime serve` compiles first, and Ray starts ten processes in Python, which takes ten seconds
/// where nothing else runs.
const START_MAX: Duration = Duration::from_secs(180);
/// How long it may take to end by itself.
const STOP_MAX: Duration = Duration::from_secs(10);

/// A running server. Dropping it ends it and what it started.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    url: String,
}

impl Server {
    /// Start `command`, which writes where it listens; its output goes to `log`.
    pub(crate) fn start(mut command: Command, log: &Path) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        // Ctrl-C on the terminal is for this program, which ends servers in order (`interrupt`), and not for what they have started.
        command.process_group(0);
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let mut server = Self { child, url: String::new() };
        let started = Instant::now();
        loop {
            let mut text = String::new();
            File::open(log)?.read_to_string(&mut text)?;
            // Some print their address before they listen.
            if let Some(url) = url_in(&text)
                && TcpStream::connect(url.trim_start_matches("http://")).is_ok()
            {
                server.url = url.to_owned();
                return Ok(server);
            }
            if let Some(status) = server.child.try_wait()? {
                bail!("{name} did not start ({status}):\n{text}");
            }
            if started.elapsed() > START_MAX {
                bail!("{name} did not listen within {START_MAX:?}:\n{text}");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// `path` on this server.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn tree(&self) -> Tree {
        Tree::of(self.child.id())
    }

    fn stop(&mut self) -> Result<()> {
        // Whoever has children is asked, so that it can end them; whatever is left is killed.
        let processes = self.tree().processes().unwrap_or_default();
        let id = |pid: i32| Pid::from_raw(pid).context("a process has no id");
        let root = id(self.child.id().cast_signed())?;
        if self.child.try_wait()?.is_none() {
            kill_process(root, Signal::TERM)?;
        }
        let asked = Instant::now();
        while self.child.try_wait()?.is_none() {
            if asked.elapsed() > STOP_MAX {
                eprintln!("a server did not end within {STOP_MAX:?}; killing it");
                self.child.kill()?;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // What has ended by itself meanwhile is no error.
        for process in processes.iter().skip(1).filter(|process| process.is_alive()) {
            let _ = kill_process(id(process.pid())?, Signal::KILL);
        }
        // Those whose parents had ended before they could be listed.
        let _ = kill_process_group(root, Signal::KILL);
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("cannot stop a server: {error:#}");
        }
    }
}

/// The first complete `http://ADDRESS:PORT` that has been written.
fn url_in(text: &str) -> Option<&str> {
    const SCHEME: &str = "http://";
    let url = &text[text.find(SCHEME)?..];
    // What ends it shows that all of it is there.
    let end = url[SCHEME.len()..].find(|c: char| !(c.is_ascii_alphanumeric() || ":.-[]".contains(c)))?;
    Some(&url[..SCHEME.len() + end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_found_by_what_it_prints_and_gone_when_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        command.args(["-c", &format!("echo Serving HTTP on http://{address}/; exec sleep 60")]);
        let server = Server::start(command, &folder.path().join("log")).unwrap();
        assert_eq!(server.url("/x"), format!("http://{address}/x"));
        // Not in that of this program, which Ctrl-C on a terminal ends.
        let group = rustix::process::getpgid(Pid::from_raw(server.pid().cast_signed())).unwrap();
        assert_eq!(group.as_raw_nonzero().get(), server.pid().cast_signed());
        let tree = server.tree();
        drop(server);
        assert!(tree.cpu_time().is_err());
    }

    #[test]
    fn one_that_fails_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo the port is taken >&2; exit 3"]);
        let error = Server::start(command, &folder.path().join("log")).unwrap_err().to_string();
        assert!(error.contains("the port is taken"), "{error}");
    }

    #[test]
    fn what_a_server_leaves_behind_ends_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 & echo $! >&2; exit 3"]);
        let log = folder.path().join("log");
        Server::start(command, &log).unwrap_err();
        let orphan: i32 = std::fs::read_to_string(log).unwrap().trim().parse().unwrap();
        // Whoever adopts it has to notice that it has ended.
        let is_gone = || procfs::process::Process::new(orphan).map_or(true, |process| !process.is_alive());
        let started = Instant::now();
        while !is_gone() {
            assert!(started.elapsed() < STOP_MAX, "it goes on");
            std::thread::yield_now();
        }
    }

    #[test]
    fn an_address_counts_once_it_is_complete() {
        assert_eq!(url_in("listening on http://127.0.0.1:80"), None);
        assert_eq!(url_in("listening on http://127.0.0.1:8080\n"), Some("http://127.0.0.1:8080"));
        assert_eq!(url_in("on http://127.0.0.1:80/ (CTRL+C)"), Some("http://127.0.0.1:80"));
        assert_eq!(url_in("ready at http://127.0.0.1:80/.\n"), Some("http://127.0.0.1:80"));
    }
}
