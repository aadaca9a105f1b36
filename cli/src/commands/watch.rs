//! Deploys a project once, or on every file change.

mod deployer;
mod follow;

pub(crate) use deployer::Deployer;
pub(crate) use follow::LogFollower;

use crate::project::BuildStop;
use anyhow::{Context as _, Result};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Quiet time after the last change before a deployment: editors and tools write files in several
/// steps.
const QUIET: Duration = Duration::from_millis(150);
/// Maximum time between the first change and the deployment.
const PATIENCE: Duration = Duration::from_secs(2);
/// Folders that builds and nodes write to.
const NOT_WATCHED: [&str; 7] =
    ["target", "node_modules", "dist", "build", "weir-data", "__pycache__", "venv"];

/// Build and deploy thread. It ends when stopped or dropped, and ends its running build.
pub(crate) struct Watcher {
    stop: BuildStop,
    wake: SyncSender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Deploys now and, if `data` is given, after every change of the project's files. The node's
    /// data folder `data` is ignored. `stop` ends the running build.
    pub(crate) fn start(deployer: Deployer, data: Option<&Path>, stop: BuildStop) -> Result<Self> {
        // One pending change is enough to trigger a deployment.
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

    /// Ends the current build or deployment and waits for the thread.
    pub(crate) fn stop(self) {
        drop(self);
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop.stop();
        // A full channel already wakes the thread.
        let _ = self.wake.try_send(());
        if let Some(thread) = self.thread.take() {
            // The thread has reported its failures already.
            let _ = thread.join();
        }
    }
}

fn work(deployer: &Deployer, files: Option<Files>, changes: &Receiver<()>, stop: &BuildStop) {
    deployer.deploy(files.is_some(), stop);
    let Some(mut files) = files else { return };
    deployer.output.note(format_args!("watching {}", files.folder.display()));
    while !stop.is_stopped() && changes.recv().is_ok() {
        settle(changes, stop);
        files.refresh();
        if !stop.is_stopped() {
            deployer.deploy(true, stop);
        }
    }
}

/// Waits until the changes pause.
fn settle(changes: &Receiver<()>, stop: &BuildStop) {
    let until = Instant::now() + PATIENCE;
    while !stop.is_stopped() && Instant::now() < until {
        if let Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) = changes.recv_timeout(QUIET) {
            return;
        }
    }
}

/// Watched files of a project: the top-level files, and all files in source folders.
struct Files {
    folder: PathBuf,
    data: PathBuf,
    watcher: RecommendedWatcher,
    watched: BTreeSet<PathBuf>,
}

impl Files {
    fn watch(folder: &Path, data: &Path, wake: SyncSender<()>) -> Result<Self> {
        let data = std::path::absolute(data)?;
        let top = folder.to_owned();
        let not = data.clone();
        let own = own_output();
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
                tracing::debug!("file change after the end of the watcher ignored");
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

    /// Watches new folders.
    fn refresh(&mut self) {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return };
        let folders = entries.flatten().map(|entry| entry.path());
        let folders: BTreeSet<PathBuf> = folders
            .filter(|path| path.is_dir() && is_source(&self.folder, path) && *path != self.data)
            .collect();
        for folder in folders.difference(&self.watched) {
            if let Err(error) = self.watcher.watch(folder, RecursiveMode::Recursive) {
                tracing::warn!(folder = %folder.display(), %error, "watching a folder failed");
            }
        }
        self.watched = folders;
    }
}

/// Identities of the files that stdout and stderr write to. A log in the project's folder must not
/// trigger a deployment, which would write to the log again.
fn own_output() -> Vec<(u64, u64)> {
    [rustix::fs::fstat(std::io::stdout()), rustix::fs::fstat(std::io::stderr())]
        .into_iter()
        .flatten()
        .map(|stat| (stat.st_dev, stat.st_ino))
        .collect()
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Whether a change of `path` can affect the build of the project in `top`.
fn is_source(top: &Path, path: &Path) -> bool {
    let Ok(below) = path.strip_prefix(top) else { return false };
    let Some(Component::Normal(first)) = below.components().next() else { return false };
    let first = first.to_string_lossy();
    let product = path.extension().is_some_and(|end| end == "wasm");
    let scratch = path.file_name().is_some_and(|name| {
        let name = name.to_string_lossy();
        name.starts_with('.') || name.ends_with('~') || name == "4913"
    });
    // Python writes this folder next to the modules that it imports.
    let cached = below.components().any(|part| part.as_os_str() == "__pycache__");
    !product && !scratch && !cached && !first.starts_with('.') && !NOT_WATCHED.contains(&&*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_data_and_editor_files_do_not_trigger_a_deployment() {
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
            "/p/sdk/weir/__pycache__/http.pyc",
        ] {
            assert!(!is_source(top, Path::new(other)), "{other}");
        }
    }

    #[test]
    fn changes_in_new_folders_trigger_a_deployment() {
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
        settle(&changes, &BuildStop::default());
        files.refresh();
        while changes.try_recv().is_ok() {}
        std::fs::write(top.join("target/x"), "1").unwrap();
        std::fs::write(top.join("wit/a.wit"), "1").unwrap();
        changes.recv_timeout(wait).unwrap();
        assert!(files.watched.contains(&top.join("wit")) && !files.watched.contains(&top.join("target")));
    }
}
