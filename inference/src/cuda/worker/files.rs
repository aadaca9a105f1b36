//! How many files of other devices' memory are open in the node, on their way to one worker. A process may not open many.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Those that may still be opened. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Files(Arc<AtomicUsize>);

/// So many of them, until it drops.
#[derive(Debug)]
pub(super) struct Reserved {
    files: Files,
    pub(super) count: usize,
}

impl Files {
    /// At most `count` at once.
    pub(super) fn new(count: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(count)))
    }

    /// Reserve `count`; none where there are too many already.
    pub(super) fn reserve(&self, count: usize) -> Option<Reserved> {
        self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(count)).ok()?;
        Some(Reserved { files: self.clone(), count })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.files.0.fetch_add(self.count, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_are_open_than_may_be() {
        let files = Files::new(10);
        let (six, four) = (files.reserve(6), files.reserve(4));
        assert!(six.is_some() && four.is_some() && files.reserve(1).is_none());
        drop(six);
        assert!(files.reserve(7).is_none());
        assert_eq!(files.reserve(6).map(|reserved| reserved.count), Some(6));
    }
}
