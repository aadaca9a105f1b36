//! Rust from `proto/`, without a `protoc` on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["inference.proto"], ["proto"])?;
    // Tensors stay in the memory that the message arrived in.
    tonic_prost_build::configure()
        .build_client(false)
        .codec_path("crate::BoundedCodec")
        .bytes(".")
        .compile_fds(files)?;
    Ok(())
}
