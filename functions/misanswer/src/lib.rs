//! Responds incorrectly on request: the path selects the fault. Uses `wasi:http` directly, since
//! HTTP libraries prevent these faults.

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
            "/status" => status(out, query.parse().unwrap_or(500)),
            "/lengths" => lengths(out, query),
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

/// Responds correctly.
fn text(out: ResponseOutparam, text: &str) {
    let Some((body, stream)) = start(out, Fields::new()) else { return };
    let written = stream.blocking_write_and_flush(text.as_bytes());
    drop(stream);
    if written.is_ok() {
        // The client may have disconnected.
        let _ = OutgoingBody::finish(body, None);
    }
}

/// Reports an error instead of a response.
fn error(out: ResponseOutparam) {
    ResponseOutparam::set(out, Err(ErrorCode::InternalError(Some("on purpose".into()))));
}

/// Responds with this status.
fn status(out: ResponseOutparam, status: u16) {
    let response = OutgoingResponse::new(Fields::new());
    let _ = response.set_status_code(status);
    ResponseOutparam::set(out, Ok(response));
}

/// Responds with each of these lengths as a header, and with the same body for all.
fn lengths(out: ResponseOutparam, lengths: &str) {
    let list: Vec<Vec<u8>> = lengths.split(',').map(|length| length.as_bytes().to_vec()).collect();
    let entries: Vec<_> = list.iter().map(|length| ("Content-Length".to_owned(), length.clone())).collect();
    let appended = Fields::new();
    let added = list
        .iter()
        .try_for_each(|length| appended.append("content-length", length))
        .and_then(|()| Fields::new().set("content-length", &list))
        .and_then(|()| Fields::from_list(&entries).map(drop));
    if let Err(error) = added {
        return text(out, &format!("{error}\n"));
    }
    let Some((body, stream)) = start(out, appended) else { return };
    let _ = stream.blocking_write_and_flush(b"hello");
    drop(stream);
    let _ = OutgoingBody::finish(body, None);
}

/// Responds with an informational status.
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

/// Sends a complete response, and then does not return.
fn late(out: ResponseOutparam) {
    text(out, "here you are\n");
    loop {
        black_box(());
    }
}

/// Responds with the request body, which is empty, and writes to the replaced response body after a
/// delay.
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

/// Responds with one header of `bytes` bytes.
fn header(out: ResponseOutparam, bytes: usize) {
    let headers = Fields::new();
    match headers.set("weir-test", &[vec![b'x'; bytes]]) {
        Ok(()) => drop(start(out, headers)),
        Err(error) => text(out, &format!("{error}\n")),
    }
}

/// Responds with a header that is reserved for the node.
fn pose(out: ResponseOutparam) {
    let headers = Fields::new();
    let _ = headers.set("weir-error", &[b"internal".to_vec()]);
    let Some((body, stream)) = start(out, headers) else { return };
    drop(stream);
    let _ = OutgoingBody::finish(body, None);
}

/// Creates headers without a response until no handles are left.
fn headers(out: ResponseOutparam) {
    loop {
        std::mem::forget(black_box(Fields::new()));
        black_box(&out);
    }
}

/// Reads the body to its end, without a time limit.
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

/// Recurses endlessly with large frames on the stack in linear memory, which overflows before the
/// host's stack.
#[expect(unconditional_recursion, reason = "the function tests stack overflow")]
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
