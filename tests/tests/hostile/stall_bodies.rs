//! Bodies of calls that fill the memory for bodies, and never end.

use super::{ATTACKER, attack, node};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use weir_tests::function;

const MIB: usize = 1 << 20;
/// Memory for the bodies of all tenants. The attack sends more.
const ARENA_MIB: usize = 32;
/// Length of a body. The node receives a body of this length before it starts the function.
const BODY_MIB: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn stalled_bodies_affect_no_other_tenant() {
    attack(node().set("gateway.arena_bytes_max", ARENA_MIB * MIB), async |attacker| {
        attacker.deploy("f", function("misbehave")).await;
        let mut bodies: FuturesUnordered<_> =
            (0..3 * ARENA_MIB / BODY_MIB).map(|_| begin(attacker.address())).collect();
        // The tenant uses up its share of memory, and further bodies are refused.
        let refused = async {
            while let Some(answer) = bodies.next().await {
                if answer.starts_with("HTTP/1.1 429") {
                    return answer;
                }
            }
            panic!("no body was refused");
        };
        let refused = tokio::time::timeout(Duration::from_secs(60), refused).await;
        let refused = refused.expect("the share is not used up");
        assert!(refused.contains("arena_bytes_max of [node.tenants]"), "{refused}");
        // Small bodies fit as soon as others have ended.
        drop(bodies);
        weir_tests::eventually("free memory", async || {
            (attacker.post("/fn/f/behave", vec![0; MIB]).await.status == 200).then_some(())
        })
        .await;
    })
    .await;
}

/// Sends a call without the last quarter of its body, and returns the answer.
async fn begin(address: &str) -> String {
    let head = format!(
        "POST /fn/f/behave HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {ATTACKER}\r\ncontent-length: {}\r\n\r\n",
        BODY_MIB * MIB
    );
    let Ok(mut connection) = TcpStream::connect(address).await else { return String::new() };
    // The node may refuse the call before it has read all of this.
    let _ = connection.write_all(head.as_bytes()).await;
    let _ = connection.write_all(&vec![0; BODY_MIB * MIB / 4 * 3]).await;
    let mut answer = Vec::new();
    let mut piece = vec![0; 4096];
    while let Ok(read @ 1..) = connection.read(&mut piece).await {
        answer.extend_from_slice(&piece[..read]);
        let text = String::from_utf8_lossy(&answer);
        // The answer is an error, whose JSON ends with a brace.
        if text.contains("\r\n\r\n") && text.trim_end().ends_with('}') {
            break;
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}
