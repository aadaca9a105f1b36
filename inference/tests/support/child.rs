//! The same as `weir __prepare-model`, for tests that run without the `weir` binary.

fn main() -> std::process::ExitCode {
    weir_inference::prepare_main()
}
