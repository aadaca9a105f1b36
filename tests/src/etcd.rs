//! Etcd server with an empty data folder.

use crate::client::http_client;
use serde_json::Value;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Etcd server. It is killed on drop.
pub struct Etcd {
    name: String,
    port: u16,
    peer_port: u16,
    /// Members of its cluster, in the format of etcd's `--initial-cluster`.
    members: String,
    /// TLS flags for client connections; empty without TLS.
    tls: Vec<String>,
    folder: TempDir,
    process: Option<Child>,
}

impl Etcd {
    /// Whether etcd is installed. If not, prints a reason to skip a test, or panics if
    /// `WEIR_REQUIRE_ETCD` is set.
    #[must_use]
    pub fn is_installed() -> bool {
        let asked = Command::new("etcd").arg("--version").stdout(Stdio::null()).status();
        let installed = asked.is_ok_and(|status| status.success());
        assert!(
            installed || std::env::var_os("WEIR_REQUIRE_ETCD").is_none(),
            "etcd does not start, and WEIR_REQUIRE_ETCD is set; `cargo xtask setup` installs it"
        );
        if !installed {
            eprintln!("skipped: etcd does not start; `cargo xtask setup` installs it");
        }
        installed
    }

    /// Starts one server, without waiting until it answers.
    #[must_use]
    pub fn start() -> Self {
        let mut etcd = Self::new("one");
        etcd.run();
        etcd
    }

    /// Starts one server with TLS for clients, from PEM files with its certificate and key.
    #[must_use]
    pub fn start_with_tls(certificate: &Path, key: &Path) -> Self {
        let mut etcd = Self::new("one");
        etcd.tls =
            vec![format!("--cert-file={}", certificate.display()), format!("--key-file={}", key.display())];
        etcd.run();
        etcd
    }

    /// Starts one server that clients reach only with a certificate of the authority in `ca`.
    #[must_use]
    pub fn start_with_client_certificates(certificate: &Path, key: &Path, ca: &Path) -> Self {
        let mut etcd = Self::new("one");
        etcd.tls = vec![
            format!("--cert-file={}", certificate.display()),
            format!("--key-file={}", key.display()),
            format!("--trusted-ca-file={}", ca.display()),
            "--client-cert-auth".to_owned(),
        ];
        etcd.run();
        etcd
    }

    /// Starts a cluster of `servers` servers.
    #[must_use]
    pub fn start_cluster(servers: usize) -> Vec<Self> {
        let mut cluster: Vec<Self> = (0..servers).map(|at| Self::new(&format!("server-{at}"))).collect();
        let members: Vec<String> = cluster.iter().map(|etcd| etcd.members.clone()).collect();
        for etcd in &mut cluster {
            etcd.members = members.join(",");
            etcd.run();
        }
        cluster
    }

    fn new(name: &str) -> Self {
        let folder = in_memory().expect("there is no room for a folder");
        let port = free_port();
        let peer_port = free_port();
        let members = format!("{name}=http://127.0.0.1:{peer_port}");
        Self { name: name.to_owned(), port, peer_port, members, tls: Vec::new(), folder, process: None }
    }

    /// URL for `--datastore`.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_empty() { "etcd" } else { "etcds" };
        format!("{scheme}://{}", self.host())
    }

    /// Host and port for clients.
    #[must_use]
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Calls a method of the JSON API, such as `auth/enable`. The server must be ready.
    pub async fn call(&self, method: &str, request: Value) -> Value {
        Self::answer(self.request(method, &request)).await
    }

    /// Calls a method of the JSON API as a user with a `name` and a `password`.
    pub async fn call_as(&self, user: &Value, method: &str, request: Value) -> Value {
        let session = self.call("auth/authenticate", user.clone()).await;
        let token = session["token"].as_str().expect("etcd issues a token");
        Self::answer(self.request(method, &request).header("authorization", token)).await
    }

    fn request(&self, method: &str, request: &Value) -> reqwest::RequestBuilder {
        http_client().post(format!("http://{}/v3/{method}", self.host())).json(request)
    }

    async fn answer(request: reqwest::RequestBuilder) -> Value {
        let answer = request.send().await.and_then(reqwest::Response::error_for_status);
        answer.expect("etcd refuses a call").json().await.expect("etcd answers in JSON")
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("etcd could not be killed");
            process.wait().expect("etcd cannot be waited for");
        }
    }

    /// Copies the data of the server, which is restarted.
    #[must_use]
    pub fn save(&mut self) -> TempDir {
        let copy = in_memory().expect("there is no room for a folder");
        self.kill();
        copy_folder(&self.data(), copy.path());
        self.run();
        copy
    }

    /// Kills the server, and starts it with a copy of its earlier data.
    pub fn restore(&mut self, copy: &TempDir) {
        self.kill();
        std::fs::remove_dir_all(self.data()).expect("the data cannot be removed");
        std::fs::create_dir(self.data()).expect("the folder of the data cannot be made");
        copy_folder(copy.path(), &self.data());
        self.run();
    }

    /// Kills the server, and starts it without data.
    pub fn wipe(&mut self) {
        self.kill();
        std::fs::remove_dir_all(self.data()).expect("the data cannot be removed");
        self.run();
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Starts the server on its existing data.
    pub fn run(&mut self) {
        let client_scheme = if self.tls.is_empty() { "http" } else { "https" };
        let mut etcd = Command::new("etcd");
        etcd.args(["--name", &self.name, "--log-level", "error", "--data-dir"]).arg(self.data());
        for (flag, scheme, port) in [
            ("--listen-client-urls", client_scheme, self.port),
            ("--advertise-client-urls", client_scheme, self.port),
            ("--listen-peer-urls", "http", self.peer_port),
            ("--initial-advertise-peer-urls", "http", self.peer_port),
        ] {
            etcd.args([flag, &format!("{scheme}://127.0.0.1:{port}")]);
        }
        etcd.args(["--initial-cluster", &self.members]).args(&self.tls);
        let started = etcd.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.process = Some(started.expect("etcd cannot be started; `cargo xtask setup` installs it"));
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Copies the files and folders of a folder.
fn copy_folder(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status();
    assert!(copied.is_ok_and(|status| status.success()), "the data cannot be copied");
}

/// Finds a TCP port that is free at this moment.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is no free port");
    listener.local_addr().expect("it is bound").port()
}

/// A folder in memory if the system has such a file system. On a busy disk, etcd needs seconds to
/// make writes durable, and its leases end.
fn in_memory() -> std::io::Result<TempDir> {
    let memory = Path::new("/dev/shm");
    let builder = tempfile::Builder::new();
    if memory.is_dir() { builder.tempdir_in(memory) } else { builder.tempdir() }
}
