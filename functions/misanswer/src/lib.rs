//! Answers as functions must not: the path says how. Over bare `wasi:http`, since every library sees to it that this does not happen.

mod bindings {
    wit_bindgen::generate!({ path: "../../wit", world: "weir:inference/imports", generate_all });
}

use bindings::weir::inference::request::{reply_with_tensor, take_body_as_tensor};
use bindings::weir::inference::tensors::ElementType;
use std::hint::black_box;
use wasip2::exports::http::incoming_handler::Guest;
use wasip2::http::types::{
    ErrorCode, Fields, IncomingRequest, OutgoingBody, OutgoingResponse, ResponseOutparam,
};
use wasip2::io::streams::{OutputStream, StreamError};

struct Misanswer;

impl Guest for Misanswer {
    fn handle(request: IncomingRequest, out: ResponseOutparam) {
        let target = request.path_with_query().unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        match path {
            "/behave" => text(out, "ok\n"),
            "/silent" => {}
            "/error" => error(out),
            "/early" => early(out),
            "/half" => half(out),
            "/late" => late(out),
            "/empty" => empty(out),
            "/header" => header(out, query.parse().unwrap_or(1 << 20)),
            "/headers" => headers(out),
            "/pose" => pose(out),
            "/read" => text(out, &read(&request)),
            "/overflow" => text(out, &overflow(&[0; 4096]).to_string()),
            other => text(out, &format!("no misanswer called {other}\n")),
        }
    }
}

wasip2::http::proxy::export!(Misanswer with_types_in wasip2);

/// Answers as it should.
fn text(out: ResponseOutparam, text: &str) {
    let Some((body, stream)) = start(out, Fields::new()) else { return };
    let written = stream.blocking_write_and_flush(text.as_bytes());
    drop(stream);
    if written.is_ok() {
        // Whoever asked may be gone.
        let _ = OutgoingBody::finish(body, None);
    }
}

/// Says that it has no answer.
fn error(out: ResponseOutparam) {
    ResponseOutparam::set(out, Err(ErrorCode::InternalError(Some("on purpose".into()))));
}

/// Answers with what comes before an answer.
fn early(out: ResponseOutparam) {
    let response = OutgoingResponse::new(Fields::new());
    let _ = response.set_status_code(100);
    ResponseOutparam::set(out, Ok(response));
}

/// Promises 100 bytes, sends 14, and traps.
fn half(out: ResponseOutparam) {
    let headers = Fields::new();
    let _ = headers.set("content-length", &[b"100".to_vec()]);
    let Some((_body, stream)) = start(out, headers) else { return };
    let _ = stream.blocking_write_and_flush(b"the first half");
    std::process::abort();
}

/// Answers whole, and then does not end.
fn late(out: ResponseOutparam) {
    text(out, "here you are\n");
    loop {
        black_box(());
    }
}

/// Answers with its request's body, which has no bytes, and has something to do after that.
fn empty(out: ResponseOutparam) {
    let replied =
        take_body_as_tensor(ElementType::Uint8, &[u32::MAX]).and_then(|body| reply_with_tensor(&body));
    let Some((body, stream)) = start(out, Fields::new()) else { return };
    for turn in 0..50_000_000_u64 {
        black_box(turn);
    }
    let written = stream.blocking_write_and_flush(b"dropped");
    drop(stream);
    println!("replied: {}, written: {}", replied.is_ok(), written.is_ok());
    let _ = OutgoingBody::finish(body, None);
}

/// Answers with one header of `bytes`.
fn header(out: ResponseOutparam, bytes: usize) {
    let headers = Fields::new();
    match headers.set("weir-test", &[vec![b'x'; bytes]]) {
        Ok(()) => drop(start(out, headers)),
        Err(error) => text(out, &format!("{error}\n")),
    }
}

/// Answers with a header that only the node has the right to.
fn pose(out: ResponseOutparam) {
    let headers = Fields::new();
    let _ = headers.set("weir-error", &[b"internal".to_vec()]);
    let Some((body, stream)) = start(out, headers) else { return };
    drop(stream);
    let _ = OutgoingBody::finish(body, None);
}

/// Makes headers, without an answer to put them into, for as long as there are handles.
fn headers(out: ResponseOutparam) {
    loop {
        std::mem::forget(black_box(Fields::new()));
        black_box(&out);
    }
}

/// Reads the body to its end, however long the client takes.
fn read(request: &IncomingRequest) -> String {
    let Ok(body) = request.consume() else { return "no body\n".into() };
    let Ok(stream) = body.stream() else { return "no stream\n".into() };
    let mut bytes = 0;
    loop {
        match stream.blocking_read(1 << 20) {
            Ok(chunk) => bytes += chunk.len(),
            Err(StreamError::Closed) => return format!("{bytes} bytes\n"),
            Err(StreamError::LastOperationFailed(_)) => return format!("{bytes} bytes and a failure\n"),
        }
    }
}

/// Calls itself without end, with pages on the stack in its own memory: that one is full before the host's.
#[expect(unconditional_recursion, reason = "what it is for")]
fn overflow(above: &[u8; 4096]) -> u8 {
    let mut here = [above[0].wrapping_add(1); 4096];
    black_box(&mut here);
    overflow(&here).wrapping_add(here[17])
}

fn start(out: ResponseOutparam, headers: Fields) -> Option<(OutgoingBody, OutputStream)> {
    let response = OutgoingResponse::new(headers);
    let body = response.body().ok()?;
    ResponseOutparam::set(out, Ok(response));
    let stream = body.write().ok()?;
    Some((body, stream))
}
