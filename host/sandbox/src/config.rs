//! Configuration of the sandbox.

use crate::Engines;
use anyhow::anyhow;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use weir_image::ImageLimits;
use weir_types::{Limits, Reuse};

const MIB: u64 = 1 << 20;

/// The sandbox: threads of guests, instances, compilation of components, and the caps of manifests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxConfig {
    /// Threads that run guests.
    pub threads: usize,
    /// Live instances at once, over all functions.
    pub instances_max: u32,
    /// Idle instances, out of `instances_max`, kept for another call of functions whose manifests
    /// set `reuse`. 0: each call gets a new instance.
    pub instances_idle_max: u32,
    /// Linear memory of all guests together, idle instances included. None: half of the memory that
    /// the node may use.
    pub guest_memory_bytes_max: Option<u64>,
    /// Largest component that can be deployed.
    pub component_bytes_max: u64,
    /// Versions of a function that are kept. A deploy removes the oldest ones above it that are
    /// neither active nor in use. 0: all versions are kept.
    pub versions_keep: usize,
    /// Components compiled at once for deploys, and as many again for calls whose component must be
    /// recompiled.
    pub compiles_max: u32,
    /// Memory limit of the process that compiles a component.
    pub compile_memory_bytes_max: u64,
    /// CPU time limit of the process that compiles a component.
    pub compile_cpu_ms_max: u64,
    /// Cache of machine code, by function of a component.
    pub compile_cache: CompileCacheConfig,
    /// Decoding of images for guests.
    pub images: ImagesConfig,
    /// WebSockets of functions: their number, their messages, and their silent clients.
    pub websockets: WebSocketConfig,
    /// Secrets of functions: the keys that encrypt them.
    pub secrets: SecretsConfig,
    /// Highest limits that a manifest may request.
    pub limit_caps: Limits,
    /// Highest instance reuse that a manifest may request.
    pub reuse_caps: Reuse,
}

impl Default for SandboxConfig {
    fn default() -> Self {
        Self {
            threads: cores(),
            instances_max: 1_000,
            instances_idle_max: 100,
            guest_memory_bytes_max: None,
            component_bytes_max: 128 * MIB,
            versions_keep: 10,
            compiles_max: 2,
            compile_memory_bytes_max: 2048 * MIB,
            compile_cpu_ms_max: 120_000,
            compile_cache: CompileCacheConfig::default(),
            images: ImagesConfig::default(),
            websockets: WebSocketConfig::default(),
            secrets: SecretsConfig::default(),
            limit_caps: Limits::default_caps(),
            reuse_caps: Reuse::default_caps(),
        }
    }
}

/// WebSockets of functions. The time for which a WebSocket may be open is a limit of its function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WebSocketConfig {
    /// Open WebSockets that clients have opened on this node. Further handshakes are answered with
    /// 429. 0: no WebSockets.
    pub open_max: u32,
    /// Open WebSockets of one tenant, out of `open_max`.
    pub tenant_open_max: u32,
    /// Largest message, in either direction. A client that sends a larger one is disconnected with
    /// code 1009, and a function with 1011.
    pub message_bytes_max: u32,
    /// Silence of a client after which the node sends a ping.
    pub ping_ms: u64,
    /// Silence of a client after which the node closes the connection. It is longer than `ping_ms`,
    /// so that the answer to a ping can arrive.
    pub idle_ms: u64,
    /// Time for the closing handshake, and time that the function then has to end.
    pub close_ms: u64,
}

impl Default for WebSocketConfig {
    fn default() -> Self {
        Self {
            open_max: 4_096,
            tenant_open_max: 1_024,
            message_bytes_max: 1 << 20,
            ping_ms: 20_000,
            idle_ms: 60_000,
            close_ms: 5_000,
        }
    }
}

/// A cache of machine code, so that a changed component is compiled only where it changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CompileCacheConfig {
    /// Whether components are compiled with the cache. None: only on a node without a token file
    /// and a cluster, on a loopback address. Other nodes cannot use it, because tenants would share
    /// machine code.
    pub enabled: Option<bool>,
    /// Folder of the cache, which several nodes of one user may share. None: `compile-cache` in the
    /// data folder.
    pub folder: Option<PathBuf>,
    /// Largest cache. The functions that were compiled least recently are removed first.
    pub bytes_max: u64,
}

impl Default for CompileCacheConfig {
    fn default() -> Self {
        Self { enabled: None, folder: None, bytes_max: 64 * MIB }
    }
}

/// Decoding of images for guests (`weir:inference/image`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ImagesConfig {
    /// Largest encoded image.
    pub encoded_bytes_max: u64,
    /// Most pixels of an image, as encoded and as a tensor. Checked before memory is allocated.
    pub pixels_max: u64,
    /// Images decoded at once. Tenants take turns.
    pub decodes_max: usize,
    /// Images of one tenant that wait for a turn. Further calls fail.
    pub tenant_waiting_max: usize,
    /// Longest time to decode one image. The deadline of the call applies too.
    pub decode_wall_ms_max: u64,
}

impl Default for ImagesConfig {
    fn default() -> Self {
        let limits = ImageLimits::default();
        Self {
            encoded_bytes_max: limits.encoded_bytes_max,
            pixels_max: limits.pixels_max,
            decodes_max: cores(),
            tenant_waiting_max: 1_024,
            decode_wall_ms_max: 10_000,
        }
    }
}

/// Master keys of secrets. See docs/guides/secrets.md.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SecretsConfig {
    /// File of master keys, one per line: the first encrypts secrets, and all decrypt them. All
    /// nodes of a cluster need the same keys. None: `secrets.key` in the data folder, which the node
    /// makes for its first secret; a node of a cluster then stores no secrets.
    pub key_file: Option<PathBuf>,
    /// Program and arguments that print the lines of a key file, for example by a request to a key
    /// management service, in place of a file. The node runs it when it starts, for at most 30 s.
    pub key_command: Vec<String>,
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

impl SandboxConfig {
    /// The limit of the linear memory of all guests together.
    #[must_use]
    pub fn guest_memory_bytes_max(&self) -> u64 {
        self.guest_memory_bytes_max.unwrap_or_else(|| weir_child::usable_memory_bytes() / 2)
    }

    /// Reserves the address space of `instances_max` instances.
    ///
    /// # Errors
    /// If the address space is too small.
    pub fn engines(&self) -> anyhow::Result<Engines> {
        let slots = self.instances_max;
        Engines::new(slots, &self.limit_caps).map_err(|error| {
            anyhow!("cannot reserve {slots} instance slots: {error:#}; lower sandbox.instances_max")
        })
    }

    /// The limits of the process that compiles a component.
    #[must_use]
    pub fn compile_limits(&self) -> weir_child::Limits {
        weir_child::Limits {
            memory_bytes_max: self.compile_memory_bytes_max,
            cpu_ms_max: self.compile_cpu_ms_max,
        }
    }
}
