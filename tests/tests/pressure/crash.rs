//! `kill -9` while something is deployed, at random instants.

use rand::{Rng, SeedableRng, rngs::StdRng};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use weir_tests::{Node, function, with_custom_section};
use weir_types::{ContentHash, Version};

const KILLS: usize = 50;

/// Every deploy that was answered is there afterwards, the one that was cut off is there in full or not at all, and everything that is
/// listed can be called.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_deployed_survives_fifty_kills_and_nothing_is_half_visible() {
    let _alone = crate::alone().await;
    let seed = rand::rng().random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let component = function("hello");
    let mut node = Node::start().await;
    node.deploy("warm-up", with_custom_section(&component, "warm-up")).await;
    // When the kill comes, at the latest, for deploys that compile and for those that need not. Follows what deploys take, so that about half
    // of them are answered and the kills fall into every part of them.
    let mut latest = [Duration::from_millis(500), Duration::from_millis(50)];

    // By version: the digest and the mark in the manifest.
    let mut answered: BTreeMap<Version, (ContentHash, String)> = BTreeMap::new();
    let (mut cut_off, mut survived_cut) = (0, 0);
    for kill in 0..KILLS {
        let mark = format!("kill-{kill}");
        // Every second is a component that was never seen, and has to be compiled.
        let unseen = with_custom_section(&component, if kill % 2 == 0 { &mark } else { "same" });
        let digest = ContentHash::of(&unseen);
        let client = node.client().clone();
        let query = format!("env.MARK={mark}");
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
            // The commit was on disk before the kill, the answer was not on its way.
            assert!(answer.is_none(), "kill {kill}");
            survived_cut += 1;
            answered.insert(*unheard, (digest, mark.clone()));
        } else {
            assert_eq!(unheard, [], "kill {kill}");
        }
        for (version, (digest, mark)) in &answered {
            let version = node.function_version("f", *version).await;
            assert_eq!((version.digest, &version.manifest.env["MARK"]), (*digest, mark), "kill {kill}");
        }
        assert_eq!(shown.active.version, *answered.keys().next_back().unwrap(), "kill {kill}");
        assert_eq!(node.get("/fn/f/x").await.ok().text(), "hello, x\n", "kill {kill}");
        assert_eq!(
            node.metric("weir_cold_starts_total", "cause=\"compile\"").await,
            0.0,
            "kill {kill}: it compiled again"
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
    // Scraps of what was cut off do not pile up.
    let node = node.stop().await.start().await;
    let components = std::fs::read_dir(node.data().join("components")).unwrap().count();
    let digests: std::collections::BTreeSet<_> = answered.values().map(|(digest, _)| digest).collect();
    assert!(components <= digests.len() + 2, "{components} files for {} components", digests.len() + 1);
}
