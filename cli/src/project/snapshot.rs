//! Pre-initialisation of components: the initialisation code runs once, at build time, and every
//! instance starts from the resulting memory.

mod adapter;
mod host;
mod memory;
mod stubs;

use crate::error::Problem;
use anyhow::Result;
use host::SnapshotHost;
use memory::InstrumentedInstance;
use wasmtime::component::Component;
use wasmtime::component::types::ComponentItem;
use wasmtime::error::Context as _;
use wasmtime::{Config, Engine, Store};
use wasmtime_wizer::Wizer;

/// Default name of the initialisation export, as in the Wizer tools.
pub(super) const INIT_DEFAULT: &str = "wizer-initialize";

/// Pre-initialised component.
pub(super) struct Snapshot {
    pub(super) wasm: Vec<u8>,
    /// Warnings about values that the snapshot freezes, such as random numbers.
    pub(super) warnings: Vec<String>,
}

/// Reason for a failed pre-initialisation.
enum SnapshotFailure {
    /// No valid initialisation export.
    NoStart(&'static str),
    Failed(wasmtime::Error),
}

impl From<wasmtime::Error> for SnapshotFailure {
    fn from(error: wasmtime::Error) -> Self {
        Self::Failed(error)
    }
}

/// Runs the export `init` of the component `wasm` and returns a component with the resulting
/// memory.
pub(super) fn take(wasm: &[u8], init: &str) -> Result<Snapshot> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(wasm, init)).map_err(|failure| {
        let problem = Problem::new("cannot pre-initialise the component");
        let problem = match failure {
            SnapshotFailure::NoStart(what) => {
                problem.because(anyhow::anyhow!("the component's `{init}` {what}")).hint(format!(
                    "export `{init}: func();` from the component's world, or name another export as `snapshot_init` in weir.toml"
                ))
            }
            SnapshotFailure::Failed(error) => problem
                .because(anyhow::anyhow!("{error:#}"))
                .hint("the start-up code may use clocks, random numbers and standard output, and no model, network or file"),
        };
        problem.into()
    })
}

async fn run(wasm: &[u8], init: &str) -> Result<Snapshot, SnapshotFailure> {
    let mut config = Config::new();
    // Results must equal those of an instance on a node.
    config.relaxed_simd_deterministic(true).wasm_component_model_async(true);
    let engine = Engine::new(&config)?;
    let mut linker = host::linker(&engine)?;
    let mut wizer = Wizer::new();
    // Keep the export: without its core function, the component's lift would refer to a missing
    // function. A node offers no way to call it.
    wizer.init_func(init).keep_init_func(true);
    let (context, instrumented) = wizer.instrument_component(wasm)?;
    let component = Component::new(&engine, &instrumented)?;
    let start = match component.get_export(None, init) {
        None => return Err(SnapshotFailure::NoStart("is not there")),
        Some((ComponentItem::ComponentFunc(function), index))
            if function.params().len() == 0 && function.results().len() == 0 =>
        {
            index
        }
        Some(_) => return Err(SnapshotFailure::NoStart("is not a function without parameters and results")),
    };
    stubs::define(&mut linker, &component)?;
    let mut store = Store::new(&engine, SnapshotHost::new());
    let instance = linker.instantiate_async(&mut store, &component).await?;
    let start = instance.get_func(&mut store, start).ok_or(SnapshotFailure::NoStart("is not there"))?;
    start.call_async(&mut store, &[], &mut []).await.context("the initialization function trapped")?;
    let mut memory = InstrumentedInstance::new(&mut store, instance);
    let snapshot = wizer.snapshot_component(&context, &mut memory).await?;
    memory.outcome()?;
    let restored = adapter::restore(wasm, &snapshot).map_err(wasmtime::Error::from)?;
    let warnings = store.data_mut().warnings(restored.is_some());
    Ok(Snapshot { wasm: restored.unwrap_or(snapshot), warnings })
}

