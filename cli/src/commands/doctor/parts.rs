//! Checks of Weir's parts: configuration, library, data folder, toolchain and node.

use super::{Finding, steps};
use crate::client::Client;
use crate::error::{Exit, exit_of};
use crate::output::{OutputSettings, size};
use crate::settings::ConfigFile;
use std::path::{Path, PathBuf};
use weir_device::Arena;
use weir_host::{DevicesConfig, NodeConfig};
use weir_onnx::{LibraryError, OnnxRuntime as Backend, OnnxRuntimeConfig};
use weir_provision::{OnnxRuntimeRelease, Toolchain};
use weir_types::api::Status;

/// Memory for model runs. The doctor runs no models.
const RUN_BYTES_MAX: u64 = 1 << 20;
/// Free space below which a warning is reported: deployments may not fit.
const FREE_BYTES_MIN: u64 = 1 << 30;

pub(super) fn configuration(file: Option<&ConfigFile>) -> Finding {
    const CHECK: &str = "configuration";
    match file {
        Some(file) => Finding::ok(CHECK, file.path.display().to_string()),
        None => Finding::ok(CHECK, "no weir.toml here or above: defaults"),
    }
}

/// Checks ONNX Runtime, and fetches it with `fix`.
pub(super) fn onnxruntime(given: Option<&Path>, fix: bool, output: OutputSettings) -> Finding {
    const CHECK: &str = "onnxruntime";
    let why = match look(given) {
        Ok(found) => return Finding::ok(CHECK, found),
        Err(why) => why,
    };
    let brought = |path: PathBuf| match look(Some(&path)) {
        Ok(found) => Finding::ok(CHECK, format!("{found}, fetched now")),
        Err(why) => Finding::missing(CHECK, why, "report this bug: the fetched library does not load"),
    };
    if given.is_some() {
        // The node would not use a fetched library.
        return Finding::missing(
            CHECK,
            why,
            "correct or remove --onnxruntime, WEIR_ONNXRUNTIME, or `onnxruntime` in [node.models] of weir.toml",
        );
    }
    if !fix {
        return Finding::missing(
            CHECK,
            why,
            "`weir doctor --fix` fetches it; a node runs no models without it",
        );
    }
    output.note("fetching ONNX Runtime");
    let fetched = OnnxRuntimeRelease::for_this_machine()
        .and_then(|release| release.fetch(&library_folder(), &mut steps(output)));
    match fetched {
        Ok(path) => brought(path),
        Err(error) => Finding::missing(CHECK, format!("{why}\n{error}"), error.hint()),
    }
}

/// Checks that a node without devices has a cluster, whose other nodes run its calls.
pub(super) fn devices(node: &NodeConfig) -> Finding {
    const CHECK: &str = "devices";
    match (&node.devices, &node.cluster) {
        (DevicesConfig::Auto, _) => Finding::ok(CHECK, "the CPU and all GPUs (devices = \"auto\")"),
        (DevicesConfig::List(devices), _) => {
            let names: Vec<_> = devices.iter().map(|device| device.device.to_string()).collect();
            Finding::ok(CHECK, names.join(", "))
        }
        (DevicesConfig::None, Some(_)) => {
            Finding::ok(CHECK, "none: the node accepts calls, and other nodes of its cluster run them")
        }
        (DevicesConfig::None, None) => Finding::missing(
            CHECK,
            "none, and no cluster whose nodes run the calls: the node does not start",
            "leave devices out, or name a cluster with --datastore and --blobs",
        ),
    }
}

/// Lists the GPUs that can run models.
#[cfg(feature = "cuda")]
pub(super) fn gpu() -> Finding {
    use weir_device::cuda::{Devices, Search};
    const CHECK: &str = "gpu";
    match Devices::discover(&Search::from_environment()) {
        Ok(devices) => {
            let names = devices.infos().iter().map(|info| format!("cuda:{} {}", info.ordinal, info.name));
            let driver = format!("driver for CUDA {}", devices.driver_version());
            let found: Vec<_> = names.chain([driver]).collect();
            Finding::ok(CHECK, format!("{}; `weir doctor --gpu` checks what they compute", found.join(", ")))
        }
        // Not a warning: models run on the CPU.
        Err(unavailable) => Finding::ok(CHECK, format!("none, models run on the CPU: {unavailable}")),
    }
}

