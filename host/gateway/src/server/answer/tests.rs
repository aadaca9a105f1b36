//! Answers over real connections.

use super::super::connection::Timeouts;
use super::super::linger::Linger;
use super::super::streams::Streams;
use super::*;
use crate::AnswersConfig;
use crate::answers::AnswerBudget;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use weir_telemetry::{Metrics, TextFormat};
use weir_types::TenantId;

/// More than the system buffers of both ends of a connection take.
const LARGE_BYTES: usize = 64 << 20;
const STALL: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(30);

/// Server whose answers have the number of bytes in the path; `/endless` is a function that has
/// written some bytes and computes.
struct TestServer {
    address: SocketAddr,
    metrics: Arc<Metrics>,
    overrun: BodyOverrun,
    _serving: AbortOnDropHandle<()>,
}

async fn server(stall: Duration, idle: Duration) -> TestServer {
    let metrics = Metrics::new();
    let stall_ms = stall.as_millis() as u64;
    let config = AnswersConfig { stall_ms, bytes_per_s_min: 1_000, ..AnswersConfig::default() };
    let budget = Arc::new(AnswerBudget::new(config, metrics.clone()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let overrun = BodyOverrun::default();
    let signal = overrun.clone();
    let timeouts = Timeouts { first: idle, later: idle };
    let serving = AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(stream, budget.clone(), timeouts, signal.clone()));
        }
    }));
    TestServer { address, metrics, overrun, _serving: serving }
}

async fn serve(stream: TcpStream, budget: Arc<AnswerBudget>, timeouts: Timeouts, overrun: BodyOverrun) {
    let connection = ConnectionState::new();
    let answering = budget.clone();
    let requests = connection.clone();
    let service = service_fn(move |request: http::Request<Incoming>| {
        let connection = requests.clone();
        let owner = answering.owner(&TenantId::default(), None);
        let scopes = answering.scopes(connection.answer_bytes(), Some(owner));
        let under_way = connection.begin();
        let overrun = overrun.clone();
        async move {
            let is_h2 = request.version() == http::Version::HTTP_2;
            let path = request.uri().path();
            let bytes = path.trim_start_matches('/').parse().unwrap_or(LARGE_BYTES);
            let overrun = (path == "/endless").then_some(overrun);
            if !is_h2 {
                connection.set_overrun(overrun.clone());
            }
            let answer = ResponseTracker::new(connection, under_way, scopes, None, overrun);
            if is_h2 {
                Streams::observe(&answer);
            }
            let body = AnswerBody::new(Body::from(vec![7; bytes]), answer, is_h2);
            Ok::<_, Infallible>(http::Response::new(body))
        }
    });
    let builder = auto::Builder::new(Streams::new(budget.clone(), Handle::current()));
    let stream = TokioIo::new(Linger::new(stream, connection.clone()));
    let serving = builder.serve_connection(stream, service);
    connection.supervise(&budget, timeouts, serving).await;
}

impl TestServer {
    /// Sends a request over HTTP/1.
    async fn get(&self, path: &str) -> TcpStream {
        let mut client = TcpStream::connect(self.address).await.unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        client.write_all(head.as_bytes()).await.unwrap();
        client
    }

    fn answer_bytes(&self) -> i64 {
        self.metrics.answers.bytes.get()
    }

    /// Waits until the answers take this many bytes.
    async fn until_answer_bytes(&self, is_it: impl Fn(i64) -> bool) {
        let waiting = async {
            while !is_it(self.answer_bytes()) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = timeout(PATIENCE, waiting).await;
        assert!(waited.is_ok(), "the answers take {} bytes", self.answer_bytes());
    }

    fn cuts(&self, cause: &str) -> bool {
        let line = format!("weir_answers_cut_total{{cause=\"{cause}\"}} 1");
        self.metrics.encode(None, TextFormat::OpenMetrics).unwrap().lines().any(|shown| shown == line)
    }
}

#[tokio::test]
async fn unread_answer_is_cut_and_its_memory_released() {
    let server = server(STALL, PATIENCE).await;
    let mut client = server.get("/67108864").await;
    server.until_answer_bytes(|bytes| bytes > 0).await;
    let started = Instant::now();
    server.until_answer_bytes(|bytes| bytes == 0).await;
    assert!(started.elapsed() >= STALL / 2, "{:?}", started.elapsed());
    assert!(server.cuts("stalled"));
    // The system drops its buffers too.
    let mut rest = Vec::new();
    let _ = client.read_to_end(&mut rest).await;
    assert!(rest.len() < LARGE_BYTES);
}

#[tokio::test]
async fn steady_reader_outlasts_the_idle_timeout() {
    let server = server(STALL, Duration::from_millis(100)).await;
    let mut client = server.get("/67108864").await;
    let mut room = vec![0; 1 << 20];
    let mut read_bytes = 0;
    let started = Instant::now();
    while read_bytes < LARGE_BYTES {
        let read = timeout(PATIENCE, client.read(&mut room)).await.unwrap().unwrap();
        assert!(read > 0, "cut after {read_bytes} bytes and {:?}", started.elapsed());
        read_bytes += read;
        sleep(STALL / 25).await;
    }
    assert!(started.elapsed() > 2 * STALL, "{:?}", started.elapsed());
    server.until_answer_bytes(|bytes| bytes == 0).await;
}

#[tokio::test]
async fn unread_answer_of_a_function_ends_with_its_deadline() {
    let server = server(PATIENCE, PATIENCE).await;
    let _client = server.get("/endless").await;
    server.until_answer_bytes(|bytes| bytes > 0).await;
    server.overrun.set();
    server.until_answer_bytes(|bytes| bytes == 0).await;
    assert!(server.cuts("overrun"));
}

#[tokio::test]
async fn stalled_stream_of_http_2_is_reset_and_others_go_on() {
    let server = server(STALL, PATIENCE).await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    // The window of a stream is full at 64 KiB, that of the connection is not.
    let mut client = h2::client::Builder::new();
    let handshake = client.initial_connection_window_size(16 << 20).handshake::<_, Bytes>(stream);
    let (client, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let get = async |path: &str| {
        let mut client = client.clone().ready().await.unwrap();
        let uri = format!("http://localhost{path}");
        let request = http::Request::builder().uri(uri).body(()).unwrap();
        client.send_request(request, true).unwrap().0.await.unwrap().into_body()
    };
    let mut stalled = get("/1000000").await;
    server.until_answer_bytes(|bytes| bytes >= 1_000_000).await;
    let first = stalled.data().await.unwrap().unwrap();
    let reset = async {
        loop {
            match stalled.data().await {
                Some(Ok(_)) => {}
                Some(Err(error)) => return error,
                None => panic!("the answer is complete"),
            }
        }
    };
    let read = async {
        let reset = timeout(PATIENCE, reset).await.unwrap();
        assert!(reset.is_reset() && !first.is_empty(), "{reset}");
    };
    let others = async {
        for _ in 0..10 {
            let mut body = get("/1000").await;
            let bytes = body.data().await.unwrap().unwrap();
            assert_eq!(bytes.len(), 1_000);
            sleep(STALL / 5).await;
        }
    };
    tokio::join!(read, others);
    assert!(server.cuts("stalled"));
    server.until_answer_bytes(|bytes| bytes == 0).await;
}
