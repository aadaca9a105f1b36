//! NATS server with JetStream and an empty data folder.

use serde_json::{Value, json};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// Time in which a server must listen, on a busy machine.
const LISTENING_TIME_MAX: Duration = Duration::from_secs(60);

/// NATS server. It is killed on drop.
pub struct NatsServer {
    folder: TempDir,
    port: u16,
    /// Further options of connections of the test, with its login.
    login: Value,
    process: Child,
}

impl NatsServer {
    /// Whether a NATS server is installed. If not, prints a reason to skip a test, or panics if
    /// `WEIR_REQUIRE_NATS` is set.
    #[must_use]
    pub fn is_installed() -> bool {
        let asked = Command::new("nats-server").arg("--version").stdout(Stdio::null()).status();
        let installed = asked.is_ok_and(|status| status.success());
        assert!(
            installed || std::env::var_os("WEIR_REQUIRE_NATS").is_none(),
            "nats-server does not start, and WEIR_REQUIRE_NATS is set; `cargo xtask setup` installs it"
        );
        if !installed {
            eprintln!("skipped: nats-server does not start; `cargo xtask setup` installs it");
        }
        installed
    }

    /// Starts a server that needs no login.
    pub async fn start() -> Self {
        Self::start_with("", json!({})).await
    }

    /// Starts a server with these lines of configuration. The test logs in with the options `login`.
    pub async fn start_with(configuration: &str, login: Value) -> Self {
        let folder = tempfile::tempdir().expect("there is no room for a folder");
        let (process, port) = run(folder.path(), configuration, 0).await;
        Self { folder, port, login, process }
    }

    /// `nats://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Kills the server, and starts it with the same port and data.
    pub async fn restart(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        (self.process, self.port) = run(self.folder.path(), "", self.port).await;
    }

    /// Creates a stream of the subjects `NAME.>`.
    pub async fn create_stream(&self, name: &str) {
        let settings = json!({"name": name, "subjects": [format!("{name}.>")], "storage": "file"});
        self.api(&format!("STREAM.CREATE.{name}"), &settings).await;
    }

    /// Publishes a message with headers, and waits until the stream has stored it.
    pub async fn publish(&self, subject: &str, headers: &[(&str, &str)], payload: &[u8]) {
        let answer = self.call(subject, headers, payload).await;
        assert!(answer["seq"].is_u64(), "{answer}");
    }

    /// Calls the API of JetStream.
    pub async fn api(&self, method: &str, request: &Value) -> Value {
        let request = if request.is_null() { String::new() } else { request.to_string() };
        let answer = self.call(&format!("$JS.API.{method}"), &[], request.as_bytes()).await;
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer
    }

    /// Sends a request on a new connection, and returns the answer.
    async fn call(&self, subject: &str, headers: &[(&str, &str)], payload: &[u8]) -> Value {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await.expect("the server listens");
        let mut stream = BufReader::new(stream);
        let mut options = json!({"verbose": false, "headers": true});
        options.as_object_mut().unwrap().extend(self.login.as_object().unwrap().clone());
        let mut block = String::from("NATS/1.0\r\n");
        for (name, value) in headers {
            block.push_str(&format!("{name}: {value}\r\n"));
        }
        block.push_str("\r\n");
        let sizes = format!("{} {}", block.len(), block.len() + payload.len());
        let mut sent =
            format!("CONNECT {options}\r\nSUB answers 1\r\nHPUB {subject} answers {sizes}\r\n{block}")
                .into_bytes();
        sent.extend_from_slice(payload);
        sent.extend_from_slice(b"\r\n");
        stream.write_all(&sent).await.expect("the server reads");
        let answering = async {
            loop {
                let mut line = String::new();
                assert!(stream.read_line(&mut line).await.unwrap() > 0, "the server closed the connection");
                assert!(!line.starts_with("-ERR"), "{line}");
                if let Some(rest) = line.strip_prefix("MSG answers 1 ") {
                    let mut answer = vec![0; rest.trim().parse().unwrap()];
                    stream.read_exact(&mut answer).await.unwrap();
                    return serde_json::from_slice(&answer).unwrap();
                }
                assert!(!line.starts_with("HMSG"), "the server has no JetStream: {line}");
            }
        };
        tokio::time::timeout(LISTENING_TIME_MAX, answering).await.expect("the server answers")
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs a server, on a free port if `port` is 0. Returns it and its port once it listens.
async fn run(folder: &Path, configuration: &str, port: u16) -> (Child, u16) {
    let path = folder.join("nats.conf");
    if port == 0 {
        let data = folder.join("data");
        let text = format!("jetstream {{ store_dir: {:?} }}\n{configuration}\n", data.display().to_string());
        std::fs::write(&path, text).expect("the folder takes files");
    }
    let ports = folder.join("ports");
    let _ = std::fs::remove_dir_all(&ports);
    std::fs::create_dir(&ports).expect("the folder takes folders");
    let mut command = Command::new("nats-server");
    command.args(["-a", "127.0.0.1", "-p", &if port == 0 { "-1".to_owned() } else { port.to_string() }]);
    command.arg("-c").arg(&path).arg("--ports_file_dir").arg(&ports);
    let mut process =
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("nats-server starts");
    let started_at = Instant::now();
    loop {
        if let Some(port) = listening_port(&ports)
            && TcpStream::connect(("127.0.0.1", port)).await.is_ok()
        {
            return (process, port);
        }
        assert!(process.try_wait().unwrap().is_none(), "nats-server ended at once");
        assert!(started_at.elapsed() < LISTENING_TIME_MAX, "nats-server does not listen");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The port in the file that the server writes.
fn listening_port(folder: &Path) -> Option<u16> {
    let file = std::fs::read_dir(folder).ok()?.find_map(Result::ok)?;
    let ports: Value = serde_json::from_slice(&std::fs::read(file.path()).ok()?).ok()?;
    ports["nats"][0].as_str()?.rsplit(':').next()?.parse().ok()
}
