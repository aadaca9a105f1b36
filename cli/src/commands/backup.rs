//! `weir backup`.

use crate::client::accepted;
use crate::commands::CommandContext;
use crate::commands::up::Signals;
use crate::error::{Exit, Problem};
use crate::output::{size, time};
use crate::settings::ClientArgs;
use anyhow::{Context as _, Result};
use indicatif::ProgressBar;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use tokio::runtime::{Builder, Runtime};
use ureq::SendBody;
use ureq::http::Method;
use weir_host::backup::{BackupOrigin, BackupSummary, CheckOnly, Parts, read};

/// Save everything that a node or cluster stores, while it serves
///
/// FILE is a tar file with all functions, models, workflows, kernel graphs, objects, API keys and
/// asynchronous invocations of all tenants. It has every change that was acknowledged before the
/// backup began. The file appears when it is complete and all checksums are right; `weir restore`
/// takes it. Only its owner may read it, because it has the settings of functions and the data of
/// all tenants.
///
/// The node needs a token with the scope admin; if it serves several tenants, one of the tenant
/// *backup of its token file.
///
/// Examples:
///   weir backup weir.tar
///   weir backup --url https://weir.example weir.tar --json
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct BackupArgs {
    /// File to write
    file: PathBuf,
    /// Replace FILE if it exists
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    client: ClientArgs,
}

pub(crate) fn run(args: &BackupArgs, context: &CommandContext) -> Result<()> {
    let path = &args.file;
    if path.exists() && !args.force {
        return Err(Problem::new(format!("{} exists", path.display()))
            .hint("name another file, or replace it with --force")
            .into());
    }
    let client = context.client(&args.client)?;
    let unwritable = || format!("cannot write {}", path.display());
    let interrupts = Interrupts::new()?;
    // Beside its final place, and for its owner only.
    let mut file = tempfile::Builder::new().tempfile_in(folder_of(path)).with_context(unwritable)?;
    interrupts.remove(file.path().to_owned());
    let request = client.request(Method::POST, "/v1/backup", SendBody::none())?;
    let answer = accepted(client.send(request)?, "back up the node")?;
    let progress = context.output.received_bytes("receiving the backup");
    let received = receive(answer.into_body().into_reader(), file.as_file_mut(), &progress);
    progress.finish_and_clear();
    let summary = received.map_err(|error| {
        Problem::new("the backup failed")
            .because(error)
            .exit(Exit::Refused)
            .hint("nothing was written; repeat the command")
    })?;
    file.as_file().sync_all().with_context(unwritable)?;
    let file_bytes = file.as_file().metadata().with_context(unwritable)?.len();
    match args.force {
        true => file.persist(path).map_err(|error| error.error),
        false => file.persist_noclobber(path).map_err(|error| error.error),
    }
    .with_context(unwritable)?;
    File::open(folder_of(path)).and_then(|folder| folder.sync_all()).with_context(unwritable)?;
    context.output.result(&Reported { file: path, bytes: file_bytes, summary: &summary }, |reported| {
        format!("saved {} in {}\n{}", size(reported.bytes), path.display(), details(reported.summary))
    })
}

/// The signals that end a backup, from its creation on.
struct Interrupts {
    runtime: Runtime,
    signals: Signals,
}

impl Interrupts {
    fn new() -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        let signals = Signals::new()?;
        drop(entered);
        Ok(Self { runtime, signals })
    }

    /// At the first signal, removes the unfinished file and ends the process.
    fn remove(self, unfinished: PathBuf) {
        let Self { runtime, mut signals } = self;
        std::thread::spawn(move || {
            runtime.block_on(signals.next());
            // A complete backup has its final name already.
            let _ = std::fs::remove_file(unfinished);
            std::process::exit(Exit::Interrupted as i32)
        });
    }
}

/// The folder of a file.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The result of a backup or restore.
#[derive(serde::Serialize)]
pub(crate) struct Reported<'a> {
    pub(crate) file: &'a Path,
    pub(crate) bytes: u64,
    #[serde(flatten)]
    pub(crate) summary: &'a BackupSummary,
}

/// The contents of a backup, for readers.
pub(crate) fn details(summary: &BackupSummary) -> String {
    let BackupSummary { header, records, blobs, blob_bytes } = summary;
    let origin = match header.origin {
        BackupOrigin::Node => "node",
        BackupOrigin::Cluster => "cluster",
    };
    let rows = [
        ("origin", format!("{origin}, Weir {}", header.weir_version)),
        ("begun", time(header.created_at_ms)),
        ("records", records.to_string()),
        ("files", format!("{blobs} ({})", size(*blob_bytes))),
    ];
    rows.map(|(name, value)| format!("{name:<10}{value}\n")).concat()
}

/// Writes an archive to `file`, and checks it meanwhile.
fn receive(body: impl Read, file: &mut File, progress: &ProgressBar) -> Result<BackupSummary> {
    let mut source = Tee { source: body, file: BufWriter::with_capacity(1 << 20, file), progress };
    let summary = read(&mut source, Parts::All, &mut CheckOnly)?;
    // The empty blocks at the end.
    io::copy(&mut source, &mut io::sink()).context("the answer ended early")?;
    source.file.flush()?;
    Ok(summary)
}

/// A reader that writes a copy of all bytes that it reads to a file.
struct Tee<'a, R> {
    source: R,
    file: BufWriter<&'a mut File>,
    progress: &'a ProgressBar,
}

impl<R: Read> Read for Tee<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.source.read(buffer)?;
        self.file.write_all(&buffer[..len])?;
        self.progress.inc(len as u64);
        Ok(len)
    }
}
