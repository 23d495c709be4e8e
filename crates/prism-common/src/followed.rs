//! Files that may be replaced while a process runs, and are then read again.
//!
//! Not here: what is in the files.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

/// Gets a value whenever followed files are to be read again, also if none has changed.
pub type ReloadRequests = watch::Receiver<()>;

/// Files that a process follows. A change is noticed by metadata, without reading a file.
#[derive(Debug)]
pub struct FollowedFiles {
    paths: Vec<PathBuf>,
    /// The files as the last look found them.
    seen: Mutex<Vec<Option<Stamp>>>,
}

/// The metadata that change whenever a file is replaced or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size_bytes: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

impl Stamp {
    /// The stamp of the file at `path`, or of a link's target. `None` if it cannot be read.
    fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size_bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        })
    }
}

impl FollowedFiles {
    /// Follows `paths` from now on. Call this before the files are read for the first time: a
    /// change between the two is then noticed.
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let paths: Vec<_> = paths.into_iter().collect();
        let seen = Mutex::new(stamps(&paths));
        Self { paths, seen }
    }

    /// Whether a file has changed since the last look. A file that comes or goes has changed.
    pub fn changed(&self) -> bool {
        let present = stamps(&self.paths);
        let mut seen = self.seen.lock();
        let before = std::mem::replace(&mut *seen, present);
        *seen != before
    }

    /// Calls `read` whenever a file has changed, and at each of the `requests`. It looks after each
    /// period of `every`. Never returns.
    pub async fn follow(
        &self,
        every: Duration,
        mut requests: ReloadRequests,
        mut read: impl FnMut(),
    ) {
        loop {
            let is_told = tokio::select! {
                () = tokio::time::sleep(every) => false,
                Ok(()) = requests.changed() => true,
            };
            // A change while the files are read counts at the next look.
            if self.changed() || is_told {
                read();
            }
        }
    }
}

fn stamps(paths: &[PathBuf]) -> Vec<Option<Stamp>> {
    paths.iter().map(|path| Stamp::of(path)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]

    use std::cell::Cell;
    use std::fs::{remove_file, rename, write};

    use super::*;

    #[test]
    fn every_change_counts_once() {
        let directory = tempfile::tempdir().unwrap();
        let [one, two, new] = ["one", "two", "new"].map(|name| directory.path().join(name));
        write(&one, "1").unwrap();
        let files = FollowedFiles::new([one.clone(), two.clone()]);
        assert!(!files.changed());
        let changes: [&dyn Fn(); 4] = [
            &|| write(&one, "12").unwrap(),
            &|| write(&two, "2").unwrap(),
            &|| {
                write(&new, "12").unwrap();
                rename(&new, &one).unwrap();
            },
            &|| remove_file(&two).unwrap(),
        ];
        for (n, change) in changes.iter().enumerate() {
            change();
            assert!(files.changed(), "change {n}");
            assert!(!files.changed(), "after change {n}");
        }
    }

    #[test]
    fn files_are_read_when_they_change_and_when_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let files = FollowedFiles::new([path.clone()]);
        let (requests, times) = (watch::Sender::new(()), Cell::new(0));
        let every = Duration::from_millis(10);
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap().block_on(async {
            let read = || times.set(times.get() + 1);
            let following = files.follow(every, requests.subscribe(), read);
            let acting = async {
                tokio::time::sleep(5 * every).await;
                assert_eq!(times.get(), 0);
                write(&path, "1").unwrap();
                tokio::time::sleep(5 * every).await;
                assert_eq!(times.get(), 1);
                requests.send_replace(());
                tokio::time::sleep(5 * every).await;
                assert_eq!(times.get(), 2);
            };
            tokio::select! {
                () = following => {}
                () = acting => {}
            }
        });
    }
}
