//! Programs of the cluster, which are killed, stopped and started again.

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};

/// Time limit of a start, and of an end by SIGTERM.
const PATIENCE: Duration = Duration::from_secs(90);
/// Interval at which a starting process is asked.
const ASKED_EVERY: Duration = Duration::from_millis(50);
/// Pause before a process that ended during its start is started again, as a service manager does.
const AGAIN_AFTER: Duration = Duration::from_millis(300);

/// A program with its arguments, and its process. The process is killed on drop.
pub(crate) struct Process {
    name: String,
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(&'static str, OsString)>,
    log: PathBuf,
    /// URL that is answered with success when the process is ready.
    ready: String,
    http: reqwest::Client,
    child: Option<Child>,
}

impl Process {
    /// Describes a program. `ready` is the URL that it answers as soon as it is ready.
    pub(crate) fn new(name: String, program: PathBuf, log: PathBuf, ready: String) -> Result<Self> {
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(2)).build()?;
        let arguments = Vec::new();
        let environment = Vec::new();
        Ok(Self { name, program, arguments, environment, log, ready, http, child: None })
    }

    /// Adds arguments.
    pub(crate) fn arguments<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable.
    pub(crate) fn environment(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// ID of the running process.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// Starts the program, and waits until it is ready. A process that ends before is started
    /// again, because a node ends if it cannot reach etcd at its start.
    pub(crate) async fn start(&mut self) -> Result<()> {
        let began = Instant::now();
        self.spawn()?;
        while !self.is_ready().await {
            if began.elapsed() > PATIENCE {
                bail!(
                    "{} is not ready after {} s; see {}",
                    self.name,
                    PATIENCE.as_secs(),
                    self.log.display()
                );
            }
            if self.ended().is_some() {
                tokio::time::sleep(AGAIN_AFTER).await;
                self.spawn()?;
            }
            tokio::time::sleep(ASKED_EVERY).await;
        }
        Ok(())
    }

    fn spawn(&mut self) -> Result<()> {
        let open = || File::options().create(true).append(true).open(&self.log);
        let mut command = Command::new(&self.program);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("WEIR_")) {
            command.env_remove(name);
        }
        command.args(&self.arguments).envs(self.environment.iter().map(|(name, value)| (name, value)));
        // Outside any folder with a `weir.toml`, and without the Ctrl-C of the terminal.
        command.current_dir("/").process_group(0).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(open()?).stderr(open()?);
        self.child = Some(command.spawn().with_context(|| format!("{} cannot be started", self.name))?);
        Ok(())
    }

    async fn is_ready(&self) -> bool {
        self.http.get(&self.ready).send().await.is_ok_and(|answer| answer.status().is_success())
    }

    /// Exit status of a process that has ended without [`kill`](Self::kill) or
    /// [`terminate`](Self::terminate).
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.as_mut()?.try_wait().ok().flatten()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.pid().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        let pid = pid.with_context(|| format!("{} has ended", self.name))?;
        kill_process(pid, signal).with_context(|| format!("cannot send a signal to {}", self.name))
    }

    /// Kills the process.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill().await.with_context(|| format!("cannot kill {}", self.name))?;
        }
        Ok(())
    }

    /// Ends the process by SIGTERM. Returns its status, or `None` if it did not end in time and was
    /// killed.
    pub(crate) async fn terminate(&mut self) -> Result<Option<ExitStatus>> {
        self.signal(Signal::TERM)?;
        let Some(mut child) = self.child.take() else { return Ok(None) };
        match tokio::time::timeout(PATIENCE, child.wait()).await {
            Ok(status) => Ok(Some(status?)),
            Err(_) => {
                child.kill().await?;
                Ok(None)
            }
        }
    }
}
