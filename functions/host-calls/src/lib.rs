//! What calls of the host take, by the clock that a guest has: what the benchmarks measure.
//!
//! `GET /MODEL?calls=10000` makes each kind of call so often, some at a time, and answers with the nanoseconds of one, at the median: often enough that
//! what interrupts a guest now and then is not in it.

use std::time::Instant;
use weir::{Error, Model, Request, Response, Result, Tensor};

/// Calls between two looks at the clock, which is a call of the host itself.
const AT_ONCE: u32 = 20;
const CALLS_MAX: u32 = 1_000_000;

fn handle(request: Request) -> Result<Response> {
    let calls = request.query_value("calls").unwrap_or("10000".into()).parse().ok();
    let calls = calls.filter(|calls| (AT_ONCE..=CALLS_MAX).contains(calls));
    let calls = calls.ok_or_else(|| Error::new(400, format!("calls is from {AT_ONCE} to {CALLS_MAX}")))?;
    let name = request.path().trim_matches('/');
    let (model, tensor) = (Model::open(name)?, Tensor::from_slice(&[1_f32], [1, 1])?);
    let shape = each_ns(calls, || Ok(std::hint::black_box(tensor.shape())))?;
    let describe = each_ns(calls, || Ok(std::hint::black_box(model.describe())))?;
    let open = each_ns(calls, || Model::open(name))?;
    let infer = each_ns(calls / 10, || model.run([("x", &tensor)]).infer())?;
    Ok(Response::text(format!("shape {shape}\ndescribe {describe}\nopen {open}\ninfer {infer}\n")))
}

/// Nanoseconds of one call, at the median.
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
