//! Files with secrets.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Writes a file that only its owner can read, as nodes require of tokens and secrets.
pub fn write_private(path: &Path, text: &str) {
    std::fs::write(path, text).expect("the file cannot be written");
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).expect("the file cannot be made private");
}