#[cfg(not(feature = "cuda"))]
pub(super) fn gpu() -> Finding {
    Finding::ok("gpu", "none: this weir was built without GPUs")
}

/// Layers of confinement for worker processes.
pub(super) fn confinement() -> Finding {
    const CHECK: &str = "confinement";
    match weir_host::missing_layers() {
        Ok(missing) if missing.is_empty() => Finding::ok(CHECK, "every layer is available"),
        Ok(missing) => {
            let missing: Vec<_> = missing.iter().map(ToString::to_string).collect();
            Finding::warning(
                CHECK,
                format!("worker processes lack {}", missing.join("; ")),
                "allow user namespaces, and use a kernel with Landlock and seccomp",
            )
        }
        Err(error) => Finding::warning(CHECK, format!("unknown: {error}"), "run it again"),
    }
}

fn look(given: Option<&Path>) -> Result<String, String> {
    let config = OnnxRuntimeConfig {
        library: given.map(Path::to_owned),
        run_memory_bytes_max: RUN_BYTES_MAX,
        prepare_command: None,
        prepare_memory_bytes_max: RUN_BYTES_MAX,
        prepare_cpu_ms_max: 0,
        operators_allowed: Vec::new(),
        workers: None,
    };
    // Loads the library and checks its version, as a node does.
    match Backend::new(config, Arena::new(RUN_BYTES_MAX)).library() {
        Ok(library) => Ok(library.display().to_string()),
        // The error's own text refers to `weir doctor`.
        Err(LibraryError::NotFound { places }) => Err(format!("not found; looked for in {places}")),
        Err(error) => Err(error.to_string()),
    }
}

/// Folder for the fetched library of this user. It is one of the search paths.
fn library_folder() -> PathBuf {
    std::env::home_dir().unwrap_or_default().join(".local/share/weir/lib")
}

/// Checks that a node can store its data in `folder`.
pub(super) fn data_folder(folder: &Path) -> Finding {
    const CHECK: &str = "data folder";
    let shown = folder.display();
    // A node creates the folder, so check its nearest existing ancestor.
    let Some(existing) = folder.ancestors().find(|folder| folder.is_dir()).or(Some(Path::new("."))) else {
        return Finding::missing(CHECK, format!("{shown}: no such path"), "name another with --data");
    };
    let existing = if existing.as_os_str().is_empty() { Path::new(".") } else { existing };
    if let Err(error) = tempfile::tempfile_in(existing) {
        return Finding::missing(
            CHECK,
            format!("{shown} is not writable: {error}"),
            "name another with --data, or in [node]",
        );
    }
    let free =
        rustix::fs::statvfs(existing).map_or(u64::MAX, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
    if free < FREE_BYTES_MIN {
        return Finding::warning(CHECK, format!("{shown}, {} free", size(free)), "free some space there");
    }
    Finding::ok(CHECK, format!("{shown}, {} free", size(free)))
}

/// Checks the Rust toolchain for functions.
pub(super) fn toolchain(fix: bool, output: OutputSettings) -> Finding {
    const CHECK: &str = "Rust for wasm";
    let folder = Path::new(".");
    let found = match Toolchain::find(folder) {
        Err(_) if fix => Toolchain::find_or_install(folder, &mut steps(output)),
        found => found,
    };
    match found {
        Ok(toolchain) => Finding::ok(CHECK, toolchain.to_string()),
        Err(error) => Finding::warning(
            CHECK,
            error.to_string(),
            format!("{}; needed only to build functions in Rust", error.hint()),
        ),
    }
}

/// Checks that a node answers.
pub(super) fn node(client: &Client) -> Finding {
    const CHECK: &str = "node";
    match client.get::<Status>("/v1/status", "read the node's status") {
        Ok(status) if status.version != env!("CARGO_PKG_VERSION") => Finding::warning(
            CHECK,
            format!("{}: {}, version {}", client.url(), status.state, status.version),
            format!("this program is version {}", env!("CARGO_PKG_VERSION")),
        ),
        Ok(status) => Finding::ok(CHECK, format!("{}: {}", client.url(), status.state)),
        Err(error) => {
            let help = match exit_of(&error) {
                Exit::Refused => "a node is there: give its token with --token-from FILE or in WEIR_TOKEN",
                _ => "`weir up` starts one; --url and WEIR_URL say where one is",
            };
            Finding::warning(CHECK, format!("{error:#}"), help)
        }
    }
}
