//! The cache, its pins and its threads, over a backend that the test controls step by step.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot be set up has failed"
)]

mod scripted;

use scripted::{BACKBONE_BYTES, Fixture, LoadBehaviour, RunBehaviour, begin, pushed_again, source, within};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Instant;
use weir_inference::{InferenceError, RunRequest};

#[tokio::test]
async fn concurrent_acquires_share_one_load_even_if_the_first_gives_up() {
    let stage = Fixture::new(1, 10);
    let model = source("model", 10);
    let mut first = Box::pin(stage.acquire(&model, &[]));
    let second = stage.acquire(&model, &[]);
    let third = stage.acquire(&model, &[]);
    let mut second = pin!(second);
    let mut third = pin!(third);
    begin(&mut first.as_mut()).await;
    begin(&mut second).await;
    begin(&mut third).await;
    drop(first);
    stage.loads.send(LoadBehaviour::Works).unwrap();
    let (second, third) = within(async { tokio::join!(second, third) }).await;
    let second = second.unwrap();
    let third = third.unwrap();
    assert!(second.load_time().is_some() && third.load_time().is_some());
    assert_eq!((stage.loaded(), stage.cache.resident()[0].pins), (1, 2), "who gave up pins nothing");
    assert!(stage.acquire(&model, &[]).await.unwrap().load_time().is_none());
}

#[tokio::test]
async fn failed_load_fails_all_waiters_and_is_retried_by_next_acquire() {
    let stage = Fixture::new(1, 10);
    let model = source("model", 10);
    for load in [LoadBehaviour::Fails, LoadBehaviour::Panics] {
        let first = stage.acquire(&model, &[]);
        let second = stage.acquire(&model, &[]);
        let mut first = pin!(first);
        let mut second = pin!(second);
        begin(&mut first).await;
        begin(&mut second).await;
        stage.loads.send(load).unwrap();
        for outcome in [first.await, second.await] {
            assert!(matches!(outcome, Err(InferenceError::Load { .. })), "{outcome:?}");
        }
        assert_eq!(stage.cache.used_bytes(), 0);
    }
    stage.load(&model, &[]).await;
    assert_eq!(stage.resident(), ["model"]);
}

#[tokio::test]
async fn unpinned_victims_are_evicted_only_if_that_makes_room() {
    let stage = Fixture::new(1, 10);
    let small = source("small", 30);
    let large = source("large", 60);
    let huge = source("huge", 90);
    let pinned = stage.load(&small, &[]).await;
    drop(stage.load(&large, &[]).await);
    let victims = [small.id().clone(), large.id().clone(), large.id().clone()];

    let error = stage.acquire(&huge, &victims).await.unwrap_err();
    assert!(
        matches!(error, InferenceError::NoRoom { needed_bytes: 90, free_bytes: 70, capacity_bytes: 100, .. }),
        "{error:?}"
    );
    assert_eq!(stage.resident(), ["small", "large"], "nobody had to go for nothing");
    let error = stage.acquire(&huge, &[]).await.unwrap_err();
    assert!(matches!(error, InferenceError::NoRoom { free_bytes: 10, .. }), "{error:?}");

    drop(pinned);
    drop(stage.load(&huge, &victims).await);
    assert_eq!(
        (stage.resident(), stage.loaded(), stage.cache.used_bytes()),
        (vec!["huge".to_owned()], 1, 90)
    );
    // A resident model evicts no other model.
    drop(stage.acquire(&huge, std::slice::from_ref(huge.id())).await.unwrap());
    assert_eq!(stage.resident(), ["huge"]);
}

#[tokio::test]
async fn victims_are_evicted_in_order_and_no_more_than_needed() {
    let stage = Fixture::new(1, 10);
    let [a, b, c] = ["a", "b", "c"].map(|name| source(name, 30));
    for model in [&a, &b, &c] {
        drop(stage.load(model, &[]).await);
    }
    let may_go = [&b, &c, &a].map(|model| model.id().clone());
    drop(stage.load(&source("d", 10), &may_go).await);
    assert_eq!(stage.resident(), ["a", "b", "c", "d"], "there was room");
    drop(stage.load(&source("e", 20), &may_go).await);
    assert_eq!(stage.resident(), ["a", "c", "d", "e"]);
    drop(stage.load(&source("f", 60), &may_go).await);
    assert_eq!((stage.resident(), stage.loaded()), (["d", "e", "f"].map(str::to_owned).to_vec(), 3));
}

