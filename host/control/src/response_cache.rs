//! Response cache of functions and models whose owners enable it: an equal call gets the stored
//! response instead of another run.
//!
//! A response is removed when its time to live ends, when others need the room, or when its version
//! is deleted. Concurrent equal calls are coalesced: the first call runs, and the others wait for
//! its response. If the first call fails, or if its response may not be cached, each waiting call
//! runs. If the caller of the first call disconnects, the next waiting call runs in its place. The
//! cache is local to this node; other nodes of a cluster have their own.

mod flights;

use bytes::Bytes;
use flights::{FlightRole, Flights, Landed};
use http::{HeaderMap, StatusCode};
use moka::Expiry;
use moka::notification::RemovalCause;
use moka::sync::Cache;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use weir_call::until;
use weir_inference::Tensor;
use weir_telemetry::Metrics;
use weir_types::ContentHash;

/// The largest response that is cached, as a divisor of the cache size. The limit keeps a few large
/// responses from evicting all others.
const ANSWER_SHARE: u64 = 16;
/// Overhead of a response: its key, its cache entry and its structs.
const OVERHEAD_BYTES: u64 = 512;

/// Response cache of all tenants.
pub struct ResponseCache {
    answers: Cache<CacheKey, StoredResponse>,
    flights: Flights,
    /// Size limit of a cached response.
    answer_bytes_max: u64,
    next_scope: AtomicU64,
    metrics: Arc<Metrics>,
}

/// Responses of one version of a function, or of one push of a model. Each version and push has its
/// own scope, and the responses are removed with it.
pub struct Scope {
    id: u64,
    ttl: Duration,
    cache: Arc<ResponseCache>,
}

/// Cache key of a call. The scope stands for the tenant, name and version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct CacheKey {
    scope: u64,
    input: ContentHash,
}

/// Response for more than one caller. Cheap to clone.
#[derive(Debug, Clone)]
pub enum SharedResponse {
    /// The response of an HTTP function.
    Http(Arc<HttpAnswer>),
    /// The named outputs of a tensor function or model.
    Tensors(Arc<[(String, Tensor)]>),
}

/// A response with its whole body.
#[derive(Debug)]
pub struct HttpAnswer {
    /// The response status.
    pub status: StatusCode,
    /// The response headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

/// A cached response.
#[derive(Debug, Clone)]
struct StoredResponse {
    answer: SharedResponse,
    made_at: Instant,
    ttl: Duration,
    bytes: u64,
}

/// Requirements of a caller on cached responses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wish {
    /// Maximum age of a response; none for any age.
    pub age_max: Option<Duration>,
}

/// A response that may be cached.
#[derive(Debug)]
pub struct Keep {
    /// The response to cache.
    pub answer: SharedResponse,
    /// Longest time to live that the producer of the response allows, if set.
    pub ttl_max: Option<Duration>,
}

/// Result for a caller.
#[derive(Debug)]
pub enum CachedResult<T> {
    /// Response made for another call, and its age.
    Hit(SharedResponse, Duration),
    /// Result of the caller's own run.
    Ran(T),
}

impl ResponseCache {
    /// Creates a cache of `bytes_max` bytes; 0 disables it.
    pub fn new(bytes_max: u64, metrics: &Arc<Metrics>) -> Arc<Self> {
        let removed = metrics.clone();
        let answers = Cache::builder()
            .max_capacity(bytes_max)
            .weigher(|_: &CacheKey, kept: &StoredResponse| u32::try_from(kept.bytes).unwrap_or(u32::MAX))
            .expire_after(EachItsOwn)
            .eviction_listener(move |_, _, cause| match cause {
                RemovalCause::Size => _ = removed.response_cache.evicted.inc(),
                RemovalCause::Expired => _ = removed.response_cache.expired.inc(),
                RemovalCause::Explicit | RemovalCause::Replaced => {}
            })
            .support_invalidation_closures()
            .build();
        Arc::new(Self {
            answers,
            flights: Flights::default(),
            answer_bytes_max: bytes_max / ANSWER_SHARE,
            next_scope: AtomicU64::new(0),
            metrics: metrics.clone(),
        })
    }

    /// Returns the scope of the responses of one version or push. The first call creates it and
    /// stores it in `place`. None if `ttl_ms` is `None`, or if the cache is disabled.
    pub fn scope(self: &Arc<Self>, place: &OnceLock<Arc<Scope>>, ttl_ms: Option<u64>) -> Option<Arc<Scope>> {
        let ttl = Duration::from_millis(ttl_ms.filter(|_| self.answer_bytes_max > 0)?);
        let new = || {
            let id = self.next_scope.fetch_add(1, Ordering::Relaxed);
            Arc::new(Scope { id, ttl, cache: self.clone() })
        };
        Some(place.get_or_init(new).clone())
    }

