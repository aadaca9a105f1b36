//! Sees to it that a change in what the binary embeds makes a new binary.

fn main() {
    println!("cargo:rerun-if-changed=../guest-sdk/templates");
    println!("cargo:rerun-if-changed=../guest-sdk/rust");
    println!("cargo:rerun-if-changed=../wit");
}
