//! The oldest C library that a program runs with.

use anyhow::{Context as _, Result};
use std::path::Path;

/// Prefix of the names of symbol versions, such as `GLIBC_2.34`.
const PREFIX: &[u8] = b"GLIBC_2.";

/// The smallest `N` for which the program or library in `file` runs with version 2.N of the GNU C
/// library.
pub(super) fn minor_needed(file: &Path) -> Result<u32> {
    let content = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    newest(&content).with_context(|| format!("{} uses no GNU C library", file.display()))
}

/// The largest minor version in the names of symbol versions.
fn newest(content: &[u8]) -> Option<u32> {
    let at = content.windows(PREFIX.len()).enumerate().filter(|(_, window)| *window == PREFIX);
    at.filter_map(|(start, _)| {
        let digits = content[start + PREFIX.len()..].iter().take_while(|byte| byte.is_ascii_digit());
        std::str::from_utf8(&digits.copied().collect::<Vec<u8>>()).ok()?.parse().ok()
    })
    .max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_version_of_the_symbols_counts() {
        assert_eq!(newest(b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.17\0GLIBC_2."), Some(34));
        assert_eq!(newest(b"GLIBC_PRIVATE"), None);
    }
}
