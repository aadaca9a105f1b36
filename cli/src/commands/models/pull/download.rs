//! Downloads that continue where an earlier one ended, and are verified.

use crate::client::{Download, DownloadClient};
use crate::error::{Exit, Problem};
use crate::onnx::MODEL_BYTES_MAX;
use crate::output::{OutputSettings, size};
use anyhow::Result;
use indicatif::ProgressBar;
use serde::de::DeserializeOwned;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;
use ureq::http::{HeaderMap, StatusCode, Uri, header};
use weir_types::{ContentHash, Hasher};

/// The largest file. An archive may have files beside the model.
const FILE_BYTES_MAX: u64 = MODEL_BYTES_MAX + (1 << 30);
/// The longest description of a repository.
const JSON_BYTES_MAX: u64 = 16 << 20;
/// Attempts without any progress until a download fails.
const ATTEMPTS_MAX: u32 = 5;
/// The pause after the first failed attempt, which doubles with each further one.
const PAUSE: Duration = Duration::from_millis(500);

/// A file on another server.
#[derive(Debug, Clone)]
pub(super) struct RemoteFile {
    pub(super) url: String,
    /// Token for the server, which redirects to other hosts do not get.
    pub(super) token: Option<String>,
    /// The hash that the file must have, if it is known.
    pub(super) sha256: Option<ContentHash>,
    /// Whether the server is a hub, which states the hashes of large files.
    pub(super) is_on_hub: bool,
}

impl RemoteFile {
    /// Refuses files that others on the network could replace.
    pub(super) fn check_transport(&self) -> Result<()> {
        let uri: Uri = self.url.parse().map_err(|error| {
            Problem::usage(format!("{} is not an address", self.url)).because(anyhow::Error::new(error))
        })?;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let is_loopback =
            host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
        if uri.scheme_str() == Some("https") || is_loopback || self.sha256.is_some() {
            return Ok(());
        }
        let text =
            format!("{} is not encrypted, so that anyone on the way could replace the model", self.url);
        Err(Problem::usage(text).hint("use https://, or pin the file with --sha256").into())
    }

    /// The last part of the path.
    pub(super) fn file_name(&self) -> Result<String> {
        let path = self.url.split(['?', '#']).next().unwrap_or_default();
        let name = path.rsplit('/').next().unwrap_or_default();
        let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "._-+%".contains(c));
        if name.is_empty() || name.starts_with('.') || !is_plain {
            return Err(Problem::usage(format!("{} does not end with the name of a file", self.url)).into());
        }
        Ok(name.to_owned())
    }

    /// The file at `location`, a path relative to this file.
    pub(super) fn beside(&self, location: &str) -> Result<Self> {
        let (path, query) = match self.url.split_once('?') {
            Some((path, query)) => (path, format!("?{query}")),
            None => (self.url.as_str(), String::new()),
        };
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let url = format!("{folder}/{}{query}", percent_encoded(location, true));
        Ok(Self { url, sha256: None, ..self.clone() })
    }
}

/// Reason why an attempt failed.
enum AttemptError {
    /// A further attempt may succeed.
    Interrupted(anyhow::Error),
    /// A further attempt would fail as well.
    Failed(anyhow::Error),
}

/// Downloads files to the disk.
pub(super) struct Downloader {
    client: DownloadClient,
    output: OutputSettings,
}

impl Downloader {
    pub(super) fn new(output: OutputSettings) -> Result<Self> {
        Ok(Self { client: DownloadClient::new()?, output })
    }

    pub(super) fn note(&self, note: String) {
        self.output.note(note);
    }

    /// Reads a JSON document.
    pub(super) fn read_json<T: DeserializeOwned>(&self, file: &RemoteFile) -> Result<T> {
        let download = self.open(file, &HeaderMap::new())?;
        if download.status != StatusCode::OK {
            return Err(refused(file, download.status).into());
        }
        let mut text = Vec::new();
        download.body.take(JSON_BYTES_MAX).read_to_end(&mut text).map_err(|error| unanswered(file, error))?;
        serde_json::from_slice(&text).map_err(|error| {
            Problem::new(format!("{} is not the description of a repository", file.url)).because(error).into()
        })
    }

    /// Adds the hash that a hub states for a large file.
    pub(super) fn with_known_hash(&self, file: RemoteFile) -> Result<RemoteFile> {
        if !file.is_on_hub {
            return Ok(file);
        }
        let download = self.client.head(&file.url, file.token.as_deref())?;
        let etag = ["x-linked-etag", "etag"].iter().find_map(|name| download.headers.get(*name));
        let etag = etag.and_then(|etag| etag.to_str().ok()).unwrap_or_default();
        let sha256 = etag.trim_start_matches("W/").trim_matches('"').parse().ok();
        Ok(RemoteFile { sha256: file.sha256.or(sha256), ..file })
    }

