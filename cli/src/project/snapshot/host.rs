//! Host functions for the initialisation of a snapshot, with a record of calls that the snapshot
//! freezes.

use std::any::Any;
use wasmtime::Engine;
use wasmtime::component::{HasData, Linker, ResourceTable};
use wasmtime_wasi::cli::{WasiCli, WasiCliView as _};
use wasmtime_wasi::clocks::{WasiClocks, WasiClocksView as _};
use wasmtime_wasi::filesystem::{WasiFilesystem, WasiFilesystemView as _};
use wasmtime_wasi::p2::bindings as p2;
use wasmtime_wasi::p3::bindings as p3;
use wasmtime_wasi::random::WasiRandom;
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_io::IoView;
use wasmtime_wasi_io::poll::DynPollable;
use wasmtime_wasi_io::streams::{DynInputStream, DynOutputStream};

/// WASI state of the initialisation, and a record of its calls.
pub(super) struct SnapshotHost {
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

impl SnapshotHost {
    pub(super) fn new() -> Self {
        // Show standard error to the author.
        let ctx = WasiCtx::builder().inherit_stderr().build();
        Self { ctx, table: ResourceTable::new(), used: Used::default() }
    }

    /// Warnings for the author. With `streams_forgotten`, stream handles are ignored, because the
    /// adapter starts uninitialised in every instance.
    pub(super) fn warnings(&mut self, streams_forgotten: bool) -> Vec<String> {
        const RANDOM: &str = "it drew random numbers, which are now the same in every instance: make no secrets or ids of them";
        const CLOCK: &str = "it read the clock, and every instance will remember that time";
        const ENVIRONMENT: &str = "it read the environment, which was empty: instances will not look again";
        let Used { random, clock, environment } = self.used;
        let used = [(random, RANDOM), (clock, CLOCK), (environment, ENVIRONMENT)];
        let mut warnings: Vec<String> =
            used.into_iter().filter(|(used, _)| *used).map(|(_, warning)| warning.to_owned()).collect();
        let kept = self.table.iter_mut().map(|handle| kind_of(handle));
        let kept: Vec<&str> = kept.filter(|kind| !(streams_forgotten && kind.ends_with("stream"))).collect();
        if !kept.is_empty() {
            let kept = kept.join(", ");
            warnings.push(format!("it kept handles that mean something else, or nothing, in a new instance: {kept}; open and print nothing in it"));
        }
        warnings
    }
}

/// Human-readable kind of a handle.
fn kind_of(handle: &dyn Any) -> &'static str {
    if handle.is::<DynOutputStream>() {
        "an output stream"
    } else if handle.is::<DynInputStream>() {
        "an input stream"
    } else if handle.is::<DynPollable>() {
        "a pollable"
    } else {
        "a file, a socket or a part of a request"
    }
}

impl WasiView for SnapshotHost {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.ctx, table: &mut self.table }
    }
}

impl IoView for SnapshotHost {
    fn table(&mut self) -> &mut ResourceTable {
        &mut self.table
    }
}

/// Linker with the WASI 0.2 and 0.3 functions that initialisation code may call. Calls whose
/// results the snapshot freezes are recorded.
pub(super) fn linker(engine: &Engine) -> wasmtime::Result<Linker<SnapshotHost>> {
    let mut linker = Linker::new(engine);
    let l = &mut linker;
    wasmtime_wasi_io::add_to_linker_async(l)?;
    p2::clocks::monotonic_clock::add_to_linker::<_, WasiClocks>(l, SnapshotHost::clocks)?;
    p2::clocks::wall_clock::add_to_linker::<_, WasiClocks>(l, clocks)?;
    p2::random::random::add_to_linker::<_, WasiRandom>(l, random)?;
    p2::random::insecure::add_to_linker::<_, WasiRandom>(l, random)?;
    p2::random::insecure_seed::add_to_linker::<_, WasiRandom>(l, random)?;
    p2::filesystem::preopens::add_to_linker::<_, WasiFilesystem>(l, SnapshotHost::filesystem)?;
    p2::cli::environment::add_to_linker::<_, WasiCli>(l, cli)?;
    p2::cli::exit::add_to_linker::<_, WasiCli>(l, SnapshotHost::cli)?;
    p2::cli::stdin::add_to_linker::<_, WasiCli>(l, SnapshotHost::cli)?;
    p2::cli::stdout::add_to_linker::<_, WasiCli>(l, SnapshotHost::cli)?;
    p2::cli::stderr::add_to_linker::<_, WasiCli>(l, SnapshotHost::cli)?;
    p2::cli::terminal_input::add_to_linker::<_, WasiCli>(l, SnapshotHost::cli)?;
    p2::cli::terminal_output::add_to_linker::<_, WasiCli>(l, SnapshotHost::cli)?;
    p2::cli::terminal_stdin::add_to_linker::<_, WasiCli>(l, SnapshotHost::cli)?;
    p2::cli::terminal_stdout::add_to_linker::<_, WasiCli>(l, SnapshotHost::cli)?;
    p2::cli::terminal_stderr::add_to_linker::<_, WasiCli>(l, SnapshotHost::cli)?;

    p3::clocks::types::add_to_linker::<_, WasiClocks>(l, SnapshotHost::clocks)?;
    p3::clocks::monotonic_clock::add_to_linker::<_, WasiClocks>(l, SnapshotHost::clocks)?;
    p3::clocks::system_clock::add_to_linker::<_, WasiClocks>(l, clocks)?;
    p3::random::random::add_to_linker::<_, WasiRandom>(l, random)?;
    p3::random::insecure::add_to_linker::<_, WasiRandom>(l, random)?;
    p3::random::insecure_seed::add_to_linker::<_, WasiRandom>(l, random)?;
    p3::filesystem::preopens::add_to_linker::<_, WasiFilesystem>(l, SnapshotHost::filesystem)?;
    p3::cli::environment::add_to_linker::<_, WasiCli>(l, cli)?;
    p3::cli::exit::add_to_linker::<_, WasiCli>(l, SnapshotHost::cli)?;
    p3::cli::stdin::add_to_linker::<_, WasiCli>(l, SnapshotHost::cli)?;
    p3::cli::stdout::add_to_linker::<_, WasiCli>(l, SnapshotHost::cli)?;
    p3::cli::stderr::add_to_linker::<_, WasiCli>(l, SnapshotHost::cli)?;
    p3::cli::terminal_input::add_to_linker::<_, WasiCli>(l, SnapshotHost::cli)?;
    p3::cli::terminal_output::add_to_linker::<_, WasiCli>(l, SnapshotHost::cli)?;
    p3::cli::terminal_stdin::add_to_linker::<_, WasiCli>(l, SnapshotHost::cli)?;
    p3::cli::terminal_stdout::add_to_linker::<_, WasiCli>(l, SnapshotHost::cli)?;
    p3::cli::terminal_stderr::add_to_linker::<_, WasiCli>(l, SnapshotHost::cli)?;
    Ok(linker)
}

// Each function runs once per guest call, and records it.

fn random(host: &mut SnapshotHost) -> <WasiRandom as HasData>::Data<'_> {
    host.used.random = true;
    host.ctx.random()
}

fn clocks(host: &mut SnapshotHost) -> <WasiClocks as HasData>::Data<'_> {
    host.used.clock = true;
    host.clocks()
}

fn cli(host: &mut SnapshotHost) -> <WasiCli as HasData>::Data<'_> {
    host.used.environment = true;
    host.cli()
}
