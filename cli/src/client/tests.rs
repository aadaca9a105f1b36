//! Tests for node failures and malformed responses, against a stub server with a fixed response.

use super::*;
use crate::output::OutputSettings;
use crate::settings::Trust;
use std::io::Write as _;
use std::net::TcpListener;
use std::thread::JoinHandle;

const QUIET: OutputSettings = OutputSettings { json: false, quiet: true };

/// Server that answers one request with a fixed response. The thread returns the request head and
/// the number of bytes that followed it.
struct Stub {
    url: String,
    thread: JoinHandle<(String, u64)>,
}

impl Stub {
    fn answering(answer: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") {
                assert_eq!(stream.read(&mut byte).unwrap(), 1, "the request's head was cut short");
                head.push(byte[0]);
            }
            stream.write_all(answer.as_bytes()).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let after = std::io::copy(&mut stream, &mut std::io::sink()).unwrap_or(u64::MAX);
            (String::from_utf8(head).unwrap().to_ascii_lowercase(), after)
        });
        Self { url, thread }
    }

    fn client(&self) -> Client {
        Client::new(NodeEndpoint {
            url: self.url.clone(),
            token: Some("s3cret".into()),
            trust: Trust::Public,
        })
        .unwrap()
    }
}

#[test]
fn unreachable_node_error_has_advice() {
    // The listener is dropped, so the port refuses connections.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let endpoint = NodeEndpoint { url: format!("http://{address}"), token: None, trust: Trust::Public };
    let client = Client::new(endpoint).unwrap();
    let error = client.get::<serde_json::Value>("/v1/status", "read").unwrap_err();
    let text = crate::error::text(&error);
    assert!(text.contains(&address.to_string()) && text.contains("weir up"), "{text}");
    assert_eq!(crate::error::exit_of(&error), Exit::Unreachable);
}

#[test]
fn foreign_response_is_shown_as_error() {
    let stub = Stub::answering("HTTP/1.1 502 Bad Gateway\r\ncontent-length: 21\r\n\r\n<h1>nginx is sad</h1>");
    let error = stub.client().get::<serde_json::Value>("/v1/status", "read the status").unwrap_err();
    let text = crate::error::text(&error);
    assert!(
        text.contains("502 Bad Gateway") && text.contains("nginx is sad") && text.contains("proxy"),
        "{text}"
    );
    assert_eq!(crate::error::exit_of(&error), Exit::Refused);
    let (head, _) = stub.thread.join().unwrap();
    assert!(head.contains("weir-token: s3cret"), "{head}");

    let stub = Stub::answering("HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n\"other\"");
    let error = stub.client().get::<weir_types::api::Status>("/v1/status", "read the status").unwrap_err();
    assert!(crate::error::text(&error).contains("different versions"));
}

#[test]
fn rejected_upload_sends_no_body() {
    let answer = "HTTP/1.1 413 Payload Too Large\r\ncontent-length: 74\r\nconnection: close\r\n\r\n\
        {\"error\":\"the model is too big\",\"code\":\"body-too-large\",\"request_id\":\"r1\"}";
    let stub = Stub::answering(answer);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&vec![7; 4 << 20]).unwrap();
    let mut upload = UploadReader::open(file.path(), QUIET, "sending", "waiting").unwrap();
    let error =
        stub.client().put::<serde_json::Value>("/v1/models/m", "push m", &[], &mut upload).unwrap_err();
    let text = crate::error::text(&error);
    assert!(text.contains("cannot push m: the model is too big") && text.contains("request r1"), "{text}");
    let (head, after) = stub.thread.join().unwrap();
    assert!(head.contains("expect: 100-continue") && head.contains("content-length: 4194304"), "{head}");
    assert_eq!(after, 0, "the file was sent although it had been refused");
}
