//! The same as the hidden subcommands of `weir` for models, for tests that run without the `weir`
//! binary.

fn main() -> std::process::ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some(weir_inference::CPU_WORKER_COMMAND) => weir_inference::cpu_worker_main(),
        _ => weir_inference::prepare_main(),
    }
}
