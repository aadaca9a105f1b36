//! Calls `wasi:http/incoming-handler@0.2`.

use super::answer::{ResponseSender, answer_of, why_no_answer};
use super::fault;
use super::request::{RequestCell, SharedBody};
use super::state::InstanceState;
use axum::body::Body;
use parking_lot::Mutex;
use std::sync::Arc;
use wasmtime::Store;
use wasmtime_wasi_http::WasiHttpView;
use wasmtime_wasi_http::p2::bindings::Proxy;
use wasmtime_wasi_http::p2::bindings::http::types::{ErrorCode as GuestErrorCode, Scheme};
use wasmtime_wasi_http::p2::body::HyperOutgoingBody;
use weir_call::Fault;
use weir_types::ErrorCode;

/// Calls the handler. The response is sent through `answer` as soon as the guest sends its head;
/// the call continues until the guest returns.
pub(super) async fn handle(
    proxy: &Proxy,
    store: &mut Store<InstanceState>,
    request: http::Request<SharedBody>,
    cell: &RequestCell,
    answer: ResponseSender,
) -> wasmtime::Result<Result<(), Fault>> {
    // Shared, since the guest may return without using its response-outparam.
    let outcome = Arc::new(Mutex::new(OutparamState::Open(answer)));
    let scheme = scheme_of(request.uri());
    let request = store.data_mut().http().new_incoming_request(scheme, request)?;
    let outparam = store.data_mut().http().new_response_outparam_from_callback({
        let outcome = outcome.clone();
        let cell = cell.clone();
        move |response| {
            let mut outcome = outcome.lock();
            *outcome = std::mem::replace(&mut *outcome, OutparamState::Sent).settle(response, &cell);
        }
    })?;
    let ended = proxy.wasi_http_incoming_handler().call_handle(&mut *store, request, outparam).await;
    let outcome = std::mem::replace(&mut *outcome.lock(), OutparamState::Sent);
    match (outcome, ended) {
        (OutparamState::Refused(code), ended) => {
            let mut fault = match &code {
                GuestErrorCode::InternalError(Some(text)) => fault::answered(text),
                other => fault::answered(other),
            };
            // The guest's own error is the response, even if the guest fails afterwards.
            fault.detail = ended.err().map(|error| format!("{}\nand then: {error}", fault.text));
            Ok(Err(fault))
        }
        (_, Err(error)) => Err(error),
        (OutparamState::Sent, Ok(())) => Ok(Ok(())),
        (OutparamState::Open(answer), Ok(())) => Ok(match cell.take_answer() {
            Some(tensor) => {
                answer.send(answer_of(http::Response::new(None), tensor));
                Ok(())
            }
            None => {
                Err(Fault::new(ErrorCode::NoResponse, "the function returned without sending a response"))
            }
        }),
    }
}

/// The scheme of a request. The target of a request of HTTP/1 is only a path unless the request
/// arrived over TLS.
fn scheme_of(uri: &http::Uri) -> Scheme {
    match uri.scheme_str() {
        None | Some("http") => Scheme::Http,
        Some("https") => Scheme::Https,
        Some(other) => Scheme::Other(other.to_owned()),
    }
}

/// The state of the guest's response-outparam.
enum OutparamState {
    /// Unused so far. The guest may still respond with a tensor.
    Open(ResponseSender),
    /// The guest sent a response.
    Sent,
    /// The guest responded with an error.
    Refused(GuestErrorCode),
}

impl OutparamState {
    fn settle(
        self,
        response: Result<http::Response<HyperOutgoingBody>, GuestErrorCode>,
        cell: &RequestCell,
    ) -> Self {
        match (self, response) {
            (Self::Open(answer), Ok(response)) => {
                if let Some(why) = why_no_answer(response.status()) {
                    return Self::Refused(GuestErrorCode::InternalError(Some(why)));
                }
                answer.send_guests(response.map(Body::new), cell.take_answer());
                Self::Sent
            }
            (Self::Open(_), Err(code)) => Self::Refused(code),
            (settled, _) => settled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_without_scheme_is_http() {
        let scheme = |uri: &'static str| scheme_of(&http::Uri::from_static(uri));
        assert!(matches!(scheme("/a"), Scheme::Http));
        assert!(matches!(scheme("http://weir.test/a"), Scheme::Http));
        assert!(matches!(scheme("https://weir.test/a"), Scheme::Https));
        assert!(matches!(scheme("ws://weir.test/a"), Scheme::Other(other) if other == "ws"));
    }
}