#[tokio::test]
async fn shared_parts_count_once_against_capacity() {
    let stage = Fixture::new(1, 10);
    let variants: Vec<_> = (0..9).map(|i| source(&format!("x-{i}"), BACKBONE_BYTES + 10)).collect();
    // Room for three of them if each had a separate backbone.
    for variant in &variants[..8] {
        drop(stage.load(variant, &[]).await);
    }
    assert_eq!((stage.loaded(), stage.cache.used_bytes()), (8, 100));
    let full = stage.acquire(&variants[8], &[]).await.unwrap_err();
    assert!(matches!(full, InferenceError::NoRoom { needed_bytes: 10, free_bytes: 0, .. }), "{full:?}");
    // One variant is evicted with its own part; the backbone stays for the others.
    drop(stage.load(&variants[8], &[variants[0].id().clone(), variants[1].id().clone()]).await);
    assert_eq!((stage.loaded(), stage.cache.used_bytes()), (8, 100));
    // Another model needs more than the variants' own parts: the last variant takes the backbone
    // with it.
    let may_go: Vec<_> = variants.iter().map(|variant| variant.id().clone()).collect();
    drop(stage.load(&source("other", 75), &may_go).await);
    assert_eq!((stage.loaded(), stage.cache.used_bytes()), (1, 75));
    let unload = stage.cache.unload(&source("other", 75).key).unwrap();
    within(unload).await;
    assert_eq!(stage.cache.used_bytes(), 0);
}

#[tokio::test]
async fn resident_models_are_listed_least_recently_used_first() {
    let stage = Fixture::new(1, 10);
    let [a, b, c] = ["a", "b", "c"].map(|name| source(name, 10));
    for model in [&a, &b, &c] {
        drop(stage.load(model, &[]).await);
    }
    assert_eq!(stage.resident(), ["a", "b", "c"]);
    drop(stage.acquire(&a, &[]).await.unwrap());
    assert!(stage.cache.pin(&b.key).is_some());
    assert_eq!(stage.resident(), ["c", "a", "b"]);
    assert!(stage.cache.pin(&source("d", 10).key).is_none());
}

#[tokio::test]
async fn unload_waits_for_pins_and_acquire_waits_for_unload() {
    let stage = Fixture::new(1, 10);
    let model = source("model", 80);
    let pin = stage.load(&model, &[]).await;
    let unload = stage.cache.unload(&model.key).unwrap();
    let again = stage.acquire(&model, &[]);
    let mut unload = pin!(unload);
    let mut again = pin!(again);
    begin(&mut unload).await;
    begin(&mut again).await;
    assert_eq!((stage.loaded(), stage.cache.used_bytes()), (1, 80));
    assert!(pin.run(RunRequest::default()).await.is_ok(), "who has it may go on");
    stage.loads.send(LoadBehaviour::Works).unwrap();
    drop(pin);
    let ((), again) = within(async { tokio::join!(unload, again) }).await;
    assert!(again.unwrap().load_time().is_some());
    assert_eq!((stage.loaded(), stage.cache.used_bytes()), (1, 80));
    assert!(stage.cache.unload(&source("other", 1).key).is_none());
}

#[tokio::test]
async fn model_unloaded_while_loading_is_freed_with_its_waiters() {
    let stage = Fixture::new(1, 10);
    let model = source("model", 80);
    let acquire = stage.acquire(&model, &[]);
    let mut acquire = pin!(acquire);
    begin(&mut acquire).await;
    let unload = stage.cache.unload(&model.key).unwrap();
    let mut unload = pin!(unload);
    stage.loads.send(LoadBehaviour::Works).unwrap();
    let pin = within(acquire).await.unwrap();
    begin(&mut unload).await;
    assert_eq!(stage.resident(), [""; 0], "nobody else gets it");
    drop(pin);
    within(unload).await;
    assert_eq!((stage.loaded(), stage.cache.used_bytes()), (0, 0));

    // Without a waiting caller, the model is freed at once.
    let mut acquire = Box::pin(stage.acquire(&model, &[]));
    begin(&mut acquire.as_mut()).await;
    drop(acquire);
    let unload = stage.cache.unload(&model.key).unwrap();
    stage.loads.send(LoadBehaviour::Works).unwrap();
    within(unload).await;
    assert_eq!((stage.loaded(), stage.cache.used_bytes()), (0, 0));
}

/// Otherwise the profile of a deleted model would stay until the node ends.
#[tokio::test]
async fn model_forgotten_during_its_load_has_no_profile() {
    let stage = Fixture::new(1, 10);
    let model = source("model", 80);
    let mut acquire = Box::pin(stage.acquire(&model, &[]));
    begin(&mut acquire.as_mut()).await;
    let unload = stage.cache.unload(&model.key).unwrap();
    stage.cache.profiles().forget(&model.key);
    stage.loads.send(LoadBehaviour::Works).unwrap();
    drop(within(acquire).await.unwrap());
    within(unload).await;
    assert!(stage.cache.profiles().get(&model.key).load_time_ns.is_empty());
    assert_eq!(stage.cache.profiles().take_changed(), []);

    drop(stage.load(&model, &[]).await);
    assert_eq!(stage.cache.profiles().get(&model.key).load_time_ns["disk"].count, 1);
}

