//! Invalid components: each is rejected with its own code, and the node continues.

use weir_tests::{TestClient, TestNode, function};
use weir_types::ErrorCode;

/// Encodes a component in the text format.
fn wat(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap()
}

fn replaced(bytes: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    assert_eq!(old.len(), new.len());
    let mut bytes = bytes.to_vec();
    let places: Vec<_> = (0..bytes.len() - old.len()).filter(|at| bytes[*at..].starts_with(old)).collect();
    assert!(!places.is_empty());
    places.into_iter().for_each(|at| bytes[at..at + new.len()].copy_from_slice(new));
    bytes
}

fn leb128(mut number: usize, bytes: &mut Vec<u8>) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

async fn refused(node: &TestClient, what: &str, component: Vec<u8>, status: u16, code: ErrorCode) -> String {
    let refusal = node.try_deploy("bad", "", component).await.expect_err(what);
    assert_eq!((refusal.status, refusal.code), (status, code), "{what}: {}", refusal.text);
    assert_eq!(
        node.function("bad").await.unwrap_err().code,
        ErrorCode::FunctionNotFound,
        "{what}: the function exists after a failed deploy"
    );
    refusal.text
}

#[tokio::test]
async fn invalid_components_are_rejected() {
    let node = TestNode::start().await;
    let good = function("hello");
    let mut flipped = good.to_vec();
    let middle = flipped.len() / 2;
    flipped[middle..middle + 64].fill(0xff);
    let cases: [(&str, Vec<u8>); 9] = [
        ("nothing", vec![]),
        ("text", b"hello".to_vec()),
        ("a wrong magic", [b"\0wasm", &good[5..]].concat()),
        ("half a header", good[..6].to_vec()),
        ("half a component", good[..good.len() / 2].to_vec()),
        ("all but the last byte", good[..good.len() - 1].to_vec()),
        ("changed bytes in the middle", flipped),
        ("a core module", wat("(module (func (export \"_start\")))")),
        ("text format", b"(component)".to_vec()),
    ];
    for (what, component) in cases {
        let text = refused(&node, what, component, 422, ErrorCode::InvalidComponent).await;
        if what == "a core module" {
            assert!(text.contains("module"), "the error does not name the module: {text}");
        }
    }
    node.deploy("hello", good).await;
    assert_eq!(node.get("/fn/hello").await.text(), "hello\n");
}

#[tokio::test]
async fn unknown_imports_are_rejected_by_name() {
    let node = TestNode::start().await;
    for (import, unknown) in
        [("wasi:cli/stdout@0.2", "acme:cli/stdout@0.2"), ("wasi:cli/stdout@0.2", "wasi:cli/stdoux@0.2")]
    {
        // Names are length-prefixed, so the replacement has the same length.
        let component = replaced(&function("wstd-hello"), import.as_bytes(), unknown.as_bytes());
        let text = refused(&node, unknown, component, 422, ErrorCode::UnknownImport).await;
        assert!(text.contains(unknown), "{unknown} is not named: {text}");
    }
}

#[tokio::test]
async fn component_without_entry_point_is_rejected() {
    let node = TestNode::start().await;
    for component in ["(component)", "(component (core module (func (export \"f\"))))"] {
        refused(&node, component, wat(component), 422, ErrorCode::NoEntryPoint).await;
    }
    // A correct name with a wrong type is no entry point.
    let imposter = "(component (component $c) (instance $i (instantiate $c)) (export \"wasi:http/incoming-handler@0.2.0\" (instance $i)))";
    let refusal = node.try_deploy("bad", "", wat(imposter)).await.unwrap_err();
    assert!([ErrorCode::NoEntryPoint, ErrorCode::InvalidComponent].contains(&refusal.code), "{refusal:?}");
}

#[tokio::test]
async fn oversized_component_is_rejected_before_reading() {
    let node = TestNode::builder().set("sandbox.component_bytes_max", 100_000).start().await;
    let refusal = node.try_deploy("huge", "", vec![0; 200_000]).await.unwrap_err();
    assert_eq!((refusal.status, refusal.code), (413, ErrorCode::BodyTooLarge));
    // Without a declared length, the upload is aborted at the limit.
    let pieces = futures::stream::iter((0..10_000).map(|_| std::io::Result::Ok(vec![0_u8; 100_000])));
    let request =
        node.request(reqwest::Method::PUT, "/v1/functions/huge").body(reqwest::Body::wrap_stream(pieces));
    if let Ok(response) = request.send().await {
        assert_eq!(response.status(), 413);
    }
    assert!(node.get("/healthz").await.is_ok());
}

#[tokio::test]
async fn compilation_time_and_memory_are_limited() {
    let node = TestNode::builder()
        .set("sandbox.compile_memory_bytes_max", 96 << 20)
        .set("sandbox.compile_cpu_ms_max", 2_000)
        .start()
        .await;
    // Many long functions: small to send, expensive to compile.
    let body = "(local.set 0 (i64.mul (i64.add (local.get 0) (i64.const 7)) (i64.rotl (local.get 0) (i64.const 3))))".repeat(2_000);
    let functions = format!("(func (param i64) (result i64) {body} (local.get 0))").repeat(150);
    let module = wat(&format!("(module {functions})"));
    // Core modules are compiled even without an instantiation. Append one as section 1 with its
    // size.
    let mut component = function("hello").to_vec();
    component.push(1);
    leb128(module.len(), &mut component);
    component.extend(module);
    assert!(component.len() < 10 << 20);
    let refusal = node.try_deploy("dear", "", component).await.unwrap_err();
    assert_eq!((refusal.status, refusal.code), (422, ErrorCode::CompileLimit), "{}", refusal.text);
    weir_tests::eventually("the end of the compiler", async || {
        weir_tests::children(node.pid()).is_empty().then_some(())
    })
    .await;
    assert!(node.get("/healthz").await.is_ok());
}
