//! Guesses of tokens: of the token file, and in the form of API keys.

use super::{attack, node};

#[tokio::test(flavor = "multi_thread")]
async fn guessed_tokens_open_nothing() {
    attack(node(), async |attacker| {
        let guesses = (0..40).map(|guess| match guess % 3 {
            0 => format!("victim-token-{guess:010}"),
            1 => format!("weir_{guess:048x}"),
            _ => format!("{guess:x}").repeat(500),
        });
        let guesses = guesses.map(|guess| {
            let client = attacker.with_token(&guess);
            async move { client.get("/v1/objects/mine/data").await.status }
        });
        for status in futures::future::join_all(guesses).await {
            assert_eq!(status, 401);
        }
        // A tenant cannot make a key for another one, or with more than it has.
        let body = r#"{"scopes": ["admin"], "tenant": "victim"}"#;
        assert_eq!(attacker.put("/v1/keys/k", body).await.status, 400);
    })
    .await;
}
