//! As many uploads as the node takes, which stop after their first bytes.

use super::{attack, node};
use futures::stream::FuturesUnordered;
use futures::{StreamExt as _, stream};
use reqwest::{Body, Method};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn stalled_uploads_affect_no_other_tenant() {
    attack(node(), async |attacker| {
        let upload = |number: usize| {
            let piece = stream::iter([Ok::<_, std::io::Error>(vec![0; 100])]);
            let body = Body::wrap_stream(piece.chain(stream::pending()));
            let path = format!("/v1/{}/stalled{number}", ["functions", "models", "objects"][number % 3]);
            let request = attacker.request(Method::PUT, &path).body(body);
            async move { request.send().await.ok().map(|answer| answer.status().as_u16()) }
        };
        let mut uploads: FuturesUnordered<_> = (0..80).map(upload).collect();
        // The tenant uses up its share of uploads, and further ones are refused.
        let refused = async {
            while let Some(status) = uploads.next().await {
                if status == Some(429) {
                    return;
                }
            }
            panic!("no upload was refused");
        };
        tokio::time::timeout(Duration::from_secs(60), refused)
            .await
            .expect("the tenant can still begin uploads");
    })
    .await;
}
