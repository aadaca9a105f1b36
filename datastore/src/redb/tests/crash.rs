//! Durability after SIGKILL, with a real process and a real file.

use super::*;
use rand::Rng;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

const CHILD_PATH: &str = "WEIR_DATASTORE_CRASH_CHILD";

/// Helper process that the test kills. Writes pairs in a loop and prints the number of each
/// committed pair.
#[tokio::test]
#[ignore = "run by commits_survive_sigkill"]
async fn crash_child() {
    let Some(path) = std::env::var_os(CHILD_PATH) else { return };
    let store = RedbStore::open(PathBuf::from(path)).await.unwrap();
    let start = value(&store, "pair/left").await.map_or(0, |last| last.parse::<u64>().unwrap());
    for count in start + 1.. {
        let count = count.to_string();
        let pair =
            Transaction::new().put(key("pair/left"), count.clone()).put(key("pair/right"), count.clone());
        done(store.commit(pair).await.unwrap());
        println!("committed {count}");
    }
}

#[test]
fn commits_survive_sigkill() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut total = 0;
    for round in 0..12 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["redb::tests::crash::crash_child", "--exact", "--ignored", "--nocapture"])
            .env(CHILD_PATH, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let committed =
            |line: std::io::Result<String>| line.unwrap().strip_prefix("committed ")?.parse::<u64>().ok();
        let first = lines.by_ref().find_map(committed).expect("the child wrote nothing");
        std::thread::sleep(Duration::from_micros(rand::rng().random_range(0..30_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        let acknowledged = lines.filter_map(committed).last().unwrap_or(first);

        let (left, right) = runtime.block_on(async {
            let store = RedbStore::open(&path).await.unwrap();
            let pair =
                (value(&store, "pair/left").await.unwrap(), value(&store, "pair/right").await.unwrap());
            store.close().await;
            pair
        });
        assert_eq!(left, right, "half of a transaction survived");
        // One commit more than acknowledged may be on disk.
        let survived: u64 = left.parse().unwrap();
        assert!(
            survived == acknowledged || survived == acknowledged + 1,
            "round {round}: {acknowledged} were committed, {survived} survived"
        );
        assert!(survived > total, "round {round} made no progress");
        total = survived;
    }
}
