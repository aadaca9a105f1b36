//! A blob that can be read has the contents that were stored.

use super::*;
use futures::stream;
use std::fs::File;
use std::time::Duration;

fn body(pieces: &[&'static str]) -> impl Stream<Item = Result<Bytes, std::io::Error>> + Unpin {
    stream::iter(pieces.iter().map(|piece| Ok(Bytes::from_static(piece.as_bytes()))).collect::<Vec<_>>())
}

#[tokio::test]
async fn blob_is_named_by_its_hash_and_leftovers_are_swept() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = Blobs::open(folder.path().join("blobs"), None).unwrap();
    let staged = blobs.stage(body(&["he", "llo"]), 5).await.unwrap();
    assert_eq!(staged.digest, ContentHash::from_content(b"hello"));
    let path = blobs.path(staged.digest);
    let hold = blobs.keep(staged).await.unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"hello");
    blobs.sweep(HashSet::new).await.unwrap();
    assert!(path.exists(), "it is held");
    drop(hold);
    blobs.sweep(HashSet::new).await.unwrap();
    assert!(!path.exists());
    std::fs::write(folder.path().join("blobs/.staged-x"), b"half").unwrap();
    Blobs::open(folder.path().join("blobs"), None).unwrap();
    assert_eq!(std::fs::read_dir(folder.path().join("blobs")).unwrap().count(), 0);
}

#[tokio::test]
async fn first_sweep_sets_blobs_of_earlier_starts_aside() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Blobs::open(folder.path().join("blobs"), None).unwrap();
    let blobs = open();
    let [old, wanted] = ["old", "wanted"].map(|text| ContentHash::from_content(text.as_bytes()));
    for text in ["old", "wanted"] {
        drop(blobs.keep(blobs.stage(body(&[text]), 9).await.unwrap()).await.unwrap());
    }
    let blobs = open();
    drop(blobs.keep(blobs.stage(body(&["new"]), 9).await.unwrap()).await.unwrap());
    blobs.sweep(HashSet::new).await.unwrap();
    assert_eq!(std::fs::read_dir(blobs.folder()).unwrap().count(), 0);
    assert_eq!(
        std::fs::read_dir(folder.path().join("aside/blobs")).unwrap().count(),
        2,
        "without the new one"
    );
    // A record refers to it after all: a reader and a sweep bring blobs back.
    assert_eq!(std::fs::read(blobs.fetch(old).await.unwrap()).unwrap(), b"old");
    blobs.sweep(|| [wanted].into()).await.unwrap();
    assert_eq!(std::fs::read(blobs.path(wanted)).unwrap(), b"wanted");
    assert!(matches!(blobs.fetch(old).await, Err(BlobError::Missing(_))), "later sweeps remove");
}

#[tokio::test]
async fn blob_that_was_aside_for_the_grace_period_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Blobs::open(folder.path().join("blobs"), None).unwrap();
    let blobs = open();
    drop(blobs.keep(blobs.stage(body(&["old"]), 9).await.unwrap()).await.unwrap());
    open().sweep(HashSet::new).await.unwrap();
    let digest = ContentHash::from_content(b"old").to_string();
    let aside = folder.path().join("aside/blobs").join(digest);
    let set_hours_ago = |hours: u64| {
        let time = SystemTime::now() - Duration::from_secs(hours * 3_600);
        File::options().append(true).open(&aside).unwrap().set_modified(time).unwrap();
    };
    set_hours_ago(23);
    open().sweep(HashSet::new).await.unwrap();
    assert!(aside.exists());
    set_hours_ago(25);
    open().sweep(HashSet::new).await.unwrap();
    assert!(!aside.exists());
}

#[tokio::test]
async fn damaged_blob_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = Blobs::open(folder.path().to_owned(), None).unwrap();
    let path = blobs.path(ContentHash::from_content(b"hello"));
    for damaged in [None, Some("hell"), Some("jello")] {
        if let Some(damaged) = damaged {
            std::fs::write(&path, damaged).unwrap();
        }
        let _hold = blobs.keep(blobs.stage(body(&["hello"]), 5).await.unwrap()).await.unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"hello", "after {damaged:?}");
    }
}

/// The shared store, as other nodes would open it.
fn shared(folder: &Path, cache_bytes_max: u64) -> SharedBlobs {
    std::fs::create_dir_all(folder).unwrap();
    SharedBlobs::open(&format!("file://{}", folder.display()), cache_bytes_max).unwrap().folder("blobs")
}

#[tokio::test]
async fn fetched_blob_is_verified_and_evicted_least_recently_used_first() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let blobs = |name: &str, cache_bytes_max| {
        Blobs::open(folder.path().join(name), Some(shared(&store, cache_bytes_max))).unwrap()
    };
    let ours = blobs("ours", 100);
    let theirs = blobs("theirs", 10);
    let mut digests = Vec::new();
    for text in ["first", "other", "third"] {
        digests.push(ContentHash::from_content(text.as_bytes()));
        drop(ours.keep(ours.stage(body(&[text]), 5).await.unwrap()).await.unwrap());
    }
    let [first, other, third] = digests[..] else { unreachable!("there are three") };
    let (one, same) = tokio::join!(theirs.fetch(first), theirs.fetch(first));
    assert_eq!(std::fs::read(one.unwrap()).unwrap(), b"first");
    assert_eq!(same.unwrap(), theirs.path(first));
    // Room for two: the least recently requested one is evicted.
    let long_ago = SystemTime::now() - Duration::from_secs(3_600);
    File::options().append(true).open(theirs.path(first)).unwrap().set_modified(long_ago).unwrap();
    theirs.fetch(other).await.unwrap();
    theirs.fetch(first).await.unwrap();
    let before = SystemTime::now() - Duration::from_secs(60);
    File::options().append(true).open(theirs.path(other)).unwrap().set_modified(before).unwrap();
    theirs.fetch(third).await.unwrap();
    assert_eq!([first, other, third].map(|digest| theirs.path(digest).exists()), [true, false, true]);
    // A fetch returns the stored contents or fails.
    std::fs::write(store.join("blobs").join(other.to_string()), "order").unwrap();
    assert!(matches!(theirs.fetch(other).await, Err(BlobError::Damaged(_))));
    let missing = ContentHash::from_content(b"missing");
    assert!(matches!(theirs.fetch(missing).await, Err(BlobError::Missing(_))));
}

