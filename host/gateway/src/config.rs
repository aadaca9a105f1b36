//! Configuration of the gateway.

use serde::{Deserialize, Serialize};

const MIB: u64 = 1 << 20;

/// The gateway: its threads, connections, uploads, direct inferences, and the memory that requests
/// share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatewayConfig {
    /// Threads that serve connections; each connection stays on one thread. A guest uses such a
    /// thread for at most one epoch tick.
    pub threads: usize,
    /// Open connections at once; further connections wait in the kernel's accept queue.
    pub connections_max: usize,
    /// Open connections of one remote address (IPv6: one network of 64 bits); further connections
    /// are closed. A proxy on one address needs as many as it opens.
    pub connections_per_address_max: usize,
    /// Host names of the node, in addition to `localhost` and loopback addresses. Only a node on
    /// loopback without tokens compares them with `Host`; other names are answered with 421.
    pub hosts: Vec<String>,
    /// Origins of web pages that may send requests to a node on loopback without tokens, such as
    /// `https://ui.example`; `*`: all. Pages that the node serves itself may always.
    pub origins: Vec<String>,
    /// Longest time that a client may take to send the head of a connection's first request.
    pub header_timeout_ms: u64,
    /// Longest time that a connection may stay open without a request, including the time to
    /// receive the head of the next request.
    pub idle_timeout_ms: u64,
    /// Time that requests in progress have to finish when the node shuts down.
    pub drain_timeout_ms: u64,
    /// Deploys and pushes in progress at once, including those that wait for compilation or
    /// validation. Further uploads are answered with 429.
    pub uploads_max: u32,
    /// Longest time to receive a component, model or object.
    pub upload_timeout_ms: u64,
    /// Largest decompressed request body, and largest response, of a direct model inference. A
    /// tensor function has its own limits.
    pub infer_body_bytes_max: u64,
    /// Longest time of a direct model inference, from arrival to response. The request's `timeout`
    /// can only shorten it.
    pub infer_wall_ms_max: u64,
    /// Memory for the bodies and tensors of requests in progress.
    pub arena_bytes_max: u64,
    /// Memory of the response cache, for functions and models with a `cache_ttl_ms`. One response
    /// may take a sixteenth of it. 0: no caching.
    pub response_cache_bytes_max: u64,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            threads: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            connections_max: 10_000,
            connections_per_address_max: 5_000,
            hosts: Vec::new(),
            origins: Vec::new(),
            header_timeout_ms: 30_000,
            idle_timeout_ms: 120_000,
            drain_timeout_ms: 30_000,
            uploads_max: 64,
            upload_timeout_ms: 600_000,
            infer_body_bytes_max: 64 * MIB,
            infer_wall_ms_max: 60_000,
            arena_bytes_max: 1024 * MIB,
            response_cache_bytes_max: 64 * MIB,
        }
    }
}
