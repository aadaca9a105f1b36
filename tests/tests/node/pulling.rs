//! `weir models pull`: models of other servers.

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::json;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::task::JoinHandle;
use weir_tests::{TestNode, model};
use weir_types::ContentHash;
use weir_types::api::Model;

/// A server with files that supports ranges. It ends on drop.
struct FileServer {
    url: String,
    files: Arc<Mutex<HashMap<String, Bytes>>>,
    /// Heads of the requests so far.
    heads: Arc<Mutex<Vec<String>>>,
    /// Whether the next whole file ends in the middle.
    interrupts: Arc<AtomicBool>,
    serving: JoinHandle<()>,
}

impl FileServer {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let files = Arc::<Mutex<HashMap<String, Bytes>>>::default();
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let interrupts = Arc::<AtomicBool>::default();
        let known = files.clone();
        let seen = heads.clone();
        let broken = interrupts.clone();
        let serving = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let head = head(&mut stream).await;
                let answer = answer(&head, &known.lock(), &broken);
                seen.lock().push(head);
                let _ = stream.write_all(&answer).await;
            }
        });
        Self { url, files, heads, interrupts, serving }
    }

    fn put(&self, path: &str, content: impl Into<Bytes>) {
        self.files.lock().insert(path.to_owned(), content.into());
    }

    fn heads(&self, method_and_path: &str) -> Vec<String> {
        let heads = self.heads.lock();
        heads.iter().filter(|head| head.starts_with(&format!("{method_and_path} "))).cloned().collect()
    }
}

impl Drop for FileServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).unwrap()
}

