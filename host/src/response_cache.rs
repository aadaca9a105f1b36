//! Answers of functions and models whose owners ask for it, kept for equal calls: what runs once is not run again for a while.
//!
//! What ends an answer's life: its time is up, others need the room, or the version that gave it is deleted. Equal calls that come while the
//! first of them runs wait for what it gives. If it fails, or gives what may not be kept, each of them runs; if its caller goes away, the next
//! of them runs in its place. The cache is this node's: other nodes of a cluster have their own.

mod flights;

use crate::telemetry::Metrics;
use crate::until::until;
use bytes::Bytes;
use flights::{Flights, Landed, Turn};
use http::{HeaderMap, StatusCode};
use moka::Expiry;
use moka::notification::RemovalCause;
use moka::sync::Cache;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use weir_inference::Tensor;
use weir_types::ContentHash;

/// One answer may take this part of the room: a few large ones do not turn out all others.
const ANSWER_SHARE: u64 = 16;
/// What an answer takes beside its bytes: its key, its place in the cache, and what it is made of.
const OVERHEAD_BYTES: u64 = 512;

/// The answers that are kept, of all tenants.
pub(crate) struct ResponseCache {
    answers: Cache<Key, Kept>,
    flights: Flights,
    /// The largest answer that is kept.
    answer_bytes_max: u64,
    next_scope: AtomicU64,
    metrics: Arc<Metrics>,
}

/// The answers of one version of a function, or of one push of a model: nobody else's, and gone with it.
pub(crate) struct Scope {
    id: u64,
    ttl: Duration,
    cache: Arc<ResponseCache>,
}

/// Which call an answer is to. The scope stands for the tenant, name and version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    scope: u64,
    input: ContentHash,
}

/// What is given to more than one caller. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Http(Arc<HttpAnswer>),
    Tensors(Arc<[(String, Tensor)]>),
}

/// A response, and all of its body.
#[derive(Debug)]
pub(crate) struct HttpAnswer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// An answer in its place.
#[derive(Debug, Clone)]
struct Kept {
    answer: Answer,
    made_at: Instant,
    ttl: Duration,
    bytes: u64,
}

/// What a caller says about answers that are not made for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    /// How old one may be; none for any age.
    pub(crate) age_max: Option<Duration>,
}

/// An answer that others may be given.
#[derive(Debug)]
pub(crate) struct Keep {
    pub(crate) answer: Answer,
    /// How long its maker lets it be kept, where that is said.
    pub(crate) ttl_max: Option<Duration>,
}

/// What a caller is given.
#[derive(Debug)]
pub(crate) enum Given<T> {
    /// An answer that was made for another, so long ago.
    Hit(Answer, Duration),
    /// What its own run gave.
    Ran(T),
}

impl ResponseCache {
    /// Room for `bytes_max` of answers; 0 keeps none.
    pub(crate) fn new(bytes_max: u64, metrics: &Arc<Metrics>) -> Arc<Self> {
        let removed = metrics.clone();
        let answers = Cache::builder()
            .max_capacity(bytes_max)
            .weigher(|_: &Key, kept: &Kept| u32::try_from(kept.bytes).unwrap_or(u32::MAX))
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

    /// The answers of whoever has `place`, if its owner wants some kept and there is any room.
    pub(crate) fn scope(
        self: &Arc<Self>,
        place: &OnceLock<Arc<Scope>>,
        ttl_ms: Option<u64>,
    ) -> Option<Arc<Scope>> {
        let ttl = Duration::from_millis(ttl_ms.filter(|_| self.answer_bytes_max > 0)?);
        let new = || {
            let id = self.next_scope.fetch_add(1, Ordering::Relaxed);
            Arc::new(Scope { id, ttl, cache: self.clone() })
        };
        Some(place.get_or_init(new).clone())
    }

    /// What is kept now: how many answers, and the bytes that they take.
    pub(crate) fn size(&self) -> (u64, u64) {
        self.answers.run_pending_tasks();
        (self.answers.entry_count(), self.answers.weighted_size())
    }

    fn keep(&self, key: Key, ttl: Duration, keep: Keep) -> Option<Kept> {
        let bytes = keep.answer.bytes().saturating_add(OVERHEAD_BYTES);
        let ttl = keep.ttl_max.map_or(ttl, |max| max.min(ttl));
        if bytes > self.answer_bytes_max || ttl.is_zero() {
            return None;
        }
        let kept = Kept { answer: keep.answer, made_at: Instant::now(), ttl, bytes };
        self.answers.insert(key, kept.clone());
        // At once: what is put off is not counted against the bound.
        self.answers.run_pending_tasks();
        Some(kept)
    }
}

impl Scope {
    /// The largest body, or tensors together, that can be kept.
    pub(crate) fn answer_bytes_max(&self) -> u64 {
        self.cache.answer_bytes_max.saturating_sub(OVERHEAD_BYTES)
    }

