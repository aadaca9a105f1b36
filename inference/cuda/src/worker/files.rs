//! Budget for open files of other devices' memory in the node, on their way to one worker. The
//! limit of open files of a process is low.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Number of files that may still be opened. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct FileBudget(Arc<AtomicUsize>);

/// Reservation of files, returned on drop.
#[derive(Debug)]
pub(super) struct FileReservation {
    files: FileBudget,
    pub(super) count: usize,
}

impl FileBudget {
    /// Creates a budget of `count` open files.
    pub(super) fn new(count: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(count)))
    }

    /// Reserves `count` files. Returns `None` if the budget is exhausted.
    pub(super) fn reserve(&self, count: usize) -> Option<FileReservation> {
        self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(count)).ok()?;
        Some(FileReservation { files: self.clone(), count })
    }
}

impl Drop for FileReservation {
    fn drop(&mut self) {
        self.files.0.fetch_add(self.count, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_never_exceed_the_limit() {
        let files = FileBudget::new(10);
        let six = files.reserve(6);
        let four = files.reserve(4);
        assert!(six.is_some() && four.is_some() && files.reserve(1).is_none());
        drop(six);
        assert!(files.reserve(7).is_none());
        assert_eq!(files.reserve(6).map(|reserved| reserved.count), Some(6));
    }
}
