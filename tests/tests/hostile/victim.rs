//! The tenant whose calls succeed.

use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use weir_tests::{TestClient, function, model_on_integers};

/// Longest time of a call during an attack. The machine is busy, but no call waits for the
/// attack's end.
const CALL_TIME_MAX: Duration = Duration::from_secs(60);
/// Calls that are made at least.
const ROUNDS_MIN: usize = 10;

/// A tenant with a function, a model and an object.
#[derive(Clone)]
pub(crate) struct Victim {
    client: TestClient,
}

/// Calls in progress, until stopped or dropped.
pub(crate) struct Calling {
    stop: CancellationToken,
    task: AbortOnDropHandle<()>,
}

impl Victim {
    pub(crate) async fn deploy(client: TestClient) -> Self {
        client.deploy("hello", function("hello")).await;
        client.push_model("mul", 1, model_on_integers("Mul")).await;
        let victim = Self { client };
        victim.call_once().await;
        victim
    }

    /// Repeats calls until the attack is over.
    pub(crate) fn call_until_stopped(&self) -> Calling {
        let stop = CancellationToken::new();
        let victim = self.clone();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let mut rounds = 0;
            while rounds < ROUNDS_MIN || !stopped.is_cancelled() {
                victim.call_once().await;
                rounds += 1;
            }
        });
        Calling { stop, task: AbortOnDropHandle::new(task) }
    }

    pub(crate) async fn call_some(&self) {
        for _ in 0..ROUNDS_MIN {
            self.call_once().await;
        }
    }

    /// One call of each kind.
    async fn call_once(&self) {
        let client = &self.client;
        let began = Instant::now();
        let greeted = within("a call of a function", client.get("/fn/hello/ann")).await.ok();
        assert_eq!(greeted.text(), "hello, ann\n");
        let input = |name| json!({"name": name, "shape": [1], "datatype": "INT32", "data": [7]});
        let body = json!({"inputs": [input("x"), input("y")]}).to_string();
        let answer = within("an inference", client.post("/v2/models/mul/infer", body)).await.ok();
        assert_eq!(answer.json::<Value>()["outputs"][0]["data"], json!([49]));
        within("a put of an object", client.put("/v1/objects/mine", "data")).await.ok();
        assert_eq!(
            within("a read of an object", client.get("/v1/objects/mine/data")).await.ok().text(),
            "data"
        );
        within("a list of functions", client.get("/v1/functions")).await.ok();
        assert!(began.elapsed() < CALL_TIME_MAX, "the calls took {:?}", began.elapsed());
    }
}

impl Calling {
    /// Ends the calls. Panics if one has failed.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        if let Err(error) = self.task.await {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}

async fn within<T>(what: &str, call: impl Future<Output = T>) -> T {
    let called = tokio::time::timeout(CALL_TIME_MAX, call).await;
    called.unwrap_or_else(|_| panic!("{what} of the other tenant took more than {CALL_TIME_MAX:?}"))
}
