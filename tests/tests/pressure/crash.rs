//! `kill -9` at random times during deploys, pushes, rollbacks and deletes.

use rand::{Rng, SeedableRng, rngs::StdRng};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use weir_tests::{TestClient, TestNode, function, model, with_custom_section};
use weir_types::api::VersionRequest;
use weir_types::{ContentHash, Version};

const KILLS: usize = 50;

/// Every acknowledged deploy survives, an interrupted deploy exists completely or not at all, and
/// every listed function can be called. The node keeps all versions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_deploys_survive_fifty_kills() {
    let _alone = crate::alone().await;
    let seed = rand::rng().random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let component = function("hello");
    let mut node = TestNode::builder().set("sandbox.versions_keep", 0).start().await;
    node.deploy("warm-up", with_custom_section(&component, "warm-up")).await;
    // Upper bounds for the time of the kill, for deploys with and without compilation. They adapt
    // to the duration of a deploy, so that about half of the deploys are interrupted, at any stage.
    let mut latest = [Duration::from_millis(500), Duration::from_millis(50)];

    // Digest and manifest mark by version.
    let mut answered: BTreeMap<Version, (ContentHash, String)> = BTreeMap::new();
    let mut cut_off = 0;
    let mut survived_cut = 0;
    for kill in 0..KILLS {
        let mark = format!("kill-{kill}.example");
        // Every second component is new and has to be compiled.
        let unseen = with_custom_section(&component, if kill % 2 == 0 { &mark } else { "same" });
        let digest = ContentHash::from_content(&unseen);
        let client = node.client().clone();
        let query = format!("outbound_hosts={mark}");
        let deploy = tokio::spawn(async move {
            let request =
                client.request(reqwest::Method::PUT, &format!("/v1/functions/f?{query}")).body(unseen);
            let response = request.send().await.ok().filter(|response| response.status().is_success())?;
            response.json::<weir_types::api::Deployed>().await.ok()
        });
        let latest = &mut latest[kill % 2];
        tokio::time::sleep(latest.mul_f64(random.random_range(0.0..1.0))).await;
        let builder = node.kill().await;
        let answer = deploy.await.unwrap();
        let restarted = Instant::now();
        node = builder.start().await;
        assert!(restarted.elapsed() < Duration::from_secs(20), "the restart took {:?}", restarted.elapsed());

        let newest = answered.keys().next_back().copied().unwrap_or(Version(0));
        match &answer {
            Some(answer) => {
                *latest = latest.mul_f64(0.8);
                assert!(answer.function.version > newest);
                answered.insert(answer.function.version, (digest, mark.clone()));
            }
            None => {
                *latest = latest.mul_f64(1.3).min(Duration::from_secs(20));
                cut_off += 1;
            }
        }
        let Ok(shown) = node.function("f").await else {
            assert!(answered.is_empty(), "kill {kill}: the function is lost");
            continue;
        };
        let unheard: Vec<_> =
            shown.versions.iter().filter(|version| !answered.contains_key(version)).copied().collect();
        if let [unheard] = unheard.as_slice() {
            // The commit was durable before the kill, but the response was not sent.
            assert!(answer.is_none(), "kill {kill}");
            survived_cut += 1;
            answered.insert(*unheard, (digest, mark.clone()));
        } else {
            assert_eq!(unheard, [], "kill {kill}");
        }
        for (version, (digest, mark)) in &answered {
            let version = node.function_version("f", *version).await;
            assert_eq!(
                (version.digest, &version.manifest.outbound_hosts),
                (*digest, &vec![mark.clone()]),
                "kill {kill}"
            );
        }
        assert_eq!(shown.active.version, *answered.keys().next_back().unwrap(), "kill {kill}");
        assert_eq!(node.get("/fn/f/x").await.ok().text(), "hello, x\n", "kill {kill}");
        assert_eq!(
            node.metric("weir_cold_starts_total", "cause=\"compile\"").await,
            0.0,
            "kill {kill}: the function was compiled again"
        );
    }
    println!(
        "{KILLS} kills: {} deploys were answered, {cut_off} cut off, {survived_cut} of those on disk",
        KILLS - cut_off
    );
    assert!(
        (KILLS / 5..=KILLS * 4 / 5).contains(&cut_off),
        "the kills did not hit the deploys: {cut_off} were cut off"
    );
    // Every version can be activated and called.
    for version in answered.keys() {
        node.roll_back("f", Some(version.0)).await.ok();
        assert_eq!(node.get("/fn/f/x").await.ok().text(), "hello, x\n");
    }
    // Files of interrupted deploys do not accumulate.
    let node = node.stop().await.start().await;
    let components = std::fs::read_dir(node.data().join("components")).unwrap().count();
    let digests: BTreeSet<_> = answered.values().map(|(digest, _)| digest).collect();
    assert!(components <= digests.len() + 2, "{components} files for {} components", digests.len() + 1);
}

/// A change requested by a client, with its effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Push,
    DeleteModel,
    Deploy,
    RollBack,
    DeleteFunction,
}

impl Change {
    const ALL: [Self; 5] =
        [Self::Push, Self::RollBack, Self::DeleteModel, Self::Deploy, Self::DeleteFunction];

    /// Establishes the initial state for the change.
    async fn set_up(self, node: &TestNode, component: &bytes::Bytes) {
        node.delete("/v1/models/m").await;
        node.delete("/v1/functions/f").await;
        if self == Self::DeleteModel {
            node.push_model("m", 1, model("good/matmul.onnx")).await;
        }
        if matches!(self, Self::RollBack | Self::DeleteFunction) {
            for mark in 1..=3 {
                node.deploy_with("f", &format!("env.MARK={mark}"), component.clone()).await;
            }
        }
    }