    /// Downloads `file` to `path`, unless it is there already with the right hash, and returns its
    /// hash. Continues an earlier download of the same file if the server supports it.
    pub(super) fn pull(&self, file: &RemoteFile, path: &Path) -> Result<ContentHash> {
        if let Some(expected) = file.sha256
            && let Ok(mut complete) = File::open(path)
            && hash(&mut complete).is_ok_and(|sha256| sha256 == expected)
        {
            return Ok(expected);
        }
        let mut part = PartialFile::open(path)?;
        let bar = self.output.received_bytes(&format!("pulling {}", part.name()));
        let mut attempt = 0;
        loop {
            let before = part.len;
            match self.attempt(file, &mut part, &bar) {
                Ok(()) => break,
                Err(AttemptError::Failed(error)) => return Err(error),
                Err(AttemptError::Interrupted(error)) => {
                    attempt = if part.len > before { 1 } else { attempt + 1 };
                    if attempt >= ATTEMPTS_MAX {
                        return Err(error);
                    }
                    thread::sleep(PAUSE * 2_u32.pow(attempt - 1));
                }
            }
        }
        bar.finish_and_clear();
        let sha256 = part.hash()?;
        if let Some(expected) = file.sha256.filter(|expected| *expected != sha256) {
            part.remove();
            let text = format!("{} has the SHA-256 {sha256}, not {expected}", file.url);
            return Err(Problem::new(text)
                .hint("the file has changed or is damaged; it was not pushed")
                .into());
        }
        part.finish()?;
        Ok(sha256)
    }

    /// Receives the rest of a file.
    fn attempt(
        &self,
        file: &RemoteFile,
        part: &mut PartialFile,
        bar: &ProgressBar,
    ) -> Result<(), AttemptError> {
        let download = self.open(file, &part.condition()).map_err(AttemptError::Interrupted)?;
        match download.status {
            StatusCode::PARTIAL_CONTENT if download.starts_at(part.len) => {}
            // The range begins at the end of the file: it is complete.
            StatusCode::RANGE_NOT_SATISFIABLE if part.len > 0 && download.length_is(part.len) => {
                return Ok(());
            }
            StatusCode::OK | StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {
                let is_whole = download.status == StatusCode::OK;
                part.restart(download.headers.get(header::ETAG)).map_err(AttemptError::Failed)?;
                if !is_whole {
                    let text = format!("{} sent another part of the file", file.url);
                    return Err(AttemptError::Interrupted(Problem::new(text).into()));
                }
            }
            status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                return Err(AttemptError::Interrupted(refused(file, status).into()));
            }
            status => return Err(AttemptError::Failed(refused(file, status).into())),
        }
        if let Some(rest) = download.content_length() {
            bar.set_length(part.len.saturating_add(rest));
        }
        bar.set_position(part.len);
        part.receive(file, download.body, bar)
    }

    fn open(&self, file: &RemoteFile, condition: &HeaderMap) -> Result<Download> {
        self.client.get(&file.url, file.token.as_deref(), condition)
    }
}

/// A file that is not complete yet.
struct PartialFile {
    /// Where the complete file goes.
    path: PathBuf,
    file: File,
    len: u64,
}

