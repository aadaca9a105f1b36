//! Generates the client of etcd's API from `proto/`, without a `protoc` on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["etcd.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .build_server(false)
        // Values are written from the memory that the caller has them in, also when a request is
        // sent again.
        .bytes(".etcdserverpb.PutRequest.value")
        .bytes(".etcdserverpb.Compare.value")
        .compile_fds(files)?;
    Ok(())
}
