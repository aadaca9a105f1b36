//! Etcd server with an empty data folder.

use crate::client::http_client;
use serde_json::Value;
use std::fs::File;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Time in which a server must listen, on a busy machine.
const LISTENING_TIME_MAX: Duration = Duration::from_secs(60);

/// Etcd server. It is killed on drop.
pub struct Etcd {
    name: String,
    port: ReservedPort,
    peer_port: ReservedPort,
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
        let folder = in_memory().expect("a temporary folder cannot be created");
        let peer_port = ReservedPort::find();
        let members = format!("{name}=http://127.0.0.1:{}", peer_port.number);
        Self {
            name: name.to_owned(),
            port: ReservedPort::find(),
            peer_port,
            members,
            tls: Vec::new(),
            folder,
            process: None,
        }
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
        format!("127.0.0.1:{}", self.port.number)
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
        let copy = in_memory().expect("a temporary folder cannot be created");
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

    /// Waits until the server accepts connections.
    ///
    /// # Panics
    /// Panics with the server's log if the server ends or does not listen.
    pub async fn listening(&mut self) {
        let began = Instant::now();
        while tokio::net::TcpStream::connect(self.host()).await.is_err() {
            let ended = self.process.as_mut().map(Child::try_wait);
            let runs = matches!(ended, Some(Ok(None))) && began.elapsed() < LISTENING_TIME_MAX;
            assert!(runs, "etcd does not listen ({ended:?}); its log:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// The errors that the server has written.
    fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
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
            ("--listen-client-urls", client_scheme, self.port.number),
            ("--advertise-client-urls", client_scheme, self.port.number),
            ("--listen-peer-urls", "http", self.peer_port.number),
            ("--initial-advertise-peer-urls", "http", self.peer_port.number),
        ] {
            etcd.args([flag, &format!("{scheme}://127.0.0.1:{port}")]);
        }
        etcd.args(["--initial-cluster", &self.members]).args(&self.tls);
        let log = File::options().create(true).append(true).open(self.log_path());
        let log = log.expect("the log of etcd cannot be opened");
        let started = etcd.stdout(Stdio::null()).stderr(log).spawn();
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

/// TCP port of a server that cannot choose one itself.
struct ReservedPort {
    number: u16,
    /// UDP socket with the same number, by which tests in other processes see the reservation.
    _reservation: UdpSocket,
}

impl ReservedPort {
    /// Below the ports that Linux gives to outgoing connections by default.
    const RANGE: Range<u16> = 16_000..32_000;

    fn find() -> Self {
        let first = rand::random_range(Self::RANGE);
        let numbers = (first..Self::RANGE.end).chain(Self::RANGE.start..first);
        let mut free = numbers.filter_map(|number| {
            let reservation = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
            // It is closed at once, for the server.
            TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
            Some(Self { number, _reservation: reservation })
        });
        free.next().expect("there is no free port")
    }
}

/// A folder in memory if the system has such a file system. On a busy disk, etcd needs seconds to
/// make writes durable, and its leases end.
fn in_memory() -> std::io::Result<TempDir> {
    let memory = Path::new("/dev/shm");
    let builder = tempfile::Builder::new();
    if memory.is_dir() { builder.tempdir_in(memory) } else { builder.tempdir() }
}
