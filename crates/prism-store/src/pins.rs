//! The manifests that are being read. An open file outlives its name, but the other files of the
//! object would be gone, so they stay as long as a reader has the object.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::layout::FileId;

/// The manifests that are being read, at most as many as readers.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    by_manifest: Mutex<HashMap<FileId, Pinned>>,
}

#[derive(Debug, Default)]
struct Pinned {
    readers: usize,
    /// Whether the last reader collects the files.
    doomed: bool,
}

impl Pins {
    pub(crate) fn pin(&self, manifest: FileId) {
        self.by_manifest.lock().entry(manifest).or_default().readers += 1;
    }

    /// A reader is done; whether the caller has to collect the manifest now.
    pub(crate) fn unpin(&self, manifest: FileId) -> bool {
        let mut pins = self.by_manifest.lock();
        let Some(pin) = pins.get_mut(&manifest) else {
            return false;
        };
        pin.readers = pin.readers.saturating_sub(1);
        if pin.readers > 0 {
            return false;
        }
        let doomed = pin.doomed;
        pins.remove(&manifest);
        doomed
    }

    /// The object is gone; whether the caller has to collect the manifest now. Otherwise its last
    /// reader will.
    pub(crate) fn doom(&self, manifest: FileId) -> bool {
        match self.by_manifest.lock().get_mut(&manifest) {
            None => true,
            Some(pin) => {
                pin.doomed = true;
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_reader_of_what_is_gone_sees_to_it() {
        let (pins, id) = (Pins::default(), FileId::from_bytes([1; 8]));
        assert!(pins.doom(id));
        pins.pin(id);
        pins.pin(id);
        assert!(!pins.doom(id));
        assert!(!pins.unpin(id));
        assert!(pins.unpin(id));
        assert!(!pins.unpin(id));
        pins.pin(id);
        assert!(!pins.unpin(id));
    }
}
