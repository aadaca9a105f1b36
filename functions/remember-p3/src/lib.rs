//! Counts the calls of its instance, with WASI 0.3.

use spin_sdk::http::{Error, IntoResponse, Request};
use spin_sdk::http_service;
use std::sync::atomic::{AtomicU32, Ordering};

static CALLS: AtomicU32 = AtomicU32::new(0);

#[http_service]
async fn count(request: Request) -> Result<impl IntoResponse, Error> {
    let calls = CALLS.fetch_add(1, Ordering::Relaxed) + 1;
    println!("call {calls}");
    if request.uri().path() == "/trap" {
        trap();
    }
    Ok(format!("{calls}\n"))
}

#[expect(clippy::panic, reason = "the function tests a trap")]
fn trap() -> ! {
    panic!("on purpose")
}
