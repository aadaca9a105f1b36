//! Calls `wasi:http/handler@0.3`.

use super::answer::{ResponseSender, why_no_answer};
use super::fault;
use super::request::{RequestCell, SharedBody};
use super::state::InstanceState;
use http::header::HOST;
use http::uri::{Authority, Scheme};
use std::future::poll_fn;
use std::pin::Pin;
use wasmtime::Store;
use wasmtime_wasi_http::WasiHttpView;
use wasmtime_wasi_http::p3::Request;
use wasmtime_wasi_http::p3::bindings::Service;
use wasmtime_wasi_http::p3::bindings::http::types::ErrorCode;
use weir_call::Fault;

/// Calls the handler. The response is sent through `answer` as soon as the guest returns it. The
/// guest's tasks, which write the response's body, are driven until all have ended.
pub(super) async fn handle(
    service: &Service,
    store: &mut Store<InstanceState>,
    request: http::Request<SharedBody>,
    cell: &RequestCell,
    answer: ResponseSender,
) -> wasmtime::Result<Result<(), Fault>> {
    store
        .run_concurrent(async |accessor| {
            let (request, received) = accessor.with(|mut store| {
                let host =
                    request.headers().get(HOST).and_then(|host| Authority::try_from(host.as_bytes()).ok());
                let (mut request, received) = Request::from_http(store.data_mut().http().hooks, request);
                // The target of a request of HTTP/1 is only a path unless it arrived over TLS.
                request.scheme.get_or_insert(Scheme::HTTP);
                request.authority = request.authority.or(host);
                // Boxed, since its type would borrow the store although it does not.
                let received: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(received);
                (request, received)
            });
            let response = match service.handle(accessor, request).await? {
                Ok(response) => response,
                Err(ErrorCode::InternalError(Some(text))) => return Ok(Err(fault::answered(&text))),
                Err(code) => return Ok(Err(fault::answered(&code))),
            };
            let response = accessor.with(|store| response.into_http(store, received))?;
            if let Some(why) = why_no_answer(response.status()) {
                return Ok(Err(fault::answered(&why)));
            }
            answer.send_guests(response.map(axum::body::Body::new), cell.take_answer());
            poll_fn(|cx| accessor.poll_no_interesting_tasks(cx)).await;
            Ok(Ok(()))
        })
        .await?
}
