//! Minimal safe component server: hyper, a fresh instance per request, and the same limits as Weir.
//!
//! It has no names, versions, metrics, logs, models or queues. The difference to Weir is their
//! cost.

mod engine;

use anyhow::Context as _;
use engine::{EpochTicker, RequestState};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use wasmtime::Store;
use wasmtime::component::{Component, Linker};
use wasmtime_wasi_http::WasiHttpView as _;
use wasmtime_wasi_http::p2::bindings::ProxyPre;
use wasmtime_wasi_http::p2::bindings::http::types::Scheme;
use wasmtime_wasi_http::p2::body::HyperOutgoingBody;

/// Time limit of a request.
const DEADLINE: Duration = Duration::from_secs(30);

type Pre = ProxyPre<RequestState>;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let path = std::env::args_os().nth(1).context("usage: proxy-loop COMPONENT.wasm")?;
    let engine = engine::engine()?;
    let component = Component::from_file(&engine, path)?;
    let mut linker = Linker::new(&engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker)?;
    let pre = ProxyPre::new(linker.instantiate_pre(&component)?)?;
    let _ticker = EpochTicker::spawn(engine)?;

    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(serve(stream, pre.clone()));
    }
}

async fn serve(stream: TcpStream, pre: Pre) {
    if let Err(error) = stream.set_nodelay(true) {
        eprintln!("cannot set TCP_NODELAY: {error}");
    }
    let service = service_fn(move |request| {
        let pre = pre.clone();
        async move {
            let answered = tokio::time::timeout(DEADLINE, call(pre, request)).await;
            answered.unwrap_or_else(|_| Err(wasmtime::Error::msg("deadline exceeded")))
        }
    });
    if let Err(error) = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await {
        eprintln!("connection failed: {error}");
    }
}

/// Runs the guest on the thread that read the request, where most guests end. A guest that
/// continues after the response head moves to its own task.
async fn call(pre: Pre, request: Request<Incoming>) -> wasmtime::Result<Response<HyperOutgoingBody>> {
    let (sender, mut receiver) = oneshot::channel();
    let mut guest = Box::pin(async move {
        let mut store = Store::new(pre.engine(), RequestState::new());
        store.limiter(|state| &mut state.limits);
        store.set_epoch_deadline(1);
        store.epoch_deadline_async_yield_and_update(1);
        let proxy = pre.instantiate_async(&mut store).await?;
        let request = store.data_mut().http().new_incoming_request(Scheme::Http, request)?;
        let outparam = store.data_mut().http().new_response_outparam(sender)?;
        proxy.wasi_http_incoming_handler().call_handle(&mut store, request, outparam).await
    });
    let response = tokio::select! {
        biased;
        ended = &mut guest => {
            ended?;
            receiver.try_recv()?
        }
        answered = &mut receiver => {
            tokio::spawn(guest);
            answered?
        }
    };
    Ok(response?)
}
