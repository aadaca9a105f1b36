//! Guest errors have the same code in every language, and the log has the language's own message.

use ErrorCode::{CpuTimeLimit, GuestError, GuestTrap, MemoryLimit, NoResponse};
use weir_tests::{TestNode, eventually, function, has_function};
use weir_types::ErrorCode;

/// Memory that a guest exhausts within a second, but that suffices for its start.
const LIMITS: &str = "limits.memory_bytes=100663296&limits.cpu_time_ms=5000";

/// Path of the function, expected status and code, and expected words in the log: the message, and
/// the location if the language reports it.
type Case = (&'static str, u16, ErrorCode, &'static [&'static str]);

const RUST: &[Case] = &[
    ("/trap", 500, GuestTrap, &["panicked at", "on purpose"]),
    ("/spin", 504, CpuTimeLimit, &[]),
    ("/hoard", 507, MemoryLimit, &[]),
    ("/exit", 502, NoResponse, &[]),
];
const PYTHON: &[Case] = &[
    ("/trap", 500, GuestTrap, &["in fail", "RuntimeError: on purpose"]),
    ("/spin", 504, CpuTimeLimit, &[]),
    ("/hoard", 507, MemoryLimit, &[]),
    ("/exit", 502, NoResponse, &[]),
    // A value that is no valid response; static typing rules this out in other languages.
    ("/wrong", 502, GuestError, &["can be no answer", "not JSON serializable"]),
    // An invalid status.
    ("/status", 502, GuestError, &["status or header is not allowed: 7"]),
];
const TYPESCRIPT: &[Case] = &[
    ("/trap", 500, GuestTrap, &["at fail", "RangeError: on purpose"]),
    ("/spin", 504, CpuTimeLimit, &[]),
    ("/hoard", 507, MemoryLimit, &[]),
    ("/wrong", 502, GuestError, &["the answer cannot be sent: a function cannot be an answer"]),
    ("/status", 502, GuestError, &["cannot be sent: the status 7 is not from 200 to 599"]),
];
const C: &[Case] = &[
    ("/trap", 500, GuestTrap, &["on purpose", "!fail"]),
    ("/spin", 504, CpuTimeLimit, &[]),
    ("/hoard", 507, MemoryLimit, &["out of memory"]),
    ("/exit", 502, NoResponse, &[]),
    ("/status", 502, GuestError, &["the status 7 cannot be sent"]),
];
const GO: &[Case] = &[
    ("/trap", 500, GuestTrap, &["panic: on purpose", "main.fail"]),
    ("/spin", 504, CpuTimeLimit, &[]),
    ("/hoard", 507, MemoryLimit, &["out of memory", "main.hoard"]),
    ("/exit", 502, NoResponse, &[]),
    // Failures outside the reach of a handler's `recover`.
    ("/length", 502, GuestError, &["Content-Length: 5 is not that of the body"]),
    ("/goroutine", 500, GuestTrap, &["panic: on purpose", "main.fail", "created by main.handle"]),
    ("/status", 502, GuestError, &["the status 7 cannot be sent"]),
];

async fn misdeeds_have_their_codes(name: &str, cases: &[Case]) {
    if !has_function(name) {
        return eprintln!("skipped: {name} was not built");
    }
    let node = TestNode::start().await;
    node.deploy_with(name, LIMITS, function(name)).await;
    for (path, status, code, logged) in cases {
        let refusal = node.get(&format!("/fn/{name}{path}")).await.refusal();
        assert_eq!((refusal.status, refusal.code), (*status, *code), "{path}: {}", refusal.text);
        for words in *logged {
            eventually(&format!("{words:?} in the log after {path}"), async || {
                node.logs(name).await.iter().any(|line| line.text.contains(words)).then_some(())
            })
            .await;
        }
    }
    assert_eq!(node.get(&format!("/fn/{name}/behave")).await.ok().text(), "ok\n");
}

#[tokio::test]
async fn guest_errors_in_rust_have_their_codes() {
    misdeeds_have_their_codes("misbehave", RUST).await;
}

#[tokio::test]
async fn guest_errors_in_python_have_their_codes() {
    misdeeds_have_their_codes("misbehave-py", PYTHON).await;
}

#[tokio::test]
async fn guest_errors_in_c_have_their_codes() {
    misdeeds_have_their_codes("misbehave-c", C).await;
}

#[tokio::test]
async fn guest_errors_in_go_have_their_codes() {
    misdeeds_have_their_codes("misbehave-go", GO).await;
}

#[tokio::test]
async fn guest_errors_in_typescript_have_their_codes() {
    misdeeds_have_their_codes("misbehave-ts", TYPESCRIPT).await;
}

/// Allocates ten times the memory limit in parts, with host calls between, which must not start a
/// garbage collection.
#[tokio::test]
async fn go_collects_garbage_within_its_memory_limit() {
    let name = "misbehave-go";
    if !has_function(name) {
        return eprintln!("skipped: {name} was not built");
    }
    let node = TestNode::start().await;
    node.deploy_with(name, "limits.memory_bytes=33554432", function(name)).await;
    assert_eq!(node.get(&format!("/fn/{name}/waste")).await.ok().text(), "wasted\n");
}
