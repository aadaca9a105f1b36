//! Memory of the machine.

use std::path::Path;

/// Memory that the processes of this one's control group may use: that of the machine, or less if
/// the control group or one above it has a limit (`memory.max` of version 2). `u64::MAX` if the
/// system does not say.
#[must_use]
pub fn usable_memory_bytes() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let machine = machine_bytes(&read("/proc/meminfo"));
    let groups = read("/proc/self/cgroup");
    let group = group_limit(Path::new("/sys/fs/cgroup"), &groups);
    [machine, group].into_iter().flatten().min().unwrap_or(u64::MAX)
}

/// The memory of the machine by the contents of `/proc/meminfo`.
fn machine_bytes(text: &str) -> Option<u64> {
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1_024)
}

/// The smallest limit of the control group in `groups`, the contents of `/proc/self/cgroup`, and of
/// those above it.
fn group_limit(root: &Path, groups: &str) -> Option<u64> {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let folder = root.join(own);
    let above = folder.ancestors().take_while(|folder| folder.starts_with(root));
    above.filter_map(|folder| read_limit(&folder.join("memory.max"))).min()
}

fn read_limit(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smallest_limit_of_the_groups_counts() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("a.slice/b.service");
        std::fs::create_dir_all(&own).unwrap();
        let limit = || group_limit(root.path(), "12:cpu:/x\n0::/a.slice/b.service\n");
        assert_eq!(limit(), None);
        std::fs::write(own.join("memory.max"), "max\n").unwrap();
        assert_eq!(limit(), None);
        std::fs::write(root.path().join("a.slice/memory.max"), "1000\n").unwrap();
        assert_eq!(limit(), Some(1_000));
        std::fs::write(own.join("memory.max"), "600\n").unwrap();
        assert_eq!(limit(), Some(600));
    }

    #[test]
    fn memory_of_the_machine_is_read() {
        let text = "MemFree:  1 kB\nMemTotal:       24737304 kB\n";
        assert_eq!((machine_bytes(text), machine_bytes("")), (Some(24_737_304 << 10), None));
        assert!((1 << 20..u64::MAX).contains(&usable_memory_bytes()));
    }
}