#[tokio::test]
async fn repushed_id_is_a_different_model() {
    let stage = Fixture::new(1, 10);
    let old = source("model", 30);
    let new = pushed_again(&old);
    let old_pin = stage.load(&old, &[]).await;
    let gone = stage.cache.unload(&old.key).unwrap();
    // The new model does not wait for users of the old one.
    let new_pin = stage.load(&new, &[]).await;
    assert_eq!((old_pin.key(), new_pin.key()), (&old.key, &new.key));
    assert_eq!((stage.loaded(), stage.cache.used_bytes()), (2, 60));
    assert!(stage.cache.pin(&old.key).is_none() && stage.cache.is_resident(&new.key));
    drop(old_pin);
    within(gone).await;
    assert_eq!((stage.resident(), stage.cache.used_bytes()), (vec!["model".to_owned()], 30));
    assert_eq!(
        stage.cache.profiles().get(&new.key).load_time_ns["disk"].count,
        1,
        "the old one's cost is its own"
    );
}

#[tokio::test]
async fn urgent_runs_go_first_and_full_queue_refuses() {
    let stage = Fixture::new(1, 2);
    let pin = stage.load(&source("model", 10), &[]).await;
    stage.runs(RunBehaviour::WaitsToBeStopped);
    let busy = pin.run(RunRequest::default());
    while stage.began.lock().is_empty() {
        tokio::task::yield_now().await;
    }
    stage.runs(RunBehaviour::Ends);
    let wanting = |output: &str, priority| {
        pin.run(RunRequest { outputs: Some(vec![output.to_owned()]), priority, ..RunRequest::default() })
    };
    let later = wanting("first", 0);
    let urgent = wanting("second", 1);
    assert_eq!(stage.cache.queue_len(), 2);
    let error = wanting("first", 1).await.unwrap_err();
    assert!(matches!(error, InferenceError::QueueFull { len_max: 2 }), "{error:?}");
    // A withdrawn run frees its place in the queue, and loses it.
    drop(later);
    let later = wanting("first", 0);
    drop(busy);
    let (later, urgent) = within(async { tokio::join!(later, urgent) }).await;
    assert_eq!((&later.unwrap().outputs[0].0[..], &urgent.unwrap().outputs[0].0[..]), ("first", "second"));
    assert_eq!(*stage.began.lock(), [0, 1, 0]);
}

#[tokio::test]
async fn a_run_past_its_deadline_is_not_started() {
    let stage = Fixture::new(1, 10);
    let pin = stage.load(&source("model", 10), &[]).await;
    let deadline = Some(Instant::now());
    let error = pin.run(RunRequest { deadline, ..RunRequest::default() }).await.unwrap_err();
    assert!(matches!(error, InferenceError::DeadlineExceeded), "{error:?}");
    assert!(stage.began.lock().is_empty());
}

#[tokio::test]
async fn panic_in_a_run_fails_only_that_run() {
    let stage = Fixture::new(1, 10);
    let pin = stage.load(&source("model", 10), &[]).await;
    stage.runs(RunBehaviour::Panics);
    let error = within(pin.run(RunRequest::default())).await.unwrap_err();
    assert!(matches!(error, InferenceError::Run(_)), "{error:?}");
    stage.runs(RunBehaviour::Ends);
    assert!(within(pin.run(RunRequest::default())).await.is_ok());
}

#[tokio::test]
async fn dropping_cache_stops_running_and_answers_waiting_runs() {
    let stage = Fixture::new(1, 10);
    let pin = stage.load(&source("model", 10), &[]).await;
    stage.runs(RunBehaviour::WaitsToBeStopped);
    let running = pin.run(RunRequest::default());
    while stage.began.lock().is_empty() {
        tokio::task::yield_now().await;
    }
    let waiting = pin.run(RunRequest::default());
    let loaded = stage.loaded.clone();
    drop(stage);
    for outcome in
        [within(running).await, within(waiting).await, within(pin.run(RunRequest::default())).await]
    {
        assert!(matches!(outcome, Err(InferenceError::Unavailable(_))), "{outcome:?}");
    }
    drop(pin);
    assert_eq!(loaded.load(Ordering::SeqCst), 0, "the model goes with its last pin");
}

#[tokio::test]
async fn cloned_pin_keeps_model_resident() {
    let stage = Fixture::new(1, 10);
    let model = source("model", 60);
    let pin = stage.load(&model, &[]).await;
    let clone = pin.clone();
    drop(pin);
    let other = source("other", 60);
    let error = stage.acquire(&other, std::slice::from_ref(model.id())).await.unwrap_err();
    assert!(matches!(error, InferenceError::NoRoom { .. }), "{error:?}");
    drop(clone);
    stage.load(&other, std::slice::from_ref(model.id())).await;
    assert_eq!(stage.resident(), ["other"]);
}

#[tokio::test]
async fn end_of_the_last_pin_is_announced() {
    let stage = Fixture::new(1, 10);
    let model = source("model", 60);
    let pin = stage.load(&model, &[]).await;
    let clone = pin.clone();
    let models = [model.id().clone()];
    let mut unpinned = std::pin::pin!(stage.cache.unpinned());
    unpinned.as_mut().enable();
    drop(pin);
    assert!(stage.cache.is_any_pinned(&models) && !stage.cache.is_any_pinned(&[]));
    assert!(futures::poll!(unpinned.as_mut()).is_pending(), "a pin is left");
    drop(clone);
    assert!(!stage.cache.is_any_pinned(&models));
    within(unpinned).await;
}