impl PartialFile {
    /// Opens the unfinished download for `path`, or begins one. Two commands must not write to one
    /// file.
    fn open(path: &Path) -> Result<Self> {
        let part = part_of(path);
        let unwritable = |error| super::unwritable(&part, error);
        let options = OpenOptions::new().read(true).append(true).create(true).open(&part);
        let file = options.map_err(unwritable)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let text = "another command downloads this model at present";
                return Err(Problem::new(text).hint("wait for its end, then repeat this command").into());
            }
            Err(TryLockError::Error(error)) => return Err(unwritable(error).into()),
        }
        let len = file.metadata().map_err(unwritable)?.len();
        Ok(Self { path: path.to_owned(), file, len })
    }

    fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn etag_path(&self) -> PathBuf {
        self.path.with_added_extension("etag")
    }

    /// Asks for the rest of the file, if it is still the same.
    fn condition(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let etag = fs::read_to_string(self.etag_path()).ok().and_then(|etag| etag.parse().ok());
        if let Some(etag) = etag.filter(|_| self.len > 0)
            && let Ok(range) = format!("bytes={}-", self.len).parse()
        {
            headers.insert(header::RANGE, range);
            headers.insert(header::IF_RANGE, etag);
        }
        headers
    }

    /// Begins the download again. Without a strong `etag`, it cannot be continued later.
    fn restart(&mut self, etag: Option<&header::HeaderValue>) -> Result<()> {
        self.file.set_len(0).map_err(|error| super::unwritable(&self.path, error))?;
        self.len = 0;
        let etag = etag.and_then(|etag| etag.to_str().ok()).filter(|etag| etag.starts_with('"'));
        match etag {
            Some(etag) => fs::write(self.etag_path(), etag),
            None => fs::remove_file(self.etag_path()).or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            }),
        }
        .map_err(|error| super::unwritable(&self.path, error).into())
    }

    fn receive(
        &mut self,
        from: &RemoteFile,
        mut body: impl Read,
        bar: &ProgressBar,
    ) -> Result<(), AttemptError> {
        let mut buffer = vec![0; 256 << 10];
        loop {
            let count = match body.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(AttemptError::Interrupted(unanswered(from, error).into())),
            };
            if self.len + count as u64 > FILE_BYTES_MAX {
                self.remove();
                let text = format!("{} has more than {}", from.url, size(FILE_BYTES_MAX));
                return Err(AttemptError::Failed(Problem::new(text).into()));
            }
            let written = self.file.write_all(&buffer[..count]);
            written.map_err(|error| AttemptError::Failed(super::unwritable(&self.path, error).into()))?;
            self.len += count as u64;
            bar.inc(count as u64);
        }
    }

    fn hash(&mut self) -> Result<ContentHash> {
        let begun = self.file.seek(SeekFrom::Start(0));
        let hashed = begun.and_then(|_| hash(&mut self.file));
        hashed.map_err(|error| super::unwritable(&self.path, error).into())
    }

    /// Moves the complete file to its place.
    fn finish(self) -> Result<()> {
        let _ = fs::remove_file(self.etag_path());
        let moved = fs::rename(part_of(&self.path), &self.path);
        moved.map_err(|error| super::unwritable(&self.path, error).into())
    }

    fn remove(&self) {
        let _ = fs::remove_file(self.etag_path());
        let _ = fs::remove_file(part_of(&self.path));
    }
}

/// Hashes the rest of a file.
fn hash(file: &mut File) -> io::Result<ContentHash> {
    let mut hasher = Hasher::default();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finish()),
            count => hasher.update(&buffer[..count]),
        }
    }
}

fn part_of(path: &Path) -> PathBuf {
    path.with_added_extension("part")
}

fn unanswered(file: &RemoteFile, error: io::Error) -> Problem {
    Problem::new(format!("the download of {} was interrupted", file.url))
        .because(error)
        .exit(Exit::Unreachable)
        .hint("repeat the command: it continues where it ended")
}

fn refused(file: &RemoteFile, status: StatusCode) -> Problem {
    let problem = Problem::new(format!("{} answered {status}", file.url)).exit(Exit::Unreachable);
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => problem.hint(
            "the repository may not exist, be private, or ask you to accept its licence; HF_TOKEN is the token for the hub",
        ),
        StatusCode::NOT_FOUND => problem.hint("check the owner, name, file and revision"),
        _ => problem.hint("try again later"),
    }
}

/// Encodes a path, or a part of one, for an address.
pub(super) fn percent_encoded(text: &str, is_path: bool) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte.into()),
            b'/' if is_path => encoded.push('/'),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(url: &str) -> RemoteFile {
        RemoteFile { url: url.into(), token: None, sha256: None, is_on_hub: false }
    }

    #[test]
    fn unencrypted_sources_need_a_hash() {
        for good in [
            "https://example.com/a.onnx",
            "http://127.0.0.1:1/a.onnx",
            "http://[::1]/a",
            "http://localhost/a",
        ] {
            file(good).check_transport().unwrap();
        }
        let plain = file("http://example.com/a.onnx");
        assert!(plain.check_transport().is_err());
        let sha256 = Some(ContentHash::from_content(b""));
        RemoteFile { sha256, ..plain }.check_transport().unwrap();
    }

    #[test]
    fn file_names_stay_in_their_folder() {
        assert_eq!(file("https://a/b/c.onnx?x=/y").file_name().unwrap(), "c.onnx");
        for wrong in ["https://a/b/", "https://a/..", "https://a/.hidden", "https://a/b\\c.onnx"] {
            assert!(file(wrong).file_name().is_err(), "{wrong}");
        }
    }

    #[test]
    fn weights_are_beside_their_model() {
        let beside = file("https://a/b/c.onnx?token=1").beside("d e/f.bin").unwrap();
        assert_eq!(beside.url, "https://a/b/d%20e/f.bin?token=1");
    }
}
