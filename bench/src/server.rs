//! Server process under measurement: started, located by its printed address, and stopped.

use crate::process::ProcessTree;
use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::fs::File;
use std::io::Read as _;
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit for the start: `wasmtime serve` compiles first, and Ray starts ten Python processes,
/// which takes ten seconds on an idle machine.
const START_MAX: Duration = Duration::from_secs(180);
/// Time limit for a graceful end.
const STOP_MAX: Duration = Duration::from_secs(10);

/// Running server. Dropping it ends the process and its descendants.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    child: Child,
    url: String,
}

impl ServerProcess {
    /// Starts `command`, which must print its address; the output goes to `log`.
    pub(crate) fn start(mut command: Command, log: &Path) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        // Ctrl-C on the terminal must reach only this program, which stops servers in order
        // (`interrupt`).
        command.process_group(0);
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let mut server = Self { child, url: String::new() };
        let started = Instant::now();
        loop {
            let mut text = String::new();
            File::open(log)?.read_to_string(&mut text)?;
            // Some servers print their address before they listen.
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

    /// URL of `path` on this server.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn tree(&self) -> ProcessTree {
        ProcessTree::new(self.child.id())
    }

    fn stop(&mut self) -> Result<()> {
        // Ask the root process to end, so that it can end its children; then kill the rest.
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
        // Ignore processes that have ended meanwhile.
        for process in processes.iter().skip(1).filter(|process| process.is_alive()) {
            let _ = kill_process(id(process.pid())?, Signal::KILL);
        }
        // Also kill orphans that were not listed.
        let _ = kill_process_group(root, Signal::KILL);
        Ok(())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("cannot stop a server: {error:#}");
        }
    }
}

/// Finds the first complete `http://ADDRESS:PORT` in the output.
fn url_in(text: &str) -> Option<&str> {
    const SCHEME: &str = "http://";
    let url = &text[text.find(SCHEME)?..];
    // A character after the URL shows that it is complete.
    let end = url[SCHEME.len()..].find(|c: char| !(c.is_ascii_alphanumeric() || ":.-[]".contains(c)))?;
    Some(&url[..SCHEME.len() + end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_is_located_by_its_output_and_killed_on_drop() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        command.args(["-c", &format!("echo Serving HTTP on http://{address}/; exec sleep 60")]);
        let server = ServerProcess::start(command, &folder.path().join("log")).unwrap();
        assert_eq!(server.url("/x"), format!("http://{address}/x"));
        // The server has its own process group, so Ctrl-C on a terminal does not reach it.
        let group = rustix::process::getpgid(Pid::from_raw(server.pid().cast_signed())).unwrap();
        assert_eq!(group.as_raw_nonzero().get(), server.pid().cast_signed());
        let tree = server.tree();
        drop(server);
        assert!(tree.cpu_time().is_err());
    }

    #[test]
    fn failed_start_includes_the_output() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo the port is taken >&2; exit 3"]);
        let error = ServerProcess::start(command, &folder.path().join("log")).unwrap_err().to_string();
        assert!(error.contains("the port is taken"), "{error}");
    }

    #[test]
    fn orphans_of_a_server_are_killed() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 & echo $! >&2; exit 3"]);
        let log = folder.path().join("log");
        ServerProcess::start(command, &log).unwrap_err();
        let orphan: i32 = std::fs::read_to_string(log).unwrap().trim().parse().unwrap();
        // The adopting process has to reap it first.
        let is_gone = || procfs::process::Process::new(orphan).map_or(true, |process| !process.is_alive());
        let started = Instant::now();
        while !is_gone() {
            assert!(started.elapsed() < STOP_MAX, "it goes on");
            std::thread::yield_now();
        }
    }

    #[test]
    fn incomplete_address_is_ignored() {
        assert_eq!(url_in("listening on http://127.0.0.1:80"), None);
        assert_eq!(url_in("listening on http://127.0.0.1:8080\n"), Some("http://127.0.0.1:8080"));
        assert_eq!(url_in("on http://127.0.0.1:80/ (CTRL+C)"), Some("http://127.0.0.1:80"));
        assert_eq!(url_in("ready at http://127.0.0.1:80/.\n"), Some("http://127.0.0.1:80"));
    }
}
