//! Sees to it that a change in what the binary embeds makes a new binary.

fn main() {
    for folder in [
        "guest-sdk/templates",
        "guest-sdk/rust",
        "guest-sdk/python/src",
        "guest-sdk/js",
        "guest-sdk/c",
        "wit",
    ] {
        println!("cargo:rerun-if-changed=../{folder}");
    }
}
