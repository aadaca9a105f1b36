//! Applies that end before their last change.

use super::{ALL, Folder, ended, fake, fake_model, versions};
use serde_json::{Value, json};
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use weir_tests::{TestNode, function, signal};

const THREE: &str = "\
functions:
  a: {component: hello.wasm}
  b: {component: broken.wasm}
  c: {component: hello.wasm}
";

#[tokio::test]
async fn first_error_ends_an_apply_and_the_next_apply_continues() {
    let node = TestNode::start().await;
    let folder = Folder::new();
    folder.write("weir.yaml", THREE);
    folder.write("broken.wasm", b"\0asm\x0d\0\x01\0broken");
    let stopped = folder.weir(&node, &["apply"]).await;
    assert_eq!(stopped.status, 4, "{stopped:?}");
    for line in [
        "done: create function a (version 1)\n",
        "failed: create function b\n",
        "not done: create function c\n",
    ] {
        assert!(stopped.stdout.contains(line), "{stopped:?}");
    }
    assert!(stopped.stderr.contains("1 of 3 changes were made; the same command continues"), "{stopped:?}");
    assert!(
        stopped.stderr.contains("cannot deploy b") && stopped.stderr.contains("code: invalid-component"),
        "{stopped:?}"
    );

    let stopped = folder.weir(&node, &["apply", "--json"]).await;
    assert_eq!(stopped.status, 4, "{stopped:?}");
    let result = stopped.json();
    let outcomes: Vec<_> = result["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|change| (&change["name"], &change["outcome"]))
        .collect();
    assert_eq!(json!(outcomes), json!([["b", "failed"], ["c", "not-done"]]));
    // The lines before are the progress.
    let error = stopped.stderr.lines().last().unwrap();
    let error: Value = serde_json::from_str(error).unwrap();
    assert_eq!(error["code"], "invalid-component");

    folder.write("broken.wasm", function("hello"));
    let applied = folder.weir(&node, &["apply"]).await;
    assert_eq!(applied.status, 0, "{applied:?}");
    assert!(applied.stdout.ends_with("applied 2 of 2 changes\n"), "{applied:?}");
    assert_eq!(versions(&node, "a").await, [1]);
}

#[tokio::test]
async fn incompatible_model_needs_permission() {
    let node = fake().start().await;
    let folder = Folder::new();
    folder.write("weir.yaml", "models: {m: {file: m.json}}\n");
    assert_eq!(folder.weir(&node, &["apply"]).await.status, 0);
    folder.write("m.json", fake_model(0.0).replace("\"name\":\"y\"", "\"name\":\"z\""));
    let refused = folder.weir(&node, &["apply"]).await;
    assert_eq!(refused.status, 4, "{refused:?}");
    assert!(refused.stderr.contains("code: signature-changed"), "{refused:?}");
    let applied = folder.weir(&node, &["apply", "--allow-signature-change"]).await;
    assert_eq!(applied.status, 0, "{applied:?}");
}

/// Passes connections on to `node`. Calls `upload` before the first upload is passed on.
async fn proxy(listener: TcpListener, node: &TestNode, mut upload: impl AsyncFnMut()) {
    let node = node.url("");
    let address = (node.host_str().unwrap().to_owned(), node.port().unwrap());
    let mut is_first = true;
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let server = TcpStream::connect(&address).await.unwrap();
        let (mut answers, mut requests) = server.into_split();
        let (mut reader, mut writer) = client.into_split();
        let answers = tokio::spawn(async move { tokio::io::copy(&mut answers, &mut writer).await });
        let mut bytes = vec![0; 64 << 10];
        while let Ok(count @ 1..) = reader.read(&mut bytes).await {
            if bytes.starts_with(b"PUT ") && std::mem::take(&mut is_first) {
                upload().await;
            }
            if requests.write_all(&bytes[..count]).await.is_err() {
                break;
            }
        }
        answers.abort();
    }
}

#[tokio::test]
async fn interrupt_ends_an_apply_after_its_change_and_a_second_interrupt_at_once() {
    let node = fake().start().await;
    let folder = Folder::new();
    folder.write("weir.yaml", ALL);
    // The second interrupt first, because the first lets the change be made.
    for signals in [2, 1] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut command = folder.command(&node, &["apply"]);
        command.env("WEIR_URL", format!("http://{}", listener.local_addr().unwrap()));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let pid = child.id().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
        let interrupt = async || {
            signal(pid, "INT");
            while let Some(line) = errors.next_line().await.unwrap() {
                if line.contains("stopping after this change") {
                    break;
                }
            }
            if signals == 2 {
                signal(pid, "INT");
                std::future::pending::<()>().await;
            }
        };
        let mut output = String::new();
        let mut stdout = child.stdout.take().unwrap();
        let status = tokio::select! {
            () = proxy(listener, &node, interrupt) => unreachable!("the proxy does not end"),
            status = async {
                stdout.read_to_string(&mut output).await.unwrap();
                child.wait().await.unwrap()
            } => status,
        };
        assert_eq!(status.code(), Some(130), "{output}");
        let done = output.lines().filter(|line| line.starts_with("done") || line.starts_with("not done"));
        let done: Vec<&str> = done.collect();
        if signals == 2 {
            assert_eq!(done, [""; 0]);
        } else {
            let not_done = ["not done: create function hello", "not done: create workflow w"];
            assert_eq!(done, [&["done: create model m (version 1)"][..], &not_done].concat());
        }
    }
    assert_eq!((node.models().await.len(), node.functions().await.len()), (1, 0));
    let applied = ended(folder.command(&node, &["apply"])).await;
    assert!(applied.stdout.ends_with("applied 2 of 2 changes\n"), "{applied:?}");
}
