//! Makes `guest-sdk/rust/src/bindings` of `wit/`; with `--check`, only sees that they are up to date. Run by `cargo xtask bindings`.
//!
//! The bindings are in version control because wit-bindgen's macro, which would make them at build time, adds half a minute to the first
//! build of every function.

use anyhow::{Context as _, Result, bail};
use std::path::Path;
use wit_bindgen_core::wit_parser::Resolve;
use wit_bindgen_core::{Files, WorldGenerator as _};
use wit_bindgen_rust::{Opts, WithOption};

fn main() -> Result<()> {
    let check = std::env::args().any(|argument| argument == "--check");
    let imports = Opts {
        generate_all: true,
        with: with(&[("wasi:io/poll@0.2.12", "::wasip2::io::poll")]),
        ..Opts::default()
    };
    make("imports", imports, check)?;
    let stage = Opts {
        with: with(&[
            ("weir:inference/tensors@0.1.0", "crate::bindings::imports::weir::inference::tensors"),
            ("weir:inference/models@0.1.0", "crate::bindings::imports::weir::inference::models"),
        ]),
        pub_export_macro: true,
        export_macro_name: Some("__export_stage".into()),
        default_bindings_module: Some("$crate::bindings::tensor_function".into()),
        ..Opts::default()
    };
    make("tensor-function", stage, check)
}

/// Where an interface's bindings are, where they are not to be made.
fn with(pairs: &[(&str, &str)]) -> Vec<(String, WithOption)> {
    pairs
        .iter()
        .map(|(interface, path)| ((*interface).to_owned(), WithOption::Path((*path).to_owned())))
        .collect()
}

fn make(world: &str, opts: Opts, check: bool) -> Result<()> {
    let opts = Opts {
        format: true,
        runtime_path: Some("::wit_bindgen::rt".into()),
        type_section_suffix: Some(format!("weir-guest-sdk-{world}")),
        ..opts
    };
    let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("rust");
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_path(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../wit"))?;
    let mut files = Files::default();
    let id = resolve.select_world(&[package], Some(world))?;
    opts.build().generate(&mut resolve, id, &mut files)?;
    let (_, made) = files.iter().next().context("wit-bindgen made nothing")?;
    let path = sdk.join("src/bindings").join(world.replace('-', "_")).with_extension("rs");
    if check && std::fs::read(&path).unwrap_or_default() != made {
        bail!("{} is not what wit/ makes: run `cargo xtask bindings`", path.display());
    }
    std::fs::write(&path, made).with_context(|| format!("cannot write {}", path.display()))
}
