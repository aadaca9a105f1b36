//! Connections that send half a request, and then nothing.

use super::{attack, node};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_affect_no_other_tenant() {
    attack(node(), async |attacker| {
        let mut connections = Vec::new();
        for number in 0..600 {
            let Ok(mut connection) = TcpStream::connect(attacker.address()).await else { continue };
            let half = [
                &b""[..],
                b"GET /fn/hello HTTP/1.1\r\nhost",
                b"POST /v2/models/mul/infer HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n{",
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            ][number % 4];
            // The node may have closed the connection already.
            let _ = connection.write_all(half).await;
            connections.push(connection);
        }
        attacker.get("/v1/functions").await.ok();
        assert!(connections.len() > 100, "the attack did not take place");
    })
    .await;
}
