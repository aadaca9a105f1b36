//! Resource use of a program and its children, read from `/proc`.

use anyhow::{Context as _, Result, anyhow};
use procfs::process::Process;
use procfs::{CurrentSI as _, KernelStats, ProcResult};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Resident memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct ResidentMemory {
    pub(crate) total_bytes: u64,
    /// The part that is not backed by files: heap, stacks, guest memories.
    pub(crate) anonymous_bytes: u64,
}

/// A process and all its descendants.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessTree {
    root: i32,
}

impl ProcessTree {
    pub(crate) fn new(pid: u32) -> Self {
        Self { root: pid.cast_signed() }
    }

    /// CPU time so far, including ended processes. Exact to a kernel tick (10 ms) per process.
    pub(crate) fn cpu_time(&self) -> Result<Duration> {
        let mut ticks = 0;
        for stat in self.each(Process::stat)? {
            ticks += stat.utime + stat.stime + stat.cutime.cast_unsigned() + stat.cstime.cast_unsigned();
        }
        Ok(of_ticks(ticks))
    }

    /// Resident memory. Pages that processes share are counted for each process.
    pub(crate) fn resident(&self) -> Result<ResidentMemory> {
        let mut resident = ResidentMemory::default();
        for status in self.each(Process::status)? {
            resident.total_bytes += status.vmrss.unwrap_or(0) << 10;
            resident.anonymous_bytes += status.rssanon.unwrap_or(0) << 10;
        }
        Ok(resident)
    }

    /// The largest peak of resident bytes over the running descendants.
    fn children_peak(&self) -> u64 {
        let children = self.processes().unwrap_or_default().into_iter().skip(1);
        children.filter_map(|child| child.status().ok()?.vmhwm).max().unwrap_or(0) << 10
    }

    /// Waits until the tree is idle, or `longest` has passed.
    pub(crate) fn settle(&self, longest: Duration) -> Result<()> {
        /// Long enough for several ticks of a busy process.
        const WINDOW: Duration = Duration::from_millis(100);
        let started = Instant::now();
        let mut before = self.cpu_time()?;
        while started.elapsed() < longest {
            thread::sleep(WINDOW);
            let now = self.cpu_time()?;
            if now - before <= WINDOW / 5 {
                break;
            }
            before = now;
        }
        Ok(())
    }

    /// Applies `read` to each process. Processes that have ended are skipped, except for the root,
    /// whose end is an error.
    fn each<T>(&self, read: impl Fn(&Process) -> ProcResult<T>) -> Result<Vec<T>> {
        let processes = self.processes()?;
        let root = processes.first().map(&read).transpose().context("the measured program has ended")?;
        let children = processes.iter().skip(1).filter_map(|process| read(process).ok());
        Ok(root.into_iter().chain(children).collect())
    }

    /// All processes of the tree, the root first.
    pub(crate) fn processes(&self) -> Result<Vec<Process>> {
        let root = Process::new(self.root).context("the measured program has ended")?;
        let mut found = vec![root];
        let mut next = 0;
        while let Some(process) = found.get(next) {
            let mut children = Vec::new();
            // A process, a thread or a child may end meanwhile.
            for task in process.tasks().into_iter().flatten().flatten() {
                children.extend(task.children().unwrap_or_default());
            }
            found.extend(children.into_iter().filter_map(|pid| Process::new(pid.cast_signed()).ok()));
            next += 1;
        }
        Ok(found)
    }
}

/// Thread that records the peak memory of a tree's descendants.
#[derive(Debug)]
pub(crate) struct PeakWatch {
    stop: Sender<()>,
    thread: JoinHandle<u64>,
}

impl PeakWatch {
    /// Poll interval. Allocations in the last moments of a process are missed.
    const EVERY: Duration = Duration::from_millis(2);

    pub(crate) fn start(tree: ProcessTree) -> Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let watch = move || {
            let mut peak = 0;
            while stopped.recv_timeout(Self::EVERY) == Err(RecvTimeoutError::Timeout) {
                peak = peak.max(tree.children_peak());
            }
            peak
        };
        let thread =
            thread::Builder::new().name("peak".into()).spawn(watch).context("cannot start a thread")?;
        Ok(Self { stop, thread })
    }

    /// Stops the thread and returns the peak in bytes.
    pub(crate) fn stop(self) -> Result<u64> {
        drop(self.stop);
        self.thread.join().map_err(|_| anyhow!("the watch of memory panicked"))
    }
}

/// CPU time of this process's ended children.
pub(crate) fn ended_children_cpu_time() -> Result<Duration> {
    let stat = Process::myself()?.stat()?;
    Ok(of_ticks(stat.cutime.cast_unsigned() + stat.cstime.cast_unsigned()))
}

/// CPU time used on the whole machine, including steal time of other guests on the hardware.
pub(crate) fn machine_busy_time() -> Result<Duration> {
    let cpu = KernelStats::current()?.total;
    let interrupts = cpu.irq.unwrap_or(0) + cpu.softirq.unwrap_or(0);
    Ok(of_ticks(cpu.user + cpu.nice + cpu.system + interrupts + cpu.steal.unwrap_or(0)))
}

fn of_ticks(ticks: u64) -> Duration {
    Duration::from_secs_f64(ticks as f64 / procfs::ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn peak_memory_excludes_the_root() {
        // Reads until this side closes the input.
        let mut child = Command::new("sh")
            .args(["-c", "exec 3<&0; cat <&3 >&2 & echo; wait"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0; 1];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        let tree = ProcessTree::new(child.id());
        let began = Instant::now();
        // `cat` is forked by now, and executes its own program a little later. A process has no
        // memory for a moment while it changes its program.
        let peak = loop {
            let peak = tree.children_peak();
            if peak >= 10_000 || began.elapsed() > Duration::from_secs(60) {
                break peak;
            }
            thread::yield_now();
        };
        assert!((10_000..1 << 30).contains(&peak), "{peak}");
        let watch = PeakWatch::start(tree).unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(tree.children_peak(), 0);
        assert!(watch.stop().unwrap() < 1 << 30);
    }

    #[test]
    fn ended_child_is_skipped_but_ended_root_is_an_error() {
        let gone = || Err(procfs::ProcError::NotFound(None));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let tree = ProcessTree::new(std::process::id());
        let root = std::process::id().cast_signed();
        let all = tree.each(|process| Ok(process.pid())).unwrap();
        assert!(all[0] == root && all.contains(&child.id().cast_signed()));
        let only_root = |process: &Process| if process.pid() == root { Ok(root) } else { gone() };
        let but_root = |process: &Process| if process.pid() == root { gone() } else { Ok(root) };
        assert_eq!(tree.each(only_root).unwrap(), [root]);
        assert!(tree.each(but_root).is_err());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn tree_includes_grandchildren_and_ended_processes() {
        // The inner shell spins for a while and ends; the outer shell then waits for input.
        let script = "sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; echo done; read x";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0; 5];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        let tree = ProcessTree::new(child.id());
        assert!(tree.cpu_time().unwrap() >= Duration::from_millis(50), "{:?}", tree.cpu_time());
        assert!(tree.resident().unwrap().total_bytes > 100_000);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(tree.cpu_time().is_err());
    }
}
