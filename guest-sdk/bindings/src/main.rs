//! Generates the bindings and messages under version control; with `--check`, fails if they are out
//! of date:
//!
//! - the bindings of `wit/` in `guest-sdk/rust/src/bindings`, `guest-sdk/c/abi` and
//!   `guest-sdk/go/internal/abi`: wit-bindgen's macro would add half a minute to the first build of
//!   every function;
//! - the gRPC messages of `grpc/` and `datastore/`: build scripts that generate them would add a
//!   quarter of a minute to the first build of Weir, and 20 crates.
//!
//! Run by `cargo xtask bindings`.

mod protocols;

use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use wit_bindgen_core::wit_parser::{PackageId, Resolve, WorldId};
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
            ("weir:inference/objects@0.1.0", "crate::bindings::imports::weir::inference::objects"),
            ("weir:inference/image@0.1.0", "crate::bindings::imports::weir::inference::image"),
        ]),
        pub_export_macro: true,
        export_macro_name: Some("__export_stage".into()),
        default_bindings_module: Some("$crate::bindings::tensor_function".into()),
        ..Opts::default()
    };
    make("tensor-function", stage, check)?;
    let snapshot = Opts {
        pub_export_macro: true,
        export_macro_name: Some("__export_snapshot".into()),
        default_bindings_module: Some("$crate::bindings::snapshot".into()),
        ..Opts::default()
    };
    make("snapshot", snapshot, check)?;
    make_c(check)?;
    make_go(check)?;
    protocols::generate(check)
}

/// Paths of interfaces whose bindings exist elsewhere and must not be generated.
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
    let sdk = sdk("rust");
    let (mut resolve, mut package) = contract()?;
    if world == "snapshot" {
        package = resolve.push_str("snapshot.wit", SNAPSHOT)?;
    }
    let mut files = Files::default();
    let id = resolve.select_world(&[package], Some(world))?;
    opts.build().generate(&mut resolve, id, &mut files)?;
    let (_, made) = files.iter().next().context("wit-bindgen made nothing")?;
    let path = sdk.join("src/bindings").join(world.replace('-', "_")).with_extension("rs");
    put(&path, made, check)
}

/// Export that `weir build --snapshot` calls. Not a part of `wit/`, since a node never calls it.
const SNAPSHOT: &str = "\
    package weir:snapshot;
    world snapshot { export wizer-initialize: func(); }";

/// Imports of the C and Go SDKs. Their exports and the required parts of WASI are written by hand:
/// bindings of all of `wasi:http` have 6,000 lines.
const CALLED: &str = "\
    package weir:called;
    world abi {
        import weir:inference/tensors@0.1.0;
        import weir:inference/models@0.1.0;
        import weir:inference/objects@0.1.0;
        import weir:inference/image@0.1.0;
        import weir:inference/request@0.1.0;
    }";

fn make_c(check: bool) -> Result<()> {
    let (mut resolve, id) = called()?;
    let opts = wit_bindgen_c::Opts {
        // `weir build` converts the module to a component and embeds the type.
        no_object_file: true,
        rename_world: Some("weir_abi".into()),
        ..Default::default()
    };
    let mut files = Files::default();
    opts.build().generate(&mut resolve, id, &mut files)?;
    files.iter().try_for_each(|(name, made)| put(&sdk("c").join("abi").join(name), made, check))
}

/// Go package of the generated bindings and of their runtime.
const GO_PACKAGES: &str = "github.com/weir-platform/weir/guest-sdk/go/internal";
/// Runtime packages of wit-bindgen. The SDK has its own runtime: the garbage collector must not run
/// while the node allocates memory.
const GO_RUNTIME: [&str; 2] =
    ["go.bytecodealliance.org/pkg/wit/runtime", "go.bytecodealliance.org/pkg/wit/types"];

fn make_go(check: bool) -> Result<()> {
    let (mut resolve, id) = called()?;
    let opts = wit_bindgen_go::Opts {
        // Formatting would need a Go installation.
        format: wit_bindgen_go::Format::False,
        pkg_name: Some(format!("{GO_PACKAGES}/abi")),
        ..Default::default()
    };
    let mut files = Files::default();
    opts.build().generate(&mut resolve, id, &mut files)?;
    let folder = sdk("go").join("internal/abi");
    for (name, made) in files.iter() {
        // One folder per interface. wit-bindgen also creates one for exports, which has no contents
        // here.
        if !name.starts_with("weir_") {
            continue;
        }
        let mut made = std::str::from_utf8(made)?.to_owned();
        for replaced in GO_RUNTIME {
            made = made.replace(replaced, &format!("{GO_PACKAGES}/wit"));
        }
        put(&folder.join(name), made.as_bytes(), check)?;
    }
    Ok(())
}

/// The world of [`CALLED`].
fn called() -> Result<(Resolve, WorldId)> {
    let (mut resolve, _) = contract()?;
    let package = resolve.push_str("abi.wit", CALLED)?;
    let id = resolve.select_world(&[package], Some("abi"))?;
    Ok((resolve, id))
}

fn contract() -> Result<(Resolve, PackageId)> {
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_path(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../wit"))?;
    Ok((resolve, package))
}

fn sdk(language: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name(language)
}

/// Writes `made` to `path`; with `check`, only compares.
fn put(path: &Path, made: &[u8], check: bool) -> Result<()> {
    if check && std::fs::read(path).unwrap_or_default() != made {
        bail!("{} is out of date: run `cargo xtask bindings`", path.display());
    }
    if check {
        return Ok(());
    }
    path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    std::fs::write(path, made).with_context(|| format!("cannot write {}", path.display()))
}
