use super::*;
use futures::FutureExt;
use std::cell::Cell;
use std::convert::Infallible;
use tokio::sync::oneshot;

const MINUTE: Duration = Duration::from_secs(60);

fn cache(bytes_max: u64) -> Arc<ResponseCache> {
    ResponseCache::new(bytes_max, &Metrics::new())
}

fn scope(cache: &Arc<ResponseCache>) -> Arc<Scope> {
    cache.scope(&OnceLock::new(), Some(60_000)).unwrap()
}

fn input(number: u64) -> ContentHash {
    ContentHash::from_content(&number.to_le_bytes())
}

fn soon() -> Instant {
    Instant::now() + MINUTE
}

fn answer(bytes: usize) -> Keep {
    let status = StatusCode::OK;
    let headers = HeaderMap::new();
    let body = vec![7; bytes].into();
    Keep { answer: SharedResponse::Http(Arc::new(HttpAnswer { status, headers, body })), ttl_max: None }
}

/// Makes a call, and returns whether the call ran.
async fn call(scope: &Scope, number: u64, wish: Wish, keep: Option<Keep>) -> bool {
    let run = async || Ok::<_, Infallible>(((), keep));
    matches!(scope.answer(input(number), wish, soon(), run).await, Ok(Some(CachedResult::Ran(()))))
}

#[tokio::test]
async fn equal_call_hits_within_its_scope_only() {
    let cache = cache(1 << 20);
    let ours = scope(&cache);
    let theirs = scope(&cache);
    assert!(call(&ours, 1, Wish::default(), Some(answer(10))).await);
    assert!(!call(&ours, 1, Wish::default(), Some(answer(10))).await);
    assert!(call(&ours, 2, Wish::default(), None).await);
    assert!(call(&ours, 2, Wish::default(), None).await, "what may not be kept was");
    assert!(call(&theirs, 1, Wish::default(), Some(answer(10))).await);
    // The responses of a version are removed with its scope.
    assert_eq!(cache.size().0, 2);
    drop(ours);
    assert_eq!(cache.size().0, 1);
    assert!(!call(&theirs, 1, Wish::default(), None).await);
}

#[tokio::test]
async fn zero_age_limit_refreshes_the_cached_response() {
    let cache = cache(1 << 20);
    let scope = scope(&cache);
    let no_cache = Wish { age_max: Some(Duration::ZERO) };
    assert!(call(&scope, 1, Wish::default(), Some(answer(10))).await);
    assert!(call(&scope, 1, no_cache, Some(answer(20))).await);
    assert!(!call(&scope, 1, Wish { age_max: Some(MINUTE) }, None).await);
    let run = async || Ok::<((), _), Infallible>(((), None));
    let given = scope.answer(input(1), Wish::default(), soon(), run).await.unwrap();
    let Some(CachedResult::Hit(SharedResponse::Http(answer), _)) = given else { panic!("{given:?}") };
    assert_eq!(answer.body.len(), 20);
}

#[tokio::test]
async fn cache_respects_size_limits_and_ttl() {
    let cache = cache(64 << 10);
    let scope = scope(&cache);
    assert!(call(&scope, 0, Wish::default(), Some(answer(5 << 10))).await);
    assert!(call(&scope, 0, Wish::default(), None).await, "it is more than its share");
    for number in 0..1_000 {
        call(&scope, number, Wish::default(), Some(answer(2 << 10))).await;
        assert!(cache.size().1 <= 64 << 10, "{:?}", cache.size());
    }
    assert!(cache.size().0 > 10 && cache.metrics.response_cache.evicted.get() > 900);
    let brief = Keep { ttl_max: Some(Duration::ZERO), ..answer(1) };
    assert!(call(&scope, 5_000, Wish::default(), Some(brief)).await);
    assert!(call(&scope, 5_000, Wish::default(), None).await);
    assert!(self::cache(0).scope(&OnceLock::new(), Some(1)).is_none());
    assert!(cache.scope(&OnceLock::new(), None).is_none());
}

#[tokio::test]
async fn concurrent_equal_calls_run_once_and_survive_a_dropped_leader() {
    let cache = cache(1 << 20);
    let scope = scope(&cache);
    let runs = Cell::new(0);
    let (go, gone) = oneshot::channel();
    let gone = gone.shared();
    let call = || {
        let run = async || {
            runs.set(runs.get() + 1);
            gone.clone().await.unwrap();
            Ok::<_, Infallible>(((), Some(answer(1))))
        };
        Box::pin(scope.answer(input(1), Wish::default(), soon(), run))
    };
    let mut first = call();
    let mut others: Vec<_> = (0..9).map(|_| call()).collect();
    assert!(futures::poll!(&mut first).is_pending());
    for other in &mut others {
        assert!(futures::poll!(other).is_pending());
    }
    assert_eq!(runs.get(), 1);
    drop(first);
    go.send(()).unwrap();
    let given = futures::future::join_all(others).await;
    assert_eq!(runs.get(), 2);
    assert_eq!(given.iter().filter(|given| matches!(given, Ok(Some(CachedResult::Hit(..))))).count(), 8);
}

#[tokio::test]
async fn followers_run_after_the_leader_fails_and_respect_deadlines() {
    let cache = cache(1 << 20);
    let scope = scope(&cache);
    let (go, gone) = oneshot::channel::<()>();
    let failing = async || {
        gone.await.unwrap();
        Err::<((), Option<Keep>), _>("it failed")
    };
    let running = async || Ok::<_, &str>(((), None));
    let mut first = Box::pin(scope.answer(input(1), Wish::default(), soon(), failing));
    let mut second = Box::pin(scope.answer(input(1), Wish::default(), soon(), running));
    assert!(futures::poll!(&mut first).is_pending());
    assert!(futures::poll!(&mut second).is_pending());
    let late = scope.answer(input(1), Wish::default(), Instant::now(), running).await;
    assert!(matches!(late, Ok(None)));
    go.send(()).unwrap();
    assert_eq!(first.await.unwrap_err(), "it failed");
    assert!(matches!(second.await, Ok(Some(CachedResult::Ran(())))));
    assert!(cache.flights.is_empty());
}
