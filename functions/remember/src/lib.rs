//! Keeps state for the lifetime of its instance, so that a call sees the state that earlier calls
//! left. The path selects the operation. For tests of instance reuse; `remember-p3` and
//! `remember-tensor` do the same for the other two kinds of functions.

use bindings::weir::inference::models::Model;
use bindings::weir::inference::tensors::{ElementType, Tensor};
use std::cell::RefCell;
use std::time::{Duration, Instant};
use wstd::http::{Body, Error, Request, Response};

mod bindings {
    wit_bindgen::generate!({ path: "../../wit", world: "weir:inference/imports", generate_all });
}

const MIB: usize = 1 << 20;

/// State of the instance.
#[derive(Default)]
struct Memory {
    calls: u32,
    tensors: Vec<Tensor>,
    model: Option<Model>,
    pieces: Vec<Vec<u8>>,
    requests: Vec<Request<Body>>,
}

thread_local! {
    static MEMORY: RefCell<Memory> = RefCell::default();
}

#[wstd::http_server]
async fn main(mut request: Request<Body>) -> Result<Response<Body>, Error> {
    let calls = with(|memory| {
        memory.calls += 1;
        memory.calls
    });
    let number = request.uri().query().and_then(|query| query.parse().ok()).unwrap_or(0_u32);
    let time = Duration::from_millis(number.into());
    let said = match request.uri().path() {
        "/count" => String::new(),
        // Writes to standard output, which a guest opens once.
        "/say" => {
            println!("call {calls}");
            String::new()
        }
        // Exceeds the log limit.
        "/shout" => {
            println!("{}", "x".repeat(number as usize));
            String::new()
        }
        "/nap" => {
            wstd::task::sleep(time.into()).await;
            String::new()
        }
        "/spin" => {
            let began = Instant::now();
            while began.elapsed() < time {}
            String::new()
        }
        "/trap" => trap(),
        // Keeps `number` tensors of 1 KiB.
        "/tensors" => keep_tensors(number)?,
        // Reads from the first kept tensor.
        "/tensor" => with(|memory| memory.tensors.first().map(|first| first.read(5, 1)))
            .map_or_else(|| Ok(" none".to_owned()), |read| read.map(|byte| format!(" {byte:?}")))?,
        // Keeps the request, with its body.
        "/request" => {
            with(|memory| memory.requests.push(request));
            return answer(calls, " kept");
        }
        // Keeps `number` MiB.
        "/grow" => {
            with(|memory| memory.pieces.push(vec![1; number as usize * MIB]));
            String::new()
        }
        "/body" => String::from_utf8_lossy(request.body_mut().contents().await?).into_owned(),
        // Runs a model that an earlier call opened.
        "/model" => infer()?,
        path => format!(" nothing called {path}"),
    };
    answer(calls, &said)
}

fn with<T>(act: impl FnOnce(&mut Memory) -> T) -> T {
    MEMORY.with_borrow_mut(act)
}

fn keep_tensors(count: u32) -> Result<String, Error> {
    for _ in 0..count {
        let tensor = Tensor::from_bytes(ElementType::Uint8, &[1 << 10], &[7; 1 << 10])?;
        with(|memory| memory.tensors.push(tensor));
    }
    Ok(format!(" {}", with(|memory| memory.tensors.len())))
}

fn answer(calls: u32, said: &str) -> Result<Response<Body>, Error> {
    Ok(Response::new(format!("{calls}{said}\n").into()))
}

#[expect(clippy::panic, reason = "the function tests a trap")]
fn trap() -> ! {
    panic!("on purpose")
}

fn infer() -> Result<String, Error> {
    let model = match with(|memory| memory.model.take()) {
        Some(model) => model,
        None => Model::open("digits")?,
    };
    let image = Tensor::from_bytes(ElementType::Fp32, &[1, 1, 8, 8], &[0; 256])?;
    let outputs = model.infer(&[("image".to_owned(), &image)], None)?;
    let said = format!(" {} outputs of version {}", outputs.len(), model.describe().version);
    with(|memory| memory.model = Some(model));
    Ok(said)
}
