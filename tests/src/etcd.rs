//! An etcd server with nothing in it.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// An etcd of one server, which goes with this value.
pub struct Etcd {
    port: u16,
    peer_port: u16,
    folder: TempDir,
    process: Option<Child>,
}

impl Etcd {
    /// Start it. It answers soon.
    #[must_use]
    pub fn start() -> Self {
        let folder = tempfile::tempdir().expect("there is no room for a folder");
        let mut etcd = Self { port: free_port(), peer_port: free_port(), folder, process: None };
        etcd.run();
        etcd
    }

    /// Where it is, for `--datastore`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("etcd://127.0.0.1:{}", self.port)
    }

    /// Kill it as a crash would.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("etcd could not be killed");
            process.wait().expect("etcd cannot be waited for");
        }
    }

    /// Run it, on the data that it had.
    pub fn run(&mut self) {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let mut etcd = Command::new("etcd");
        etcd.args(["--name", "one", "--log-level", "error", "--data-dir"])
            .arg(self.folder.path().join("data"));
        for (flag, port) in [
            ("--listen-client-urls", self.port),
            ("--advertise-client-urls", self.port),
            ("--listen-peer-urls", self.peer_port),
            ("--initial-advertise-peer-urls", self.peer_port),
        ] {
            etcd.args([flag, &url(port)]);
        }
        etcd.args(["--initial-cluster", &format!("one={}", url(self.peer_port))]);
        let started = etcd.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.process = Some(started.expect("etcd cannot be started; `cargo xtask setup` installs it"));
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A port that nobody listens on at this moment.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is no free port");
    listener.local_addr().expect("it is bound").port()
}