#[tokio::test]
async fn fetched_blobs_never_exceed_the_limit() {
    const BYTES_MAX: u64 = 160;
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let ours = Blobs::open(folder.path().join("ours"), Some(shared(&store, 10_000))).unwrap();
    let theirs = Blobs::open(folder.path().join("theirs"), Some(shared(&store, BYTES_MAX))).unwrap();
    for number in 0..60 {
        let text = format!("blob {number:>5}");
        let digest = ContentHash::from_content(text.as_bytes());
        let of = if number % 7 == 0 { &theirs } else { &ours };
        let content = Ok::<_, std::io::Error>(text.clone().into());
        let staged = of.stage(stream::iter([content]), 10).await.unwrap();
        drop(of.keep(staged).await.unwrap());
        assert_eq!(std::fs::read(theirs.fetch(digest).await.unwrap()).unwrap(), text.as_bytes());
        let files = std::fs::read_dir(theirs.folder()).unwrap();
        let bytes: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
        // Only a fetch trims the folder, so one uploaded blob may exceed the limit.
        assert!(bytes <= BYTES_MAX + 10, "{bytes} bytes after {number}");
    }
}

#[tokio::test]
async fn removed_shared_blob_is_missing_and_old_blobs_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let blobs = Blobs::open(folder.path().join("ours"), Some(shared(&store, 100))).unwrap();
    let [old, new] = ["old", "new"].map(|text| ContentHash::from_content(text.as_bytes()));
    for text in ["old", "new"] {
        drop(blobs.keep(blobs.stage(body(&[text]), 5).await.unwrap()).await.unwrap());
    }
    let hours = |hours: u64| SystemTime::now() - Duration::from_secs(hours * 3_600);
    let file = File::options().append(true).open(store.join("blobs").join(old.to_string())).unwrap();
    file.set_modified(hours(3)).unwrap();
    assert_eq!(blobs.shared_before(hours(2)).await.unwrap(), [old]);
    assert_eq!(blobs.shared_before(hours(4)).await.unwrap(), []);
    let missing = ContentHash::from_content(b"missing");
    blobs.remove_shared([old, missing]).await.unwrap();
    let theirs = Blobs::open(folder.path().join("theirs"), Some(shared(&store, 100))).unwrap();
    assert!(matches!(theirs.fetch(old).await, Err(BlobError::Missing(_))));
    theirs.fetch(new).await.unwrap();
}

#[tokio::test]
async fn oversized_upload_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = Blobs::open(folder.path().to_owned(), None).unwrap();
    assert!(matches!(blobs.stage(body(&["hello", "!"]), 5).await, Err(PutError::TooLarge { bytes_max: 5 })));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Regression test: a store in a folder created the folder again, for example in an empty mount point.
#[tokio::test]
async fn shared_folder_takes_nothing_without_its_marker() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("shared");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("identity"), "id\n").unwrap();
    let shared = SharedBlobs::open(&format!("file://{}", folder.display()), 1 << 20).unwrap();
    let shared = shared.with_marker(folder.clone(), "id".to_owned()).folder("components");
    let blobs = Blobs::open(parent.path().join("local"), Some(shared)).unwrap();
    let stage = async |text: &'static str| blobs.stage(body(&[text]), 100).await.unwrap();
    blobs.check_room(0).await.unwrap();
    let kept = stage("kept").await;
    let digest = kept.digest;
    drop(blobs.keep(kept).await.unwrap());
    let missing = |result: Result<(), BlobError>| {
        let error = result.unwrap_err();
        assert!(matches!(error, BlobError::OutOfReach(_)), "{error:?}");
        assert!(error.to_string().contains("mount the folder again"), "{error}");
    };
    let away = parent.path().join("away");
    std::fs::rename(&folder, &away).unwrap();
    for is_empty in [false, true] {
        if is_empty {
            std::fs::create_dir(&folder).unwrap();
        }
        missing(blobs.check_room(0).await);
        missing(blobs.keep(stage("other").await).await.map(drop));
        missing(blobs.remove_shared([digest]).await);
        missing(blobs.fetch(ContentHash::from_content(b"unknown")).await.map(drop));
        assert!(blobs.collect(&HashSet::new(), Duration::ZERO).await.is_err());
        assert_eq!(folder.exists(), is_empty, "the folder was created");
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    std::fs::write(folder.join("identity"), "of another store\n").unwrap();
    missing(blobs.check_room(0).await);
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::rename(&away, &folder).unwrap();
    drop(blobs.keep(stage("other").await).await.unwrap());
}
