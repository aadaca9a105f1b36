//! Standard error of a worker, in the node's log.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::io::{self, Write};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use weir_worker::Process;

/// Writer that passes on every event.
#[derive(Clone)]
struct Events(Sender<String>);

impl Write for Events {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let _ = self.0.send(String::from_utf8_lossy(event).into_owned());
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn worker_cannot_forge_lines_of_the_log() {
    let (sender, events) = channel();
    let writer = Events(sender);
    let log = tracing_subscriber::fmt().json().with_writer(move || writer.clone());
    tracing::subscriber::set_global_default(log.finish()).unwrap();
    let forged = r#"printf '{"level":"ERROR"}\nwith \033[31mcolour\n' >&2; exec sleep 60"#;
    let worker =
        Process::start(Command::new("sh").args(["-c", forged]), "models of acme".to_owned()).unwrap();
    for expected in [r#"{"level":"ERROR"}"#, "with \u{1b}[31mcolour"] {
        let event = events.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(event.lines().count(), 1, "{event}");
        let event: serde_json::Value = serde_json::from_str(&event).unwrap();
        assert_eq!(event["level"], "WARN");
        assert_eq!(event["fields"]["worker"], "models of acme");
        assert_eq!(event["fields"]["line"], expected);
    }
    drop(worker);
}
