//! Confinement, seen from inside: a confined process attacks everything around it.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test that cannot be set up has failed")]
#![allow(unsafe_code, reason = "the attacks are system calls")]
#![allow(clippy::print_stdout, reason = "a confined process has no other way to report")]

use std::fs::File;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use weir_child::Layer::{self, Files, Namespaces, Process, SystemCalls};
use weir_child::{Confinement, confine_access, confine_process};

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("inside") => inside(&PathBuf::from(std::env::args().nth(2).unwrap())),
        // Options of the test runner that list the tests.
        Some("--list") => println!("confined_process_reaches_nothing: test"),
        _ => confined_process_reaches_nothing(),
    }
}

/// Starts the confined process, and checks its report.
fn confined_process_reaches_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let given = folder.path().join("given");
    let written = folder.path().join("written");
    std::fs::create_dir(&given).unwrap();
    std::fs::create_dir(&written).unwrap();
    std::fs::write(given.join("model"), "model").unwrap();
    std::fs::write(folder.path().join("secret"), "secret").unwrap();
    // A descriptor that the child inherits by mistake.
    let leaked = File::open(folder.path().join("secret")).unwrap();
    // SAFETY: only the flags of an open descriptor change.
    assert_eq!(unsafe { libc::fcntl(leaked.as_raw_fd(), libc::F_SETFD, 0) }, 0);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();

    let ended = Command::new(std::env::current_exe().unwrap())
        .arg("inside")
        .arg(folder.path())
        .env("PORT", listener.local_addr().unwrap().port().to_string())
        .env("LEAKED", leaked.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&ended.stdout);
    let complaint = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{}\n{report}\n{complaint}", ended.status);
    assert!(report.ends_with("done\n"), "{report}\n{complaint}");
    let wrong: Vec<_> = report.lines().filter(|line| line.starts_with("NOT")).collect();
    assert!(wrong.is_empty(), "{report}");
    println!("test confined_process_reaches_nothing ... ok ({} checks)", report.lines().count() - 1);
    for line in report.lines().filter(|line| line.starts_with("missing")) {
        println!("  {line}");
    }
}

/// The confined process.
fn inside(folder: &Path) {
    let mut missing = confine_process();
    let readable = vec![folder.join("given")];
    let writable = vec![folder.join("written")];
    missing.extend(confine_access(&Confinement { readable, writable }));
    missing.iter().for_each(|layer| println!("missing {layer}"));
    let missing: Vec<Layer> = missing.iter().map(|missing| missing.layer).collect();
    // An attack may only succeed if every layer that stops it is missing.
    let attack = |stopped_by: &[Layer], what: &str, outcome: io::Result<()>| match outcome {
        Ok(()) if stopped_by.iter().all(|layer| missing.contains(layer)) => {
            println!("missing layers let it: {what}");
        }
        Ok(()) => println!("NOT STOPPED: {what}"),
        Err(error) => println!("stopped: {what}: {error}"),
    };
    let process = &[Process][..];
    let files = &[Files][..];
    let calls = &[SystemCalls][..];

    wanted("read a given file", std::fs::read(folder.join("given/model")).map(drop));
    wanted("write a file in a given folder", std::fs::write(folder.join("written/file"), "result"));
    wanted("start a thread", std::thread::Builder::new().spawn(|| ()).map(|thread| thread.join().unwrap()));
    wanted("print", io::stdout().flush());

    attack(files, "read another file", std::fs::read(folder.join("secret")).map(drop));
    attack(files, "read a system file", std::fs::read("/etc/passwd").map(drop));
    attack(files, "list a folder", std::fs::read_dir(folder).map(drop));
    attack(
        files,
        "write a given file",
        File::options().write(true).open(folder.join("given/model")).map(drop),
    );
    attack(files, "create a file beside a given one", std::fs::write(folder.join("given/other"), ""));
    attack(files, "remove a given file", std::fs::remove_file(folder.join("given/model")));
    attack(
        &[Files, SystemCalls],
        "link to a secret",
        std::fs::hard_link(folder.join("secret"), folder.join("written/link")),
    );
    let parent = std::os::unix::process::parent_id();
    attack(
        files,
        "read its parent's environment",
        std::fs::read(format!("/proc/{parent}/environ")).map(drop),
    );
    attack(files, "list its parent's files", std::fs::read_dir(format!("/proc/{parent}/fd")).map(drop));
    let leaked: i32 = std::env::var("LEAKED").unwrap().parse().unwrap();
    // SAFETY: the descriptor is only queried.
    attack(process, "use an inherited file", call(i64::from(unsafe { libc::fcntl(leaked, libc::F_GETFD) })));
    attack(
        &[Process, Files],
        "reopen an inherited file",
        File::open(format!("/proc/self/fd/{leaked}")).map(drop),
    );

    let port: u16 = std::env::var("PORT").unwrap().parse().unwrap();
    attack(
        &[Namespaces, Files, SystemCalls],
        "connect to the node",
        TcpStream::connect(("127.0.0.1", port)).map(drop),
    );
    attack(&[Files, SystemCalls], "listen", TcpListener::bind("127.0.0.1:0").map(drop));
    attack(
        &[Files, SystemCalls],
        "listen on a socket file",
        UnixListener::bind(folder.join("written/socket")).map(drop),
    );
    attack(&[Files, SystemCalls], "run a program", Command::new("/bin/true").status().map(drop));
    // SAFETY: confinement makes each call fail. Without it, a call affects this process only, or its
    // parent, which is this test.
    unsafe {
        attack(calls, "fork", call(libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0)));
        attack(calls, "create a namespace", call(libc::syscall(libc::SYS_unshare, libc::CLONE_NEWUSER)));
        attack(calls, "trace its parent", call(libc::ptrace(libc::PTRACE_ATTACH, parent, 0, 0)));
        attack(calls, "signal its parent", call(i64::from(libc::kill(parent.cast_signed(), 0))));
        attack(calls, "create a memory file", call(libc::syscall(libc::SYS_memfd_create, c"m".as_ptr(), 0)));
        attack(calls, "open an io_uring", call(libc::syscall(libc::SYS_io_uring_setup, 1, 0)));
        attack(calls, "load a BPF program", call(libc::syscall(libc::SYS_bpf, 0, 0, 0)));
        attack(calls, "mount", call(libc::syscall(libc::SYS_mount, 0, c"/tmp".as_ptr(), 0, 0, 0)));
        let limit = libc::rlimit { rlim_cur: 1 << 40, rlim_max: 1 << 40 };
        attack(
            calls,
            "raise a limit",
            call(i64::from(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit))),
        );
    }
    println!("done");
}

fn call(result: i64) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn wanted(what: &str, outcome: io::Result<()>) {
    match outcome {
        Ok(()) => println!("allowed as wanted: {what}"),
        Err(error) => println!("NOT ALLOWED: {what}: {error}"),
    }
}
