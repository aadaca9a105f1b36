//! Audit log: who changed what, and with which outcome.
//!
//! Each event is one line of JSON, in a file that is rotated, or in the node's log. The writer runs
//! on a separate thread, which takes events from a bounded queue and ends with the [`AuditLog`].
//! Events that find the queue full are dropped and counted; the node's log reports their number.

use crate::Metrics;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::JoinHandle;

/// Events that wait for the writer.
const QUEUE_LEN_MAX: usize = 4_096;

/// The audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditConfig {
    /// File of the audit log, which only its owner can read. None: the node's log, under the target
    /// `weir_audit`.
    pub file: Option<PathBuf>,
    /// Size at which the file is renamed to `FILE.1`, and a new one is begun.
    pub file_bytes_max: u64,
    /// Renamed files that are kept, `FILE.1` being the newest.
    pub files_max: u32,
}

impl Default for AuditConfig {
    fn default() -> Self {
        Self { file: None, file_bytes_max: 64 << 20, files_max: 4 }
    }
}

/// An action of a client, successful or not.
#[derive(Debug, Clone, Serialize)]
pub struct AuditEvent {
    /// Time of the response, in milliseconds since 1970.
    pub time_ms: u64,
    /// Address of the client, or of a proxy in front of the node.
    pub address: String,
    /// Tenant on whose behalf the request ran; none if the client is unknown or the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Beginning of the hash of the client's token, which distinguishes the tokens of a tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_hash: Option<String>,
    /// Name of the client's API key; none for a token of the token file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The person or service to which the OpenID Connect provider gave the client's token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Method of the request.
    pub method: String,
    /// Path of the request, which contains the name of the resource.
    pub path: String,
    /// HTTP status of the response.
    pub status: u16,
    /// Error code of the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Id of the request.
    pub request_id: String,
}

/// Writes events. Dropping it ends the writer after the events so far.
pub struct AuditLog {
    writer: Option<Writer>,
    metrics: Arc<Metrics>,
}

struct Writer {
    queue: SyncSender<Vec<u8>>,
    thread: JoinHandle<()>,
}

impl AuditLog {
    /// Opens the log. Blocks.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(config: &AuditConfig, metrics: Arc<Metrics>) -> io::Result<Self> {
        let Some(path) = &config.file else { return Ok(Self { writer: None, metrics }) };
        let file = RotatedFile::open(path, config.file_bytes_max, config.files_max)?;
        let (queue, events) = mpsc::sync_channel(QUEUE_LEN_MAX);
        let failures = metrics.clone();
        let thread = std::thread::Builder::new().name("weir-audit".to_owned());
        let thread = thread.spawn(move || write(file, &events, &failures))?;
        Ok(Self { writer: Some(Writer { queue, thread }), metrics })
    }

    /// Records an event. Never blocks.
    pub fn record(&self, event: &AuditEvent) {
        // A struct of strings and numbers: serialising it cannot fail.
        let mut line = serde_json::to_vec(event).unwrap_or_default();
        match &self.writer {
            None => tracing::info!(target: "weir_audit", "{}", String::from_utf8_lossy(&line)),
            Some(writer) => {
                line.push(b'\n');
                if writer.queue.try_send(line).is_err() && self.metrics.access.audit_lost.inc() == 0 {
                    tracing::error!("events of the audit log are lost: its file is written too slowly");
                }
            }
        }
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        if let Some(Writer { queue, thread }) = self.writer.take() {
            drop(queue);
            if thread.join().is_err() {
                tracing::error!("the writer of the audit log panicked");
            }
        }
    }
}

fn write(mut file: RotatedFile, events: &Receiver<Vec<u8>>, metrics: &Metrics) {
    let mut is_failing = false;
    for line in events {
        let written = file.append(&line);
        if let Err(error) = &written {
            metrics.access.audit_lost.inc();
            if !is_failing {
                tracing::error!(%error, "an event of the audit log cannot be written");
            }
        }
        is_failing = written.is_err();
    }
}

/// A file that is renamed when it is full.
struct RotatedFile {
    path: PathBuf,
    file: File,
    length_bytes: u64,
    bytes_max: u64,
    files_max: u32,
}

impl RotatedFile {
    fn open(path: &Path, bytes_max: u64, files_max: u32) -> io::Result<Self> {
        let file = append_to(path)?;
        let length_bytes = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, length_bytes, bytes_max, files_max })
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let length_bytes = line.len() as u64;
        if self.length_bytes > 0 && self.length_bytes + length_bytes > self.bytes_max {
            self.rotate()?;
        }
        self.file.write_all(line)?;
        self.length_bytes += length_bytes;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        for number in (1..self.files_max).rev() {
            rename(&numbered(&self.path, number), &numbered(&self.path, number + 1))?;
        }
        match self.files_max {
            0 => fs::remove_file(&self.path)?,
            _ => rename(&self.path, &numbered(&self.path, 1))?,
        }
        self.file = append_to(&self.path)?;
        self.length_bytes = 0;
        Ok(())
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}

/// Renames a file, if there is one.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        renamed => renamed,
    }
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(path: &str) -> AuditEvent {
        AuditEvent {
            time_ms: 1,
            address: "192.0.2.1".to_owned(),
            tenant: Some("acme".to_owned()),
            token_hash: None,
            key: None,
            subject: None,
            method: "PUT".to_owned(),
            path: path.to_owned(),
            status: 200,
            code: None,
            request_id: "r1".to_owned(),
        }
    }

    #[test]
    fn full_files_are_renamed_and_the_oldest_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let config = AuditConfig { file: Some(path.clone()), file_bytes_max: 200, files_max: 2 };
        let log = AuditLog::open(&config, Metrics::new()).unwrap();
        for number in 0..8 {
            log.record(&event(&format!("/v1/functions/f{number}")));
        }
        drop(log);
        let named = |path: &Path| {
            let text = fs::read_to_string(path).unwrap_or_default();
            let name = |line: &str| {
                let event: serde_json::Value = serde_json::from_str(line).unwrap();
                event["path"].as_str().unwrap().trim_start_matches("/v1/functions/").to_owned()
            };
            text.lines().map(name).collect::<Vec<_>>()
        };
        assert_eq!(named(&path), ["f7"]);
        assert_eq!(named(&numbered(&path, 1)), ["f6"]);
        assert_eq!(named(&numbered(&path, 2)), ["f5"]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn events_after_a_restart_are_appended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let config = AuditConfig { file: Some(path.clone()), ..AuditConfig::default() };
        for number in 0..2 {
            AuditLog::open(&config, Metrics::new()).unwrap().record(&event(&number.to_string()));
        }
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2);
    }
}
