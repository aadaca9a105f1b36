//! Knowing whether something is installed, and for what.

use std::io;
use std::path::{Path, PathBuf};

/// A file that says for what something was installed, written once all of it is in place.
pub struct Stamp<'a> {
    subject: &'a Path,
    file: PathBuf,
    content: &'a str,
}

impl<'a> Stamp<'a> {
    /// The stamp of `subject`, which is what `content` stands for.
    #[must_use]
    pub fn beside(subject: &'a Path, content: &'a str) -> Self {
        let mut file = subject.as_os_str().to_owned();
        file.push(".stamp");
        Self { subject, file: file.into(), content }
    }

    /// Whether it is there and was made for the same content.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.subject.exists() && std::fs::read_to_string(&self.file).is_ok_and(|is| is == self.content)
    }

    /// Say that the subject is about to change, so that a change which is broken off leaves no stamp.
    pub fn clear(&self) -> io::Result<()> {
        match std::fs::remove_file(&self.file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Say that all of it is in place.
    pub fn write(&self) -> io::Result<()> {
        std::fs::write(&self.file, self.content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_counts_only_beside_its_subject_and_with_the_same_content() {
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
