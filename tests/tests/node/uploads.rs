//! Concurrent, slow and oversized uploads.

use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use weir_tests::{TestClient, TestNode, eventually, function, model};
use weir_types::ErrorCode;

/// Starts an upload and sends only its first bytes.
async fn begin_upload(client: &TestClient, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(client.address()).await.unwrap();
    let head = format!("PUT {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n\0asm");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn uploads_over_the_limit_are_rejected() {
    let node = TestNode::builder().set("gateway.uploads_max", 2).start().await;
    let slow = [begin_upload(&node, "/v1/functions/f").await, begin_upload(&node, "/v1/models/m").await];
    let is_staged = |folder: &str| {
        let mut files = std::fs::read_dir(node.data().join(folder)).unwrap();
        files.any(|file| file.unwrap().file_name().to_string_lossy().starts_with(".staged-"))
    };
    eventually("the beginning of both", async || {
        (is_staged("components") && is_staged("models")).then_some(())
    })
    .await;
    let refused = node.put("/v1/functions/g", function("hello")).await;
    assert_eq!((refused.status, refused.code()), (429, ErrorCode::QueueFull));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(node.try_push_model("n", 1, model("good/add.onnx")).await.unwrap_err().status, 429);
    drop(slow);
    eventually("room for uploads", async || node.try_deploy("g", "", function("hello")).await.ok()).await;
    node.push_model("n", 1, model("good/add.onnx")).await;
}

#[tokio::test]
async fn slow_upload_times_out_and_frees_its_slot() {
    let node =
        TestNode::builder().set("gateway.uploads_max", 1).set("gateway.upload_timeout_ms", 300).start().await;
    let mut slow = begin_upload(&node, "/v1/functions/f").await;
    let mut answer = vec![0; 4 << 10];
    let read = tokio::time::timeout(Duration::from_secs(30), slow.read(&mut answer)).await;
    let read = read.expect("the node did not end the slow upload").unwrap();
    let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 504") && answer.contains("deadline-exceeded"), "{answer}");
    eventually("room for uploads", async || node.try_deploy("g", "", function("hello")).await.ok()).await;
}

/// Adds a core instance with an initial memory of `pages` pages to a component.
fn with_memory(component: &[u8], pages: u32) -> Vec<u8> {
    let module = wat::parse_str(format!("(module (memory {pages}))")).unwrap();
    let modules = sections(component).filter(|id| *id == 1).count();
    let mut larger = component.to_vec();
    larger.push(1);
    larger.push(u8::try_from(module.len()).ok().filter(|len| *len < 128).unwrap());
    larger.extend(module);
    // A section with one core instance: the module of this index, instantiated without imports.
    larger.extend([2, 4, 1, 0, u8::try_from(modules).unwrap(), 0]);
    larger
}

/// Ids of a component's top-level sections.
fn sections(component: &[u8]) -> impl Iterator<Item = u8> {
    let mut rest = &component[8..];
    std::iter::from_fn(move || {
        let (id, mut after) = rest.split_first()?;
        let mut len = 0_usize;
        let mut shift = 0;
        loop {
            let (byte, more) = after.split_first().unwrap();
            len |= usize::from(byte & 0x7f) << shift;
            after = more;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
        rest = &after[len..];
        Some(*id)
    })
}

/// The deployment is rejected, because every call would fail.
#[tokio::test]
async fn component_over_its_memory_limit_is_rejected_on_deploy() {
    let node = TestNode::start().await;
    let hello = function("hello");
    // More than the node's cap, and more than the function's limit.
    for (pages, query, named) in [
        (20_000, "", "sandbox.limit_caps"),
        (6_000, "", "limits.memory_bytes"),
        (20, "limits.memory_bytes=1000000", "limits.memory_bytes"),
    ] {
        let refusal = node.try_deploy("f", query, with_memory(&hello, pages)).await.unwrap_err();
        assert_eq!(
            (refusal.status, refusal.code),
            (400, ErrorCode::LimitOverCap),
            "{pages}: {}",
            refusal.text
        );
        assert!(refusal.text.contains(named), "{pages}: {}", refusal.text);
    }
    node.deploy_with("f", "limits.memory_bytes=600000000", with_memory(&hello, 6_000)).await;
    assert_eq!(node.get("/fn/f").await.ok().text(), "hello\n");
    // A known component is checked again with another manifest.
    let refusal = node.try_deploy("g", "", with_memory(&hello, 6_000)).await.unwrap_err();
    assert_eq!(refusal.code, ErrorCode::LimitOverCap);
}
