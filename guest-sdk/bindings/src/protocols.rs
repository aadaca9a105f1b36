//! Messages and stubs of gRPC APIs, compiled from `.proto` files without `protoc`.

use crate::put;
use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};
use std::path::Path;
use tonic_prost_build::Builder;

pub(crate) fn generate(check: bool) -> Result<()> {
    // Tensors share the memory of the received message.
    let inference =
        tonic_prost_build::configure().build_client(false).codec_path("crate::BoundedCodec").bytes(".");
    compile(inference, "grpc/proto", "inference", "grpc/src/generated.rs", check)?;
    describe("grpc/proto", &["inference", "health", "reflection"], "grpc/src/descriptors.binpb", check)?;
    // Values share the caller's memory, also when a request is sent again.
    let etcd = tonic_prost_build::configure()
        .build_server(false)
        .bytes(".etcdserverpb.PutRequest.value")
        .bytes(".etcdserverpb.Compare.value");
    compile(etcd, "datastore/proto", "etcd", "datastore/src/etcd/client/generated.rs", check)
}

/// Compiles the files `names` in `folder` to a set of descriptors, for reflection. Both paths are
/// relative to the workspace.
///
/// A field that the set does not declare, and that its readers skip, has the SHA-256 of each file. A
/// test compares it with the files, without the compiler of protocols.
fn describe(folder: &str, names: &[&str], to: &str, check: bool) -> Result<()> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut compiler = protox::Compiler::new([workspace.join(folder)])?;
    compiler.include_source_info(false).include_imports(true);
    compiler.open_files(names.iter().map(|name| format!("{name}.proto")))?;
    let mut set = compiler.encode_file_descriptor_set();
    for name in names {
        let digest = Sha256::digest(std::fs::read(workspace.join(folder).join(format!("{name}.proto")))?);
        // Key of field 1000 with bytes, and their number.
        set.extend([0xc2, 0x3e, 32]);
        set.extend(digest);
    }
    put(&workspace.join(to), &set, check)
}

/// Compiles `name.proto` in `folder` to the Rust file `to`. Both paths are relative to the
/// workspace.
fn compile(builder: Builder, folder: &str, name: &str, to: &str, check: bool) -> Result<()> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = protox::compile([format!("{name}.proto")], [workspace.join(folder)])?;
    let package = files.file.first().context("nothing was compiled")?.package().to_owned();
    let out = std::env::temp_dir().join(format!("weir-bindings-{}", std::process::id()));
    std::fs::create_dir_all(&out)?;
    let generated = builder
        .out_dir(&out)
        .compile_fds(files)
        .and_then(|()| std::fs::read(out.join(format!("{package}.rs"))));
    let _ = std::fs::remove_dir_all(&out);
    let mut generated = generated.with_context(|| format!("cannot compile {name}.proto"))?;
    // A test compares this line with the file, without the compiler of protocols.
    let digest =
        hex::encode(Sha256::digest(std::fs::read(workspace.join(folder).join(format!("{name}.proto")))?));
    generated.splice(..0, format!("// SHA-256 of {name}.proto: {digest}\n").into_bytes());
    put(&workspace.join(to), &generated, check)
}
