//! Files with secrets, such as tokens, which other users of the machine must not be able to read.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Permission bits of users who are neither the owner of a file nor in its group.
const OTHERS: u32 = 0o007;
/// Longest file, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Unusable file with secrets.
#[derive(Debug, thiserror::Error)]
pub enum PrivateFileError {
    /// The file cannot be read.
    #[error("cannot read it: {0}")]
    Io(#[from] io::Error),
    /// Other users have permissions for the file.
    #[error("other users of this machine can read it: run `chmod 600 {}`", .0.display())]
    Public(PathBuf),
    /// The file is too long.
    #[error("it has more than {FILE_BYTES_MAX} bytes")]
    Long,
}

/// Reads a file with secrets. Refuses a file that other users than its owner and group may use.
pub fn read_private_file(path: &Path) -> Result<String, PrivateFileError> {
    let file = File::open(path)?;
    if file.metadata()?.mode() & OTHERS != 0 {
        return Err(PrivateFileError::Public(path.to_owned()));
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX { Err(PrivateFileError::Long) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn files_that_others_may_use_are_refused_with_the_command_that_helps() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        fs::write(&path, "secret\n").unwrap();
        for (mode, is_refused) in
            [(0o644, true), (0o602, true), (0o640, false), (0o600, false), (0o400, false)]
        {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            match read_private_file(&path) {
                Ok(text) => assert!(!is_refused && text == "secret\n", "{mode:o}"),
                Err(error) => {
                    assert!(is_refused, "{mode:o}: {error}");
                    assert!(error.to_string().contains(&format!("chmod 600 {}", path.display())), "{error}");
                }
            }
        }
        assert!(matches!(read_private_file(&folder.path().join("missing")), Err(PrivateFileError::Io(_))));
    }
}