    /// Requests the change. Returns whether the node acknowledged it.
    async fn ask(self, client: &TestClient, component: bytes::Bytes) -> bool {
        use reqwest::Method;
        let request = match self {
            Self::Push => {
                client.request(Method::PUT, "/v1/models/m/versions/1").body(model("good/matmul.onnx"))
            }
            Self::DeleteModel => client.request(Method::DELETE, "/v1/models/m"),
            Self::Deploy => client.request(Method::PUT, "/v1/functions/f").body(component),
            Self::RollBack => client
                .request(Method::POST, "/v1/functions/f/rollback")
                .json(&VersionRequest { version: Some(Version(1)) }),
            Self::DeleteFunction => client.request(Method::DELETE, "/v1/functions/f"),
        };
        request.send().await.is_ok_and(|response| response.status().is_success())
    }

    /// Whether the change has happened completely. Panics if it has happened partially.
    async fn has_happened(self, node: &TestNode) -> bool {
        let function = node.function("f").await.ok();
        match self {
            Self::Push | Self::DeleteModel => {
                let models = node.models().await;
                assert!(models.len() <= 1);
                (models.len() == 1) == (self == Self::Push)
            }
            Self::Deploy => function.is_some(),
            Self::RollBack => {
                let function = function.expect("the function is lost");
                assert_eq!(function.versions, [Version(1), Version(2), Version(3)]);
                function.active.version == Version(1)
            }
            Self::DeleteFunction => function.is_none(),
        }
    }

    /// Checks that existing functions and models work. A change of a disconnected client may still
    /// complete meanwhile, so a function or model that no longer exists is not checked.
    async fn check(self, node: &TestNode) {
        if node.function("f").await.is_ok() {
            let answer = node.get("/fn/f/x").await;
            let compiled = node.metric("weir_cold_starts_total", "cause=\"compile\"").await;
            if node.function("f").await.is_ok() {
                assert_eq!(answer.ok().text(), "hello, x\n", "{self:?}");
                assert_eq!(compiled, 0.0, "{self:?}: the function was compiled again");
            }
        }
        if !node.models().await.is_empty() {
            let answer = node.post("/fn/infer/m?shape=1,4", vec![0; 16]).await;
            if !node.models().await.is_empty() {
                answer.ok();
            }
        }
        assert_eq!(node.status().await.damaged, [""; 0], "{self:?}");
    }
}

/// After a kill or a client disconnect, acknowledged changes have happened, interrupted changes
/// have happened completely or not at all, and everything works, also after another restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_are_atomic_under_kills_and_client_disconnects() {
    const ROUNDS: usize = 60;
    let _alone = crate::alone().await;
    let seed = rand::rng().random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let component = function("hello");
    let mut node = TestNode::start().await;
    node.deploy_with("infer", "models=m", function("infer")).await;
    // Upper bounds for the duration of each change, adapted so that about half of the changes are
    // interrupted.
    let mut latest = [Duration::from_millis(300); Change::ALL.len()];
    let mut cut_off = 0;
    for round in 0..ROUNDS {
        let which = round % Change::ALL.len();
        let change = Change::ALL[which];
        let unseen = with_custom_section(&component, &format!("round-{round}"));
        change.set_up(&node, &unseen).await;
        let client = node.client().clone();
        let asked = unseen.clone();
        let mut asking = tokio::spawn(async move { change.ask(&client, asked).await });
        let cut = latest[which].mul_f64(random.random_range(0.0..1.0));
        let is_killed = random.random_bool(0.5);
        let early = tokio::time::timeout(cut, &mut asking).await.ok();
        let answered = if is_killed {
            let builder = node.kill().await;
            let late = match early {
                Some(early) => early.unwrap(),
                None => asking.await.unwrap(),
            };
            node = builder.start().await;
            late
        } else {
            asking.abort();
            early.is_some_and(|early| early.unwrap())
        };
        latest[which] = latest[which].mul_f64(if answered { 0.5 } else { 1.7 }).min(Duration::from_secs(10));
        cut_off += usize::from(!answered);
        let has_happened = change.has_happened(&node).await;
        assert!(has_happened || !answered, "round {round}: {change:?} was acknowledged and lost");
        change.check(&node).await;
        if !is_killed {
            // Memory and disk are consistent.
            let before = (node.functions().await, names(&node).await);
            node = node.kill().await.start().await;
            let after = (node.functions().await, names(&node).await);
            // A disconnected client's change may have completed in between; it is complete in both
            // cases.
            if change.has_happened(&node).await == has_happened {
                assert_eq!(after, before, "round {round}: {change:?}");
            }
            change.check(&node).await;
        }
    }
    println!("{ROUNDS} rounds, {cut_off} of them cut off");
    assert!(
        (ROUNDS / 6..ROUNDS).contains(&cut_off),
        "too few or too many changes were cut off: {cut_off} of {ROUNDS}"
    );
    node.delete("/v1/models/m").await;
    node.delete("/v1/functions/f").await;
    let node = node.stop().await.start().await;
    for (folder, kept) in [("models", 0), ("components", 1)] {
        let files = std::fs::read_dir(node.data().join(folder)).unwrap().count();
        assert_eq!(files, kept, "unused files remain in {folder}");
    }
}

async fn names(node: &TestNode) -> Vec<(String, ContentHash)> {
    let models = node.models().await;
    models.iter().map(|model| (model.active.name.to_string(), model.active.digest)).collect()
}