    /// Returns the number of cached responses, and their bytes.
    pub fn size(&self) -> (u64, u64) {
        self.answers.run_pending_tasks();
        (self.answers.entry_count(), self.answers.weighted_size())
    }

    fn keep(&self, key: CacheKey, ttl: Duration, keep: Keep) -> Option<StoredResponse> {
        let bytes = keep.answer.bytes().saturating_add(OVERHEAD_BYTES);
        let ttl = keep.ttl_max.map_or(ttl, |max| max.min(ttl));
        if bytes > self.answer_bytes_max || ttl.is_zero() {
            return None;
        }
        let kept = StoredResponse { answer: keep.answer, made_at: Instant::now(), ttl, bytes };
        self.answers.insert(key, kept.clone());
        // Runs the pending tasks now: moka enforces the size limit only in them.
        self.answers.run_pending_tasks();
        Some(kept)
    }
}

impl Scope {
    /// Size limit of a cacheable body, or of all tensors of a response together.
    pub fn answer_bytes_max(&self) -> u64 {
        self.cache.answer_bytes_max.saturating_sub(OVERHEAD_BYTES)
    }

    /// Answers a call with this `input` from the cache, from an equal call in progress, or from
    /// `run`. Returns none if the deadline passes while the call waits for another.
    pub async fn answer<T, E>(
        &self,
        input: ContentHash,
        wish: Wish,
        deadline: Instant,
        run: impl AsyncFnOnce() -> Result<(T, Option<Keep>), E>,
    ) -> Result<Option<CachedResult<T>>, E> {
        let cache = &self.cache;
        let key = CacheKey { scope: self.id, input };
        let mut lead = None;
        loop {
            if let Some(hit) = self.find(key, wish) {
                return Ok(Some(hit));
            }
            // A caller that limits the age does not wait for a response that may be older.
            if lead.is_some() || wish.age_max.is_some() {
                break;
            }
            let mut landing = match cache.flights.join(key) {
                FlightRole::Lead(turn) => {
                    // Look again: a response may have been cached since the last look.
                    lead = Some(turn);
                    continue;
                }
                FlightRole::Follow(landing) => landing,
            };
            match until(deadline, landing.landed()).await {
                None => return Ok(None),
                Some(Some(Landed::Kept(kept))) => return Ok(Some(self.hit(kept))),
                Some(Some(Landed::NotKept)) => break,
                // The caller of the leading call disconnected.
                Some(None) => {}
            }
        }
        cache.metrics.response_cache.misses.inc();
        let ran = run().await;
        let (given, kept) = match ran {
            Ok((own, keep)) => {
                (Ok(Some(CachedResult::Ran(own))), keep.and_then(|keep| cache.keep(key, self.ttl, keep)))
            }
            Err(error) => (Err(error), None),
        };
        if let Some(lead) = lead {
            lead.land(kept);
        }
        given
    }

    fn find<T>(&self, key: CacheKey, wish: Wish) -> Option<CachedResult<T>> {
        let kept = self.cache.answers.get(&key)?;
        let is_young =
            wish.age_max.is_none_or(|age_max| kept.made_at.elapsed() <= age_max && !age_max.is_zero());
        is_young.then(|| self.hit(kept))
    }

    fn hit<T>(&self, kept: StoredResponse) -> CachedResult<T> {
        self.cache.metrics.response_cache.hits.inc();
        CachedResult::Hit(kept.answer, kept.made_at.elapsed())
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        let id = self.id;
        // Fails only for a cache without `support_invalidation_closures`.
        let _ = self.cache.answers.invalidate_entries_if(move |key, _| key.scope == id);
    }
}

impl SharedResponse {
    fn bytes(&self) -> u64 {
        let bytes: usize = match self {
            Self::Http(answer) => {
                let headers = answer.headers.iter().map(|(name, value)| name.as_str().len() + value.len());
                headers.sum::<usize>() + answer.body.len()
            }
            Self::Tensors(tensors) => {
                tensors.iter().map(|(name, tensor)| name.len() + tensor.data().len()).sum()
            }
        };
        bytes as u64
    }
}

/// Expiry policy with a separate time to live for each response.
struct EachItsOwn;

impl Expiry<CacheKey, StoredResponse> for EachItsOwn {
    fn expire_after_create(&self, _: &CacheKey, kept: &StoredResponse, _: Instant) -> Option<Duration> {
        Some(kept.ttl)
    }

    fn expire_after_update(
        &self,
        _: &CacheKey,
        kept: &StoredResponse,
        _: Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        Some(kept.ttl)
    }
}

#[cfg(test)]
mod tests;
