//! Pre-initialising a component: its start-up code runs once, here, and every instance begins with the memory it left.

use crate::error::Problem;
use anyhow::Result;
use wasmtime::component::{HasData, Linker, ResourceTable};
use wasmtime::{Config, Engine, Store};
use wasmtime_wasi::cli::{WasiCli, WasiCliView as _};
use wasmtime_wasi::clocks::{WasiClocks, WasiClocksView as _};
use wasmtime_wasi::p2::bindings as p2;
use wasmtime_wasi::random::WasiRandom;
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};
use wasmtime_wizer::Wizer;

/// The export that is called unless the project names another; the name that the Wizer tools use.
pub(super) const INIT_DEFAULT: &str = "wizer-initialize";

/// A pre-initialised component.
pub(super) struct Snapshot {
    pub(super) wasm: Vec<u8>,
    /// What the start-up code did that a snapshot freezes.
    pub(super) warnings: Vec<String>,
}

/// Run the export `init` of the component `wasm` and keep what it leaves in memory.
pub(super) fn take(wasm: &[u8], init: &str) -> Result<Snapshot> {
    let failed = |error: wasmtime::Error| {
        let text = format!("{error:#}");
        let problem =
            Problem::new("cannot pre-initialise the component").because(anyhow::anyhow!(text.clone()));
        if text.contains("does export the function") || text.contains("not a function") {
            return problem.hint(format!(
                "export `{init}: func();` from the component's world, or name another export as `snapshot_init` in weir.toml"
            ));
        }
        problem.hint("the start-up code may use clocks, random numbers and standard output, and no model, network or file")
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(wasm, init)).map_err(|error| failed(error).into())
}

async fn run(wasm: &[u8], init: &str) -> wasmtime::Result<Snapshot> {
    let mut config = Config::new();
    // What is computed here must be what an instance would have computed.
    config.relaxed_simd_deterministic(true).wasm_component_model_async(true);
    let engine = Engine::new(&config)?;
    let linker = linker(&engine)?;
    let mut store = Store::new(&engine, Host::new());
    let mut wizer = Wizer::new();
    wizer.init_func(init);
    let instantiate = async |store: &mut Store<Host>, component: &wasmtime::component::Component| {
        let mut linker = linker.clone();
        linker.define_unknown_imports_as_traps(component)?;
        linker.instantiate_async(store, component).await
    };
    let (wasm, _) = wizer.run_component(&mut store, wasm, instantiate).await?;
    Ok(Snapshot { wasm, warnings: store.data().warnings() })
}

/// What the start-up code can reach, and whether it did.
struct Host {
    ctx: WasiCtx,
    table: ResourceTable,
    used: Used,
}

#[derive(Default)]
struct Used {
    random: bool,
    clock: bool,
    environment: bool,
}

impl Host {
    fn new() -> Self {
        // What it prints is for the author to see.
        let ctx = WasiCtx::builder().inherit_stderr().build();
        Self { ctx, table: ResourceTable::new(), used: Used::default() }
    }

    fn warnings(&self) -> Vec<String> {
        let Used { random, clock, environment } = self.used;
        let all = [
            (
                random,
                "it drew random numbers, which are now the same in every instance: make no secrets, ids or hash keys of them",
            ),
            (clock, "it read the clock, and every instance will remember that time"),
            (environment, "it read the environment, which was empty: instances will not look again"),
            (
                !self.table.is_empty(),
                "it kept a handle (a stream, a file, a pollable), which no instance will have: let go of it before the end",
            ),
        ];
        all.into_iter().filter(|(applies, _)| *applies).map(|(_, warning)| warning.to_owned()).collect()
    }
}

impl WasiView for Host {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.ctx, table: &mut self.table }
    }
}

/// All of WASI 0.2 and 0.3, with a note of the uses that a snapshot freezes.
fn linker(engine: &Engine) -> wasmtime::Result<Linker<Host>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    wasmtime_wasi::p3::add_to_linker(&mut linker)?;
    linker.allow_shadowing(true);
    let l = &mut linker;
    p2::random::random::add_to_linker::<_, WasiRandom>(l, random)?;
    p2::random::insecure::add_to_linker::<_, WasiRandom>(l, random)?;
    p2::random::insecure_seed::add_to_linker::<_, WasiRandom>(l, random)?;
    p2::clocks::wall_clock::add_to_linker::<_, WasiClocks>(l, clocks)?;
    p2::cli::environment::add_to_linker::<_, WasiCli>(l, cli)?;
    {
        use wasmtime_wasi::p3::bindings as p3;
        p3::random::random::add_to_linker::<_, WasiRandom>(l, random)?;
        p3::random::insecure::add_to_linker::<_, WasiRandom>(l, random)?;
        p3::random::insecure_seed::add_to_linker::<_, WasiRandom>(l, random)?;
        p3::clocks::system_clock::add_to_linker::<_, WasiClocks>(l, clocks)?;
        p3::cli::environment::add_to_linker::<_, WasiCli>(l, cli)?;
    }
    Ok(linker)
}

// Each is called once for every call of the guest's.

fn random(host: &mut Host) -> <WasiRandom as HasData>::Data<'_> {
    host.used.random = true;
    host.ctx.random()
}

fn clocks(host: &mut Host) -> <WasiClocks as HasData>::Data<'_> {
    host.used.clock = true;
    host.clocks()
}

fn cli(host: &mut Host) -> <WasiCli as HasData>::Data<'_> {
    host.used.environment = true;
    host.cli()
}
