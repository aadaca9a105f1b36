//! Fail-over from a failing server to a working etcd.

use super::protocol::request_op::Request;
use super::protocol::{
    LeaseGrantRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, WatchCreateRequest,
};
use super::*;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use weir_tests::{Etcd, eventually};

/// Types of HTTP/2 frames.
const DATA: u8 = 0;
const SETTINGS: u8 = 4;
/// The bytes before the payload of a frame: its length (3), its type, flags and stream (4).
const FRAME_HEADER_BYTES: usize = 9;
/// The bytes that a client sends before its first frame.
const PREFACE_BYTES: usize = 24;

#[tokio::test]
async fn unreachable_server_is_skipped() {
    if !Etcd::is_installed() {
        return;
    }
    let etcd = started().await;
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    client(&[&nobody, &etcd.host()]).call(&read("k")).await.unwrap();
    // The write cannot have reached etcd before.
    assert!(client(&[&nobody, &etcd.host()]).call(&write("k")).await.unwrap().succeeded);
    let watch = WatchCreateRequest { key: "k".into(), ..WatchCreateRequest::default() };
    client(&[&nobody, &etcd.host()]).call(&watch).await.unwrap();
}

#[tokio::test]
async fn write_is_not_resent_after_a_lost_answer() {
    if !Etcd::is_installed() {
        return;
    }
    let etcd = started().await;
    let client = client(&[&hangs_up(), &etcd.host()]);
    let lost = client.call(&write("k")).await;
    assert!(matches!(lost, Err(ClientError::Failed { .. })), "{lost:?}");
    // The client has switched to a server that never received the write.
    assert!(client.call(&read("k")).await.unwrap().kvs.is_empty());
    assert!(client.call(&write("k")).await.unwrap().succeeded);
}

#[tokio::test]
async fn idempotent_requests_are_resent_after_a_lost_answer() {
    if !Etcd::is_installed() {
        return;
    }
    let etcd = started().await;
    client(&[&hangs_up(), &etcd.host()]).call(&read("k")).await.unwrap();
    client(&[&hangs_up(), &etcd.host()]).call(&LeaseGrantRequest { ttl: 60 }).await.unwrap();
}

#[tokio::test]
async fn unresponsive_server_is_replaced_after_the_timeout() {
    if !Etcd::is_installed() {
        return;
    }
    let etcd = started().await;
    // The kernel accepts connections, and no task reads from them.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = client(&[&silent.local_addr().unwrap().to_string(), &etcd.host()]);
    let began = Instant::now();
    assert!(matches!(client.call(&read("k")).await, Err(ClientError::Timeout)));
    assert!(began.elapsed() < 2 * REQUEST_TIME_MAX);
    client.call(&read("k")).await.unwrap();
}

/// Starts an etcd and waits until it answers.
async fn started() -> Etcd {
    let etcd = Etcd::start();
    let client = client(&[&etcd.host()]);
    eventually("an etcd that answers", async || client.call(&read("k")).await.ok()).await;
    etcd
}

fn client(hosts: &[&str]) -> EtcdClient {
    let address = format!("etcd://{}", hosts.join(",")).parse().unwrap();
    EtcdClient::new(&address, &ClientTlsConfig::new()).unwrap()
}

fn read(key: &str) -> RangeRequest {
    RangeRequest { key: key.into(), ..RangeRequest::default() }
}

fn write(key: &str) -> TxnRequest {
    let put = PutRequest { key: key.into(), ..PutRequest::default() };
    TxnRequest { compare: Vec::new(), success: vec![RequestOp { request: Some(Request::RequestPut(put)) }] }
}

/// Starts a server that reads one request per connection and closes the connection without an
/// answer. Returns its host and port.
fn hangs_up() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        while let Ok((connection, _)) = listener.accept() {
            // An error means that the client has closed the connection.
            let _ = read_request(connection);
        }
    });
    host
}

fn read_request(mut connection: TcpStream) -> std::io::Result<()> {
    let mut settings = [0; FRAME_HEADER_BYTES];
    settings[3] = SETTINGS;
    connection.write_all(&settings)?;
    connection.read_exact(&mut [0; PREFACE_BYTES])?;
    loop {
        let mut header = [0; FRAME_HEADER_BYTES];
        connection.read_exact(&mut header)?;
        let [high, middle, low, kind, ..] = header;
        connection.read_exact(&mut vec![0; u32::from_be_bytes([0, high, middle, low]) as usize])?;
        if kind == DATA {
            return Ok(());
        }
    }
}
