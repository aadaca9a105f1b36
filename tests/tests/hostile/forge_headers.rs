//! Headers that only nodes and proxies send, and requests that two readers read differently.

use super::{ATTACKER, attack, node, with_header};
use weir_tests::raw;

#[tokio::test(flavor = "multi_thread")]
async fn forged_headers_reach_nothing() {
    attack(node(), async |attacker| {
        let grant = r#"{"tenant":"victim","version":1,"invocation":1,"deadline_in_ms":1000,"granted":{}}"#;
        for header in [
            ("weir-grant", grant),
            ("weir-grant", "{}"),
            ("weir-cluster-secret", "0123456789abcdef0123"),
            ("weir-forwarded-host", "victim"),
            ("weir-forwarded-scheme", "https"),
            ("x-weir-tenant", "victim"),
            ("x-forwarded-for", "127.0.0.1"),
            ("host", "victim.example"),
        ] {
            for path in ["/fn/hello/ann", "/fn/victim:hello/ann", "/v1/objects/mine/data", "/v1/functions/hello"] {
                let answer = with_header(&attacker, path, header).await;
                assert!((400..500).contains(&answer.status), "{header:?} {path}: {answer:?}");
            }
        }
        for path in ["/cluster/v1/link", "/cluster/v1/outcomes/1", "/cluster/v1/intermediates/1"] {
            assert!(attacker.post(path, "{}").await.status >= 400, "{path}");
        }
        let smuggled = "GET /v1/objects/mine/data HTTP/1.1\r\nhost: a\r\n\r\n";
        for framing in [
            "content-length: 5\r\ntransfer-encoding: chunked",
            "transfer-encoding: chunked\r\ntransfer-encoding: identity",
            "content-length: 0\r\ncontent-length: 50",
            "content-length: +0",
        ] {
            let request = format!(
                "POST /fn/hello HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {ATTACKER}\r\nconnection: close\r\n{framing}\r\n\r\n0\r\n\r\n{smuggled}"
            );
            let (status, answer) = raw(&attacker, request).await;
            assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{framing}: {answer}");
            assert!((400..500).contains(&status), "{framing}: {answer}");
        }
    })
    .await;
}
