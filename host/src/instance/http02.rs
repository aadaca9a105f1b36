//! Calling `wasi:http/incoming-handler@0.2`.

use super::answer::{Answer, answer_of};
use super::fault::Fault;
use super::request::{RequestCell, SharedBody};
use super::state::State;
use std::sync::{Arc, Mutex, PoisonError};
use wasmtime::Store;
use wasmtime_wasi_http::WasiHttpView;
use wasmtime_wasi_http::p2::bindings::Proxy;
use wasmtime_wasi_http::p2::bindings::http::types::{ErrorCode as GuestErrorCode, Scheme};
use wasmtime_wasi_http::p2::body::HyperOutgoingBody;
use weir_types::ErrorCode;

/// Call the handler. The response goes out through `answer` as soon as the guest sends its head; the call itself goes on until the guest
/// returns.
pub(crate) async fn handle(
    proxy: &Proxy,
    store: &mut Store<State>,
    request: http::Request<SharedBody>,
    cell: &RequestCell,
    answer: Answer,
) -> wasmtime::Result<Result<(), Fault>> {
    // Shared, since the guest may return without ever using its response-outparam.
    let answer = Arc::new(Mutex::new(Some(answer)));
    let request = store.data_mut().http().new_incoming_request(Scheme::Http, request)?;
    let outparam = store.data_mut().http().new_response_outparam_from_callback({
        let (answer, cell) = (answer.clone(), cell.clone());
        move |response| {
            if let Some(answer) = take(&answer) {
                answer.send(respond(response, &cell));
            }
        }
    })?;
    proxy.wasi_http_incoming_handler().call_handle(&mut *store, request, outparam).await?;
    let Some(answer) = take(&answer) else { return Ok(Ok(())) };
    // The guest set no response: it may have given its answer as a tensor.
    match cell.take_answer() {
        Some(tensor) => {
            answer.send(Ok(answer_of(http::Response::new(None), tensor)));
            Ok(Ok(()))
        }
        None => {
            Ok(Err(Fault::new(ErrorCode::NoResponse, "the function returned without sending a response")))
        }
    }
}

fn take(answer: &Mutex<Option<Answer>>) -> Option<Answer> {
    answer.lock().unwrap_or_else(PoisonError::into_inner).take()
}

fn respond(
    response: Result<http::Response<HyperOutgoingBody>, GuestErrorCode>,
    cell: &RequestCell,
) -> Result<http::Response<axum::body::Body>, Fault> {
    let response = response.map_err(|code| {
        Fault::new(ErrorCode::GuestError, format!("the function answered with an error: {code}"))
    })?;
    Ok(match cell.take_answer() {
        Some(tensor) => answer_of(response.map(|body| Some(axum::body::Body::new(body))), tensor),
        None => response.map(axum::body::Body::new),
    })
}
