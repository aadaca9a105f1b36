//! What `weir __prepare-model` does, for tests that run without the `weir` binary.

fn main() -> std::process::ExitCode {
    weir_inference::prepare_main()
}
