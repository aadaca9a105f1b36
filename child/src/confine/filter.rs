//! Filter of system calls.

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter,
};
use std::collections::BTreeMap;

/// Calls that are allowed with all arguments: memory, threads, time, and files that are already open
/// or that Landlock allows. Other calls fail with EPERM.
const ALLOWED: &[libc::c_long] = &[
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Threads and signals.
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getcpu,
    libc::SYS_getpid,
    libc::SYS_getrusage,
    libc::SYS_gettid,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    // Time, randomness and the machine.
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_getrandom,
    libc::SYS_gettimeofday,
    libc::SYS_nanosleep,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    // Files.
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_faccessat,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_mkdirat,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_renameat2,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_unlinkat,
    libc::SYS_write,
    libc::SYS_writev,
    // Sockets that were inherited or received; no others can be created.
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_shutdown,
];

/// Older calls that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
const ALLOWED_OLD: &[libc::c_long] = &[
    libc::SYS_access,
    libc::SYS_getdents,
    libc::SYS_getrlimit,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_open,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_stat,
    libc::SYS_time,
    libc::SYS_unlink,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_OLD: &[libc::c_long] = &[];

/// Calls that fail as on a kernel without them, so that libraries use older ones: the flags of
/// `clone3` are in memory, where a filter cannot see them, and wasmtime maps memory images from a
/// memory file if it can.
const UNKNOWN: [libc::c_long; 2] = [libc::SYS_clone3, libc::SYS_memfd_create];

/// Calls that change modes, owners and access control lists of files.
const MODE_CHANGES: &[libc::c_long] = &[
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    SETXATTRAT,
    // It would make such calls unseen.
    libc::SYS_io_uring_setup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
];
/// Newer calls, whose numbers are the same on all architectures.
const FCHMODAT2: libc::c_long = 452;
const SETXATTRAT: libc::c_long = 463;

/// Refuses changes of file modes to this thread and the threads that it starts, and nothing else.
pub(super) fn refuse_mode_changes() -> Result<(), String> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| error.to_string())?;
    let refused = MODE_CHANGES.iter().map(|call| (*call, Vec::new())).collect();
    let denied = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter = SeccompFilter::new(refused, SeccompAction::Allow, denied, arch);
    let program: BpfProgram = filter.and_then(TryInto::try_into).map_err(|error| error.to_string())?;
    apply_filter(&program).map_err(|error| error.to_string())
}

/// Applies the filter to this thread and the threads that it starts.
pub(super) fn apply() -> Result<(), String> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| error.to_string())?;
    for filter in filters(arch).map_err(|error| error.to_string())? {
        apply_filter(&filter).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn filters(arch: TargetArch) -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    let errno = |code: i32| SeccompAction::Errno(code.unsigned_abs());
    let own = u64::from(std::process::id());
    let equal = |argument, len, value| SeccompCondition::new(argument, len, SeccompCmpOp::Eq, value);
    let only = |condition| Ok::<_, seccompiler::BackendError>(vec![SeccompRule::new(vec![condition?])?]);
    let mut allowed: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.iter().chain(ALLOWED_OLD).map(|call| (*call, Vec::new())).collect();
    // Threads of this process, no processes.
    let thread = libc::CLONE_THREAD.unsigned_abs().into();
    let is_thread = SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(thread), thread);
    allowed.insert(libc::SYS_clone, only(is_thread)?);
    // Decided by the first filter.
    allowed.extend(UNKNOWN.iter().map(|call| (*call, Vec::new())));
    // Signals to this process only, such as those of `abort`.
    for call in [libc::SYS_kill, libc::SYS_tgkill] {
        allowed.insert(call, only(equal(0, SeccompCmpArgLen::Dword, own))?);
    }
    // Names of threads and of memory.
    let named = [libc::PR_SET_NAME, libc::PR_SET_VMA].map(|option| {
        SeccompRule::new(vec![equal(0, SeccompCmpArgLen::Dword, option.unsigned_abs().into())?])
    });
    allowed.insert(libc::SYS_prctl, named.into_iter().collect::<Result<_, _>>()?);
    // Reading limits, not changing them.
    allowed.insert(libc::SYS_prlimit64, only(equal(2, SeccompCmpArgLen::Qword, 0))?);

    let unknown = UNKNOWN.iter().map(|call| (*call, Vec::new())).collect();
    let old = SeccompFilter::new(unknown, SeccompAction::Allow, errno(libc::ENOSYS), arch)?;
    let all = SeccompFilter::new(allowed, errno(libc::EPERM), SeccompAction::Allow, arch)?;
    Ok([old.try_into()?, all.try_into()?])
}
