//! The user's folder for files that can be fetched again.

use std::path::PathBuf;

/// `weir` in `$XDG_CACHE_HOME`, or in `~/.cache`. `None` for a user without a home folder.
#[must_use]
pub fn cache_folder() -> Option<PathBuf> {
    // A relative path has no meaning there, by the specification of the variable.
    let named = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = named.or_else(|| Some(std::env::home_dir()?.join(".cache")))?;
    Some(cache.join("weir"))
}
