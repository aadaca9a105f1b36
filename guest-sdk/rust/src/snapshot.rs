//! Code that runs once, when `weir build --snapshot` takes the snapshot of a component.

use std::fmt::Display;

/// Runs a `fn() -> Result<(), E>` when `weir build` takes a snapshot of the component
/// (`snapshot = true` in `weir.toml`). Use the macro once per crate.
///
/// Every instance starts with the memory after that call, so that tables and caches are built once
/// and not per request. An error ends the build, which prints it. `E` implements [`Display`].
///
/// ```
/// use std::sync::LazyLock;
///
/// static SQUARES: LazyLock<Vec<u64>> = LazyLock::new(|| (0..1000).map(|n| n * n).collect());
///
/// fn prepare() -> weir::Result<()> {
///     LazyLock::force(&SQUARES);
///     Ok(())
/// }
///
/// weir::snapshot!(prepare);
/// ```
#[macro_export]
macro_rules! snapshot {
    ($prepare:path) => {
        const _: () = {
            struct WeirSnapshot;

            impl $crate::bindings::snapshot::Guest for WeirSnapshot {
                fn wizer_initialize() {
                    $crate::__private::prepare($prepare);
                }
            }

            $crate::bindings::snapshot::__export_snapshot!(WeirSnapshot with_types_in $crate::bindings::snapshot);
        };
    };
}

/// Expansion of [`snapshot!`].
pub fn prepare<E: Display>(prepare: impl FnOnce() -> Result<(), E>) {
    if let Err(error) = prepare() {
        // `weir build` prints the standard error of a snapshot that traps.
        eprintln!("{error}");
        std::process::abort();
    }
}