    /// The answer to a call with this `input`: one that is kept, one that an equal call under way is about to get, or what `run` gives. None
    /// if the deadline passes in the wait for another call.
    pub(crate) async fn answer<T, E>(
        &self,
        input: ContentHash,
        wish: Wish,
        deadline: Instant,
        run: impl AsyncFnOnce() -> Result<(T, Option<Keep>), E>,
    ) -> Result<Option<Given<T>>, E> {
        let (cache, key) = (&self.cache, Key { scope: self.id, input });
        let mut lead = None;
        loop {
            if let Some(hit) = self.find(key, wish) {
                return Ok(Some(hit));
            }
            // Whoever wants a newer answer than there is does not wait for one that may be older.
            if lead.is_some() || wish.age_max.is_some() {
                break;
            }
            let mut landing = match cache.flights.join(key) {
                Turn::Lead(turn) => {
                    // Once more: an answer may have been kept since the look before.
                    lead = Some(turn);
                    continue;
                }
                Turn::Follow(landing) => landing,
            };
            match until(deadline, landing.landed()).await {
                None => return Ok(None),
                Some(Some(Landed::Kept(kept))) => return Ok(Some(self.hit(kept))),
                Some(Some(Landed::NotKept)) => break,
                // Its caller went away.
                Some(None) => {}
            }
        }
        cache.metrics.response_cache.misses.inc();
        let ran = run().await;
        let (given, kept) = match ran {
            Ok((own, keep)) => {
                (Ok(Some(Given::Ran(own))), keep.and_then(|keep| cache.keep(key, self.ttl, keep)))
            }
            Err(error) => (Err(error), None),
        };
        if let Some(lead) = lead {
            lead.land(kept);
        }
        given
    }

    fn find<T>(&self, key: Key, wish: Wish) -> Option<Given<T>> {
        let kept = self.cache.answers.get(&key)?;
        let is_young =
            wish.age_max.is_none_or(|age_max| kept.made_at.elapsed() <= age_max && !age_max.is_zero());
        is_young.then(|| self.hit(kept))
    }

    fn hit<T>(&self, kept: Kept) -> Given<T> {
        self.cache.metrics.response_cache.hits.inc();
        Given::Hit(kept.answer, kept.made_at.elapsed())
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        let id = self.id;
        // Fails only where the cache was not made for it.
        let _ = self.cache.answers.invalidate_entries_if(move |key, _| key.scope == id);
    }
}

impl Answer {
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

/// Each answer has a time to live of its own.
struct EachItsOwn;

impl Expiry<Key, Kept> for EachItsOwn {
    fn expire_after_create(&self, _: &Key, kept: &Kept, _: Instant) -> Option<Duration> {
        Some(kept.ttl)
    }

    fn expire_after_update(&self, _: &Key, kept: &Kept, _: Instant, _: Option<Duration>) -> Option<Duration> {
        Some(kept.ttl)
    }
}

#[cfg(test)]
mod tests;
