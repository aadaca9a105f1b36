//! Models that end the process that runs them.

use super::{attack, node};
use serde_json::json;
use weir_tests::model_on_integers;

#[tokio::test(flavor = "multi_thread")]
async fn poisonous_models_affect_no_other_tenant() {
    attack(node(), async |attacker| {
        for operator in ["Div", "Mod"] {
            attacker.push_model(&operator.to_lowercase(), 1, model_on_integers(operator)).await;
        }
        let input =
            |name, value: i32| json!({"name": name, "shape": [1], "datatype": "INT32", "data": [value]});
        let body = json!({"inputs": [input("x", i32::MIN), input("y", -1)]}).to_string();
        for _ in 0..5 {
            let runs = ["div", "mod"].map(|model| {
                let path = format!("/v2/models/{model}/infer");
                let attacker = &attacker;
                let body = body.clone();
                async move { attacker.post(&path, body).await.status }
            });
            assert_eq!(futures::future::join_all(runs).await, [503, 503]);
        }
    })
    .await;
}