#[cfg(test)]
mod tests {
    use super::*;
    use wasmtime::component::Linker;

    /// A component whose initialisation writes 42 and calls `import`, and whose `get` reads the
    /// value.
    fn component(interface: &str, import: &str, result: &str) -> Vec<u8> {
        let text = format!(
            r#"(component
                (import "{interface}" (instance $other (export "{import}" (func {result}))))
                (core module $memory (memory (export "memory") 1))
                (core instance $memory (instantiate $memory))
                (core func $import (canon lower (func $other "{import}") (memory (core memory $memory "memory"))))
                (core module $code
                    (import "m" "memory" (memory 1))
                    (import "m" "import" (func $import (param i32)))
                    (func (export "wizer-initialize") (i32.store (i32.const 8) (i32.const 42)) (call $import (i32.const 64)))
                    (func (export "get") (result i32) (i32.load (i32.const 8))))
                (core instance $code (instantiate $code (with "m" (instance
                    (export "memory" (memory $memory "memory")) (export "import" (func $import))))))
                (func (export "wizer-initialize") (canon lift (core func $code "wizer-initialize")))
                (func (export "get") (result u32) (canon lift (core func $code "get"))))"#
        );
        wat::parse_str(text).unwrap()
    }

    #[test]
    fn instances_start_from_the_snapshot_and_frozen_randomness_is_reported() {
        let wasm = component("wasi:random/insecure-seed@0.2.0", "insecure-seed", "(result (tuple u64 u64))");
        let snapshot = take(&wasm, INIT_DEFAULT).unwrap();
        assert_eq!(snapshot.warnings.len(), 1, "{:?}", snapshot.warnings);
        assert!(snapshot.warnings[0].contains("random numbers"));

        let engine = Engine::default();
        let component = Component::new(&engine, &snapshot.wasm).unwrap();
        let mut linker = Linker::<()>::new(&engine);
        linker.define_unknown_imports_as_traps(&component).unwrap();
        let mut store = Store::new(&engine, ());
        let instance = linker.instantiate(&mut store, &component).unwrap();
        let get = instance.get_typed_func::<(), (u32,)>(&mut store, "get").unwrap();
        assert_eq!(get.call(&mut store, ()).unwrap(), (42,));
    }

    #[test]
    fn initialisation_cannot_use_models() {
        let wasm = component("weir:inference/models@0.1.0", "names", "(result (tuple u64 u64))");
        let error = format!("{:#}", take(&wasm, INIT_DEFAULT).map(drop).unwrap_err());
        assert!(error.contains("weir:inference/models@0.1.0#names can be called only"), "{error}");
    }

    #[test]
    fn initialisation_cannot_use_the_network() {
        let interface = "wasi:sockets/instance-network@0.2.6";
        let wasm = component(interface, "instance-network", "(result (tuple u64 u64))");
        let error = format!("{:#}", take(&wasm, INIT_DEFAULT).map(drop).unwrap_err());
        assert!(error.contains(&format!("{interface}#instance-network can be called only")), "{error}");
    }

    #[test]
    fn unused_imports_do_not_prevent_a_snapshot() {
        let wasm = wat::parse_str(
            r#"(component
                (import "wasi:http/client@0.3.0" (instance (export "send" (func async (result u32)))))
                (core module $code (memory (export "memory") 1) (func (export "wizer-initialize")))
                (core instance $code (instantiate $code))
                (func (export "wizer-initialize") (canon lift (core func $code "wizer-initialize"))))"#,
        );
        let snapshot = take(&wasm.unwrap(), INIT_DEFAULT).unwrap();
        assert_eq!(snapshot.warnings, Vec::<String>::new());
    }

    #[test]
    fn missing_initialisation_export_is_named() {
        let wasm = wat::parse_str("(component)").unwrap();
        let error = take(&wasm, "warm-up").map(drop).unwrap_err();
        assert!(format!("{error:#}").contains("warm-up"), "{error:#}");
    }
}
