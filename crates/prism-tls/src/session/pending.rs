//! The KeyUpdates that this side still has to send.

/// The KeyUpdates that must be sent, in order, before any more data. The number is the code of
/// saved sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PendingUpdates(u8);

/// A KeyUpdate that answers the peer's requests, however many they are, or replaces a key that is
/// used up.
const UPDATE: u8 = 1;
/// A KeyUpdate that asks the peer for one. It follows the other one, because an answer must not ask
/// (RFC 8446 section 4.6.3).
const REQUEST: u8 = 2;

/// Values of a KeyUpdate's `request_update` field.
pub(super) const UPDATE_NOT_REQUESTED: u8 = 0;
pub(super) const UPDATE_REQUESTED: u8 = 1;

impl PendingUpdates {
    pub(super) const NONE: Self = Self(0);
    pub(super) const ALL: [Self; 4] =
        [Self(0), Self(UPDATE), Self(REQUEST), Self(UPDATE | REQUEST)];

    pub(super) const fn code(self) -> u8 {
        self.0
    }

    pub(super) fn with_update(self) -> Self {
        Self(self.0 | UPDATE)
    }

    pub(super) fn with_request(self) -> Self {
        Self(self.0 | REQUEST)
    }

    /// The `request_update` field of the next KeyUpdate, and the KeyUpdates after it.
    pub(super) fn next(self) -> Option<(u8, Self)> {
        match self.0 {
            0 => None,
            REQUEST => Some((UPDATE_REQUESTED, Self::NONE)),
            code => Some((UPDATE_NOT_REQUESTED, Self(code & !UPDATE))),
        }
    }
}
