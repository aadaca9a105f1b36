//! Stamps: records of complete installations.

use std::io;
use std::path::{Path, PathBuf};

/// A file that records the inputs of an installation. Written when the installation is complete.
pub struct Stamp<'a> {
    subject: &'a Path,
    file: PathBuf,
    content: &'a str,
}

impl<'a> Stamp<'a> {
    /// Creates the stamp of `subject`, which was installed from `content`.
    #[must_use]
    pub fn beside(subject: &'a Path, content: &'a str) -> Self {
        let mut file = subject.as_os_str().to_owned();
        file.push(".stamp");
        Self { subject, file: file.into(), content }
    }

    /// Whether the subject exists and was installed from the same content.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.subject.exists() && std::fs::read_to_string(&self.file).is_ok_and(|is| is == self.content)
    }

    /// Removes the stamp before the subject changes, so that an interrupted change leaves no stamp.
    pub fn clear(&self) -> io::Result<()> {
        match std::fs::remove_file(&self.file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Writes the stamp after the installation is complete.
    pub fn write(&self) -> io::Result<()> {
        std::fs::write(&self.file, self.content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamp_is_current_only_with_its_subject_and_content() {
        let folder = tempfile::tempdir().unwrap();
        let subject = folder.path().join("lib.so");
        let stamp = Stamp::beside(&subject, "1.0");
        stamp.write().unwrap();
        assert!(!stamp.is_current(), "the subject is not there");
        std::fs::write(&subject, "").unwrap();
        assert!(stamp.is_current());
        assert!(!Stamp::beside(&subject, "1.1").is_current());
        stamp.clear().unwrap();
        stamp.clear().unwrap();
        assert!(!stamp.is_current());
    }
}
