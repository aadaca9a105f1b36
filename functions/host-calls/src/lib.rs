//! Measures the duration of host calls with the guest's clock, for the benchmarks.
//!
//! `GET /MODEL?calls=10000` makes that many calls of each kind, some at a time, and responds with
//! the median duration in nanoseconds. The number of calls is high enough to exclude occasional
//! interruptions of the guest from the median.

use std::time::Instant;
use weir::{Error, Model, Request, Response, Result, Tensor};

/// Calls between two readings of the clock, which is itself a host call.
const AT_ONCE: u32 = 20;
const CALLS_MAX: u32 = 1_000_000;

fn handle(request: Request) -> Result<Response> {
    let calls = request.query_value("calls").unwrap_or("10000".into()).parse().ok();
    let calls = calls.filter(|calls| (AT_ONCE..=CALLS_MAX).contains(calls));
    let calls = calls.ok_or_else(|| Error::new(400, format!("calls is from {AT_ONCE} to {CALLS_MAX}")))?;
    let name = request.path().trim_matches('/');
    let model = Model::open(name)?;
    let tensor = Tensor::from_slice(&[1_f32], [1, 1])?;
    let shape = each_ns(calls, || Ok(std::hint::black_box(tensor.shape())))?;
    let describe = each_ns(calls, || Ok(std::hint::black_box(model.describe())))?;
    let open = each_ns(calls, || Model::open(name))?;
    let infer = each_ns(calls / 10, || model.run([("x", &tensor)]).infer())?;
    Ok(Response::text(format!("shape {shape}\ndescribe {describe}\nopen {open}\ninfer {infer}\n")))
}

/// Median duration of one call in nanoseconds.
fn each_ns<T>(calls: u32, call: impl Fn() -> Result<T>) -> Result<u128> {
    let mut times = Vec::new();
    for _ in 0..calls.div_ceil(AT_ONCE) {
        let began = Instant::now();
        (0..AT_ONCE).try_for_each(|_| call().map(drop))?;
        times.push(began.elapsed().as_nanos() / u128::from(AT_ONCE));
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

weir::http_function!(handle);
