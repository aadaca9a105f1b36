//! Rebuilds the binary when a file that it embeds changes.

fn main() {
    for folder in [
        "guest-sdk/templates",
        "guest-sdk/rust",
        "guest-sdk/python/src",
        "guest-sdk/js",
        "guest-sdk/c",
        "guest-sdk/go",
        "wit",
    ] {
        println!("cargo:rerun-if-changed=../{folder}");
    }
}