fn answer(head: &str, files: &HashMap<String, Bytes>, interrupts: &AtomicBool) -> Vec<u8> {
    let mut words = head.split_whitespace();
    let is_head = words.next() == Some("HEAD");
    let Some(file) = words.next().and_then(|path| files.get(path)) else {
        return b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_vec();
    };
    let value = |name: &str| {
        let line = head.lines().find(|line| line.to_ascii_lowercase().starts_with(&format!("{name}: ")))?;
        Some(line[name.len() + 2..].to_owned())
    };
    let etag = format!("\"{}\"", ContentHash::from_content(file));
    let from = value("range").filter(|_| value("if-range").as_ref() == Some(&etag));
    let from: Option<usize> =
        from.map(|range| range.trim_start_matches("bytes=").trim_end_matches('-').parse().unwrap());
    let (status, range) = match from {
        Some(from) => (
            "206 Partial Content",
            format!("content-range: bytes {from}-{}/{}\r\n", file.len() - 1, file.len()),
        ),
        None => ("200 OK", String::new()),
    };
    let body = &file[from.unwrap_or(0)..];
    let mut answer = format!(
        "HTTP/1.1 {status}\r\netag: {etag}\r\n{range}content-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    )
    .into_bytes();
    if !is_head {
        let is_cut = from.is_none() && interrupts.swap(false, Ordering::Relaxed);
        answer.extend_from_slice(if is_cut { &body[..body.len() / 2] } else { body });
    }
    answer
}

/// Runs `weir models pull` with an empty cache.
async fn pull(node: &TestNode, server: &FileServer, cache: &Path, args: &[&str]) -> Result<String, String> {
    let mut command = Command::new(node.binary());
    command.args(["models", "pull"]).args(args).kill_on_drop(true);
    command.env("WEIR_URL", node.url("").as_str().trim_end_matches('/'));
    command.env("XDG_CACHE_HOME", cache).env("HF_ENDPOINT", &server.url).env("HF_TOKEN", "hub-token");
    let output = command.output().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

async fn digest(node: &TestNode, name: &str) -> ContentHash {
    node.get(&format!("/v1/models/{name}")).await.ok().json::<Model>().active.digest
}

#[tokio::test]
async fn interrupted_download_continues_and_is_pushed_whole() {
    let (node, server) = tokio::join!(TestNode::start(), FileServer::start());
    let cache = tempfile::tempdir().unwrap();
    let onnx = model("good/matmul.onnx");
    server.put("/models/Mat_Mul.onnx", onnx.clone());
    server.interrupts.store(true, Ordering::Relaxed);
    let url = format!("{}/models/Mat_Mul.onnx", server.url);
    let pushed = pull(&node, &server, cache.path(), &[&url, "--slots", "3"]).await.unwrap();
    assert!(pushed.starts_with("pushed mat-mul:1"), "{pushed}");
    assert_eq!(digest(&node, "mat-mul").await, ContentHash::from_content(&onnx));
    let requests = server.heads("GET /models/Mat_Mul.onnx");
    assert_eq!(requests.len(), 2, "{requests:?}");
    let half = format!("range: bytes={}-", onnx.len() / 2);
    assert!(requests[1].to_ascii_lowercase().contains(&half), "{requests:?}");
    let slots = node.get("/v1/models/mat-mul").await.ok().json::<Model>().active.manifest.slots;
    assert_eq!(slots, Some(3), "options of `push` apply");
    let left = std::fs::read_dir(cache.path().join("weir/pulls")).unwrap().count();
    assert_eq!(left, 0, "the cache has files of a pushed model");
}

#[tokio::test]
async fn other_file_than_the_pinned_one_is_not_pushed() {
    let (node, server) = tokio::join!(TestNode::start(), FileServer::start());
    let cache = tempfile::tempdir().unwrap();
    server.put("/m.onnx", model("good/matmul.onnx"));
    let url = format!("{}/m.onnx", server.url);
    let pin = ContentHash::from_content(&model("good/add.onnx")).to_string();
    let refused = pull(&node, &server, cache.path(), &[&url, "--sha256", &pin]).await.unwrap_err();
    assert!(refused.contains("has the SHA-256") && refused.contains(&pin), "{refused}");
    assert_eq!(node.models().await.len(), 0);
    // The damaged download does not stay.
    server.put("/m.onnx", model("good/add.onnx"));
    pull(&node, &server, cache.path(), &[&url, "--sha256", &pin]).await.unwrap();
    assert_eq!(digest(&node, "m").await.to_string(), pin);
    let missing = format!("{}/none.onnx", server.url);
    let refused = pull(&node, &server, cache.path(), &[&missing]).await.unwrap_err();
    assert!(refused.contains("404"), "{refused}");
}

#[tokio::test]
async fn model_of_a_hub_comes_from_one_commit_with_its_weights() {
    let (node, server) = tokio::join!(TestNode::start(), FileServer::start());
    let cache = tempfile::tempdir().unwrap();
    let files = ["README.md", "onnx/model.onnx", "onnx/weights.bin", "onnx/model_fp16.onnx"];
    let siblings = files.map(|name| json!({"rfilename": name}));
    server.put(
        "/api/models/owner/Net-1/revision/main",
        json!({"sha": "c0ffee", "siblings": siblings}).to_string(),
    );
    server.put("/owner/Net-1/resolve/c0ffee/onnx/model.onnx", model("bad/external_data.onnx"));
    let weights: Vec<u8> = (1..=6_u8).flat_map(|number| f32::from(number).to_le_bytes()).collect();
    server.put("/owner/Net-1/resolve/c0ffee/onnx/weights.bin", weights);
    let pushed = pull(&node, &server, cache.path(), &["hf://owner/Net-1"]).await.unwrap();
    assert!(pushed.starts_with("pushed net-1:1"), "{pushed}");
    let x = json!({"name": "x", "datatype": "FP32", "shape": [2, 3], "data": [1, 1, 1, 1, 1, 1]});
    let answer = node.post("/v2/models/net-1/infer", json!({"inputs": [x]}).to_string()).await.ok();
    let answer: serde_json::Value = answer.json();
    assert_eq!(answer["outputs"][0]["data"], json!([2.0, 3.0, 4.0, 5.0, 6.0, 7.0]));
    for request in server.heads("GET /owner/Net-1/resolve/c0ffee/onnx/model.onnx") {
        assert!(request.contains("Bearer hub-token"), "{request}");
    }
    let refused = pull(&node, &server, cache.path(), &["hf://owner/Net-1/other.onnx"]).await.unwrap_err();
    assert!(refused.contains("no file other.onnx") && refused.contains("onnx/model_fp16.onnx"), "{refused}");
}
