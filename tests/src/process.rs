//! Process information from the kernel.

use std::path::Path;

/// Resident set size of a process.
#[must_use]
pub fn rss_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is gone");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("the status has VmRSS");
    line.split_whitespace()
        .nth(1)
        .and_then(|number| number.parse::<u64>().ok())
        .expect("the line has a number of KiB")
        * 1024
}

/// Proportional set size of a process, which divides shared memory among its users.
#[must_use]
pub fn pss_bytes(pid: u32) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("the process is gone");
    let line = rollup.lines().find(|line| line.starts_with("Pss:")).expect("the rollup has Pss");
    let kib = line.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok());
    kib.expect("the line has a number of KiB") * 1024
}

/// Child processes, including zombies.
#[must_use]
pub fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let of_task = |task: &Path| std::fs::read_to_string(task.join("children")).unwrap_or_default();
    let lists = tasks.filter_map(|task| Some(of_task(&task.ok()?.path())));
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Number of threads of a process.
#[must_use]
pub fn threads(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// Sends a signal, such as `STOP`, to a process.
pub fn signal(pid: u32, name: &str) {
    // Use the shell's builtin: a minimal Debian has no `kill` program.
    let kill = ["-c", r#"kill -s "$1" "$2""#, "sh", name, &pid.to_string()];
    let sent = std::process::Command::new("sh").args(kill).status();
    assert!(sent.is_ok_and(|status| status.success()), "{name} could not be sent");
}
