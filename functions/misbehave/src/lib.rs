//! Misbehaves on request: the path selects the fault. For tests of the consequences for the
//! function and its neighbours.

use bindings::weir::inference::models::Model;
use bindings::weir::inference::tensors::{ElementType, Tensor};
use std::hint::black_box;
use std::process::exit;
use wstd::http::{Body, Error, Request, Response, StatusCode};
use wstd::time::Duration;

mod bindings {
    wit_bindgen::generate!({ path: "../../wit", world: "weir:inference/imports", generate_all });
}

const MIB: usize = 1 << 20;
/// Size of a body above the limit.
const FLOOD_BYTES: u64 = 2 << 30;

#[wstd::http_server]
async fn main(request: Request<Body>) -> Result<Response<Body>, Error> {
    let query = request.uri().query().unwrap_or_default().to_owned();
    let is_copy = request.headers().contains_key("weir-shadow");
    match request.uri().path() {
        "/behave" => text(StatusCode::OK, "ok\n"),
        "/copy" => text(if is_copy { StatusCode::ACCEPTED } else { StatusCode::OK }, "ok\n"),
        "/spin" => spin(),
        "/sleep" => {
            wstd::task::sleep(Duration::from_secs(3_600)).await;
            text(StatusCode::OK, "slept\n")
        }
        "/nap" => {
            let millis = query.parse().unwrap_or(100);
            wstd::task::sleep(Duration::from_millis(millis)).await;
            text(StatusCode::OK, "napped\n")
        }
        // Waits until the client ends the body.
        "/wait" => {
            let _ = request.into_body().contents().await?;
            text(StatusCode::OK, "let go\n")
        }
        "/hoard" => hoard(),
        "/keep" => {
            let kept = black_box(vec![1_u8; query.parse().unwrap_or(1) * MIB]);
            wstd::task::sleep(Duration::from_secs(3_600)).await;
            text(StatusCode::OK, &format!("kept {} bytes\n", kept.len()))
        }
        "/recurse" => text(StatusCode::OK, &format!("{}\n", recurse(1))),
        "/log" => flood_log(),
        "/handles" => flood_handles(),
        "/tensors" => flood_tensors(query == "hold").await,
        "/list" => long_list(),
        "/body" => Ok(Response::new(Body::from_stream(futures_lite::stream::repeat(vec![b'x'; MIB])))),
        "/declare" => Ok(Response::builder().header("content-length", FLOOD_BYTES).body(().into())?),
        "/trap" => trap(),
        "/open" => open(&query),
        "/exit" => exit(3),
        path => text(StatusCode::NOT_FOUND, &format!("no misbehaviour called {path}\n")),
    }
}

fn text(status: StatusCode, text: &str) -> Result<Response<Body>, Error> {
    Ok(Response::builder().status(status).body(text.to_owned().into())?)
}

#[expect(clippy::panic, reason = "the function tests a trap")]
fn trap() -> ! {
    panic!("on purpose")
}

fn spin() -> ! {
    let mut count = 0_u64;
    loop {
        count = black_box(count.wrapping_add(1));
    }
}

/// Allocates and writes memory until none is left.
fn hoard() -> ! {
    let mut all = Vec::new();
    loop {
        all.push(black_box(vec![1_u8; MIB]));
    }
}

#[expect(unconditional_recursion, reason = "the function tests stack overflow")]
fn recurse(depth: u64) -> u64 {
    // A small frame, so that the call stack overflows before the part of linear memory that holds
    // such frames.
    let frame = black_box([depth]);
    recurse(depth + 1) + frame[0]
}

fn flood_log() -> Result<Response<Body>, Error> {
    let line = "x".repeat(1_000);
    for _ in 0..10_000 {
        println!("{line}");
    }
    text(StatusCode::OK, "logged\n")
}

fn flood_handles() -> Result<Response<Body>, Error> {
    let mut all = Vec::new();
    loop {
        match Tensor::from_bytes(ElementType::Uint8, &[1], &[0]) {
            Ok(tensor) => all.push(tensor),
            Err(error) => return text(StatusCode::IM_A_TEAPOT, &format!("{error:?} after {}\n", all.len())),
        }
    }
}

/// Allocates tensors until the node refuses: an error that a guest can handle. With `is_held`, keeps
/// the tensors.
async fn flood_tensors(is_held: bool) -> Result<Response<Body>, Error> {
    let data = vec![0_u8; MIB];
    let mut all = Vec::new();
    let error = loop {
        match Tensor::from_bytes(ElementType::Uint8, &[MIB as u32], &data) {
            Ok(tensor) => all.push(tensor),
            Err(error) => break error,
        }
    };
    if is_held {
        wstd::task::sleep(Duration::from_secs(3_600)).await;
    }
    text(StatusCode::IM_A_TEAPOT, &format!("{error:?} after {}\n", all.len()))
}

/// Makes a host call with a long list.
fn long_list() -> Result<Response<Body>, Error> {
    let data = vec![0_u8; 32 * MIB];
    let tensor = Tensor::from_bytes(ElementType::Uint8, &[data.len() as u32], &data);
    text(StatusCode::OK, &format!("{}\n", tensor.is_ok()))
}

fn open(name: &str) -> Result<Response<Body>, Error> {
    match Model::open(name) {
        Ok(_) => text(StatusCode::OK, "opened\n"),
        Err(error) => text(StatusCode::IM_A_TEAPOT, &format!("{error:?}\n")),
    }
}
