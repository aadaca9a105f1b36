//! Deploying the project once, or whenever one of its files changes, beside a running node.

use super::Deployer;
use crate::project::Stop;
use anyhow::{Context as _, Result};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Editors write a file in several steps, and tools write many files: deploy when it has been quiet for this long,
const QUIET: Duration = Duration::from_millis(150);
/// or when this has passed since the first change.
const PATIENCE: Duration = Duration::from_secs(2);
/// Folders in which builds and nodes write.
const NOT_WATCHED: [&str; 7] =
    ["target", "node_modules", "dist", "build", "weir-data", "__pycache__", "venv"];

/// The thread that builds and deploys. Ends when it is stopped or dropped, and its build with it.
pub(super) struct Watcher {
    stop: Stop,
    wake: SyncSender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Deploy now and, where `data` is given, after every change of the project's files, among which the node's data are not.
    pub(super) fn start(deployer: Deployer, data: Option<&Path>) -> Result<Self> {
        let stop = Stop::default();
        // One waiting change is as good as many.
        let (wake, changes) = sync_channel(1);
        let folder = deployer.file.parent().unwrap_or(Path::new("."));
        let files = data.map(|data| Files::watch(folder, data, wake.clone())).transpose()?;
        let thread = {
            let stop = stop.clone();
            std::thread::Builder::new()
                .name("deploy".into())
                .spawn(move || work(&deployer, files, &changes, &stop))?
        };
        Ok(Self { stop, wake, thread: Some(thread) })
    }

    /// End the build or deployment under way and wait for the thread.
    pub(super) fn stop(self) {
        drop(self);
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop.stop();
        // A full channel wakes it just as well.
        let _ = self.wake.try_send(());
        if let Some(thread) = self.thread.take() {
            // It has told of its failures already.
            let _ = thread.join();
        }
    }
}

fn work(deployer: &Deployer, files: Option<Files>, changes: &Receiver<()>, stop: &Stop) {
    deployer.deploy(stop);
    let Some(mut files) = files else { return };
    deployer.output.note(format_args!("watching {}", files.folder.display()));
    while !stop.is_stopped() && changes.recv().is_ok() {
        settle(changes, stop);
        files.refresh();
        if !stop.is_stopped() {
            deployer.deploy(stop);
        }
    }
}

/// Wait until the changes have come to rest.
fn settle(changes: &Receiver<()>, stop: &Stop) {
    let until = Instant::now() + PATIENCE;
    while !stop.is_stopped() && Instant::now() < until {
        if let Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) = changes.recv_timeout(QUIET) {
            return;
        }
    }
}

/// The watched files of a project: those at its top, and all in the folders below that are not for builds.
struct Files {
    folder: PathBuf,
    data: PathBuf,
    watcher: RecommendedWatcher,
    watched: BTreeSet<PathBuf>,
}

impl Files {
    fn watch(folder: &Path, data: &Path, wake: SyncSender<()>) -> Result<Self> {
        let data = std::path::absolute(data)?;
        let (top, not, own) = (folder.to_owned(), data.clone(), own_output());
        let on_event = move |event: notify::Result<notify::Event>| {
            let matters = event.is_ok_and(|event| {
                let changed = !matches!(event.kind, EventKind::Access(_));
                changed
                    && event.paths.iter().any(|path| {
                        is_source(&top, path)
                            && !path.starts_with(&not)
                            && !identity(path).is_some_and(|file| own.contains(&file))
                    })
            });
            if matters && let Err(TrySendError::Disconnected(())) = wake.try_send(()) {
                tracing::debug!("a change came after the watcher had ended");
            }
        };
        let watcher = notify::recommended_watcher(on_event).context("cannot watch files")?;
        let mut files = Self { folder: folder.to_owned(), data, watcher, watched: BTreeSet::new() };
        files
            .watcher
            .watch(folder, RecursiveMode::NonRecursive)
            .context("cannot watch the project's folder")?;
        files.refresh();
        Ok(files)
    }

    /// Take in folders that are new.
    fn refresh(&mut self) {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return };
        let folders = entries.flatten().map(|entry| entry.path());
        let folders: BTreeSet<PathBuf> = folders
            .filter(|path| path.is_dir() && is_source(&self.folder, path) && *path != self.data)
            .collect();
        for folder in folders.difference(&self.watched) {
            if let Err(error) = self.watcher.watch(folder, RecursiveMode::Recursive) {
                tracing::warn!(folder = %folder.display(), %error, "cannot watch a folder");
            }
        }
        self.watched = folders;
    }
}

/// The files that standard output and error go to: a log kept in the project's folder must not wake what writes it.
fn own_output() -> Vec<(u64, u64)> {
    let of = |stat: rustix::io::Result<rustix::fs::Stat>| stat.ok().map(|stat| (stat.st_dev, stat.st_ino));
    [of(rustix::fs::fstat(std::io::stdout())), of(rustix::fs::fstat(std::io::stderr()))]
        .into_iter()
        .flatten()
        .collect()
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Whether a change of `path` can change what the project in `top` builds.
fn is_source(top: &Path, path: &Path) -> bool {
    let Ok(below) = path.strip_prefix(top) else { return false };
    let Some(Component::Normal(first)) = below.components().next() else { return false };
    let first = first.to_string_lossy();
    let product = path.extension().is_some_and(|end| end == "wasm");
    let scratch = path.file_name().is_some_and(|name| {
        let name = name.to_string_lossy();
        name.starts_with('.') || name.ends_with('~') || name == "4913"
    });
    !product && !scratch && !first.starts_with('.') && !NOT_WATCHED.contains(&&*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_data_and_editors_do_not_wake_it() {
        let top = Path::new("/p");
        for source in ["/p/src/lib.rs", "/p/Cargo.toml", "/p/weir.toml", "/p/src/target/x.rs"] {
            assert!(is_source(top, Path::new(source)), "{source}");
        }
        for other in [
            "/p",
            "/elsewhere",
            "/p/target/debug/x",
            "/p/.git/HEAD",
            "/p/weir-data/registry",
            "/p/app.wasm",
            "/p/src/.lib.rs.swp",
        ] {
            assert!(!is_source(top, Path::new(other)), "{other}");
        }
    }

    #[test]
    fn a_change_wakes_it_also_in_a_folder_made_later() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().canonicalize().unwrap();
        std::fs::create_dir(top.join("src")).unwrap();
        std::fs::create_dir(top.join("target")).unwrap();
        let (wake, changes) = sync_channel(1);
        let mut files = Files::watch(&top, &top.join("state"), wake).unwrap();
        let wait = Duration::from_secs(20);
        std::fs::write(top.join("src/lib.rs"), "1").unwrap();
        changes.recv_timeout(wait).unwrap();
        std::fs::create_dir(top.join("wit")).unwrap();
        settle(&changes, &Stop::default());
        files.refresh();
        while changes.try_recv().is_ok() {}
        std::fs::write(top.join("target/x"), "1").unwrap();
        std::fs::write(top.join("wit/a.wit"), "1").unwrap();
        changes.recv_timeout(wait).unwrap();
        assert!(files.watched.contains(&top.join("wit")) && !files.watched.contains(&top.join("target")));
    }
}
