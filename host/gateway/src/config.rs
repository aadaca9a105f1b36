//! Configuration of the gateway.

use serde::{Deserialize, Serialize};
use weir_oidc::OidcConfig;
use weir_tls::TlsConfig;

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
    /// Connections that wait in the kernel's accept queue. The kernel's own limit
    /// (`net.core.somaxconn`) applies too.
    pub accept_queue_len_max: u32,
    /// Open connections of one remote address (IPv6: one network of 64 bits); further connections
    /// are closed. A proxy on one address needs as many as it opens.
    pub connections_per_address_max: usize,
    /// TLS for clients: certificate, key, and limits of handshakes.
    pub tls: TlsConfig,
    /// Who may use the node, beside the clients with tokens.
    pub access: AccessConfig,
    /// Longest time that a client may take to send the head of a connection's first request.
    pub header_timeout_ms: u64,
    /// Longest time that a connection may stay open without a request, including the time to
    /// receive the head of the next request.
    pub idle_timeout_ms: u64,
    /// Time for which a node that shuts down still takes connections and calls. It is not ready in
    /// this time, so that load balancers stop sending requests. None: 5 s if the node listens beyond
    /// loopback, else 0.
    pub lame_duck_ms: Option<u64>,
    /// Time that requests in progress have to finish when the node shuts down.
    pub drain_timeout_ms: u64,
    /// Deploys and pushes in progress at once, including those that wait for compilation or
    /// validation. Further uploads are answered with 429.
    pub uploads_max: u32,
    /// Deploys and pushes of one tenant, out of `uploads_max`.
    pub tenant_uploads_max: u32,
    /// Longest time to receive a component, model or object.
    pub upload_timeout_ms: u64,
    /// Largest decompressed request body, and largest response, of a direct model inference. A
    /// tensor function has its own limits.
    pub infer_body_bytes_max: u64,
    /// Longest time of a direct model inference, from arrival to response. The request's `timeout`
    /// can only shorten it.
    pub infer_wall_ms_max: u64,
    /// Free space that the file system of the data folder keeps: requests that store anything are
    /// answered with 507 below it. The rest is for the registry and for results of accepted calls.
    pub disk_free_bytes_min: u64,
    /// Memory for the bodies and tensors of requests in progress.
    pub arena_bytes_max: u64,
    /// Memory of the response cache, for functions and models with a `cache_ttl_ms`. One response
    /// may take a sixteenth of it. 0: no caching.
    pub response_cache_bytes_max: u64,
    /// Memory of answers that clients have not taken yet, and the pace at which clients take them.
    pub answers: AnswersConfig,
    /// The lowest pace at which request bodies must arrive.
    pub arrival: ArrivalConfig,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            threads: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            connections_max: 10_000,
            accept_queue_len_max: 4_096,
            connections_per_address_max: 5_000,
            tls: TlsConfig::default(),
            access: AccessConfig::default(),
            header_timeout_ms: 30_000,
            idle_timeout_ms: 120_000,
            lame_duck_ms: None,
            drain_timeout_ms: 30_000,
            uploads_max: 64,
            tenant_uploads_max: 16,
            upload_timeout_ms: 600_000,
            infer_body_bytes_max: 64 * MIB,
            infer_wall_ms_max: 60_000,
            arena_bytes_max: 1024 * MIB,
            disk_free_bytes_min: 128 * MIB,
            response_cache_bytes_max: 64 * MIB,
            answers: AnswersConfig::default(),
            arrival: ArrivalConfig::default(),
        }
    }
}

/// Who may use the node, beside the clients with tokens of `token_file` and API keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AccessConfig {
    /// Web pages that may use a node on loopback without tokens.
    pub pages: PagesConfig,
    /// The OpenID Connect provider whose tokens the node accepts.
    pub oidc: OidcConfig,
}

/// Web pages that may use a node on loopback without tokens. Other nodes do not need this, because
/// pages have no token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PagesConfig {
    /// Host names of the node, in addition to `localhost` and loopback addresses. The node compares
    /// them with `Host`, and answers other names with 421.
    pub hosts: Vec<String>,
    /// Origins of pages that may send requests, such as `https://ui.example`; `*`: all. Pages that
    /// the node serves itself may always.
    pub origins: Vec<String>,
}

/// Answers on their way to clients: limits on their memory, and the slowest pace of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AnswersConfig {
    /// Bytes of answers that clients have not taken yet. Further calls are answered with 503.
    pub bytes_max: u64,
    /// Bytes of such answers of one tenant. Further calls are answered with 429.
    pub tenant_bytes_max: u64,
    /// Bytes of such answers of one connection. Further calls are answered with 429.
    pub connection_bytes_max: u64,
    /// Time for which an answer may wait for a client that takes too little of it.
    pub stall_ms: u64,
    /// Bytes per second that the client of a connection must take on average over `stall_ms` while
    /// answers wait for it. At least one byte in that time.
    pub bytes_per_s_min: u64,
}

impl Default for AnswersConfig {
    fn default() -> Self {
        Self {
            bytes_max: 512 * MIB,
            tenant_bytes_max: 256 * MIB,
            connection_bytes_max: 128 * MIB,
            stall_ms: 60_000,
            bytes_per_s_min: 1 << 10,
        }
    }
}

/// Request bodies that the gateway reads: the slowest pace of a client. Bodies that are streamed to
/// functions have the function's deadline instead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ArrivalConfig {
    /// Time that the gateway waits for a body of which too little arrives. The request is answered
    /// with 408, and its connection closed.
    pub stall_ms: u64,
    /// Bytes per second that must arrive on average over `stall_ms` of waiting. At least one byte in
    /// that time.
    pub bytes_per_s_min: u64,
}

impl Default for ArrivalConfig {
    fn default() -> Self {
        Self { stall_ms: 30_000, bytes_per_s_min: 512 }
    }
}
