//! The KeyUpdates that this side still has to send.

/// The KeyUpdates that must be sent, in order, before any more data. The numbers are the codes of
/// saved sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PendingUpdate {
    /// Nothing.
    #[default]
    Nothing = 0,
    /// One that answers the peer's requests, however many they are, or replaces a key that is
    /// used up.
    Update = 1,
    /// One that asks the peer for one.
    Request = 2,
    /// Both, because an answer must not ask (RFC 8446 section 4.6.3).
    UpdateThenRequest = 3,
}

/// Values of a KeyUpdate's `request_update` field.
pub(super) const UPDATE_NOT_REQUESTED: u8 = 0;
pub(super) const UPDATE_REQUESTED: u8 = 1;

impl PendingUpdate {
    pub(super) const ALL: [Self; 4] = [
        Self::Nothing,
        Self::Update,
        Self::Request,
        Self::UpdateThenRequest,
    ];

    pub(super) fn with_update(self) -> Self {
        match self {
            Self::Nothing | Self::Update => Self::Update,
            Self::Request | Self::UpdateThenRequest => Self::UpdateThenRequest,
        }
    }

    pub(super) fn with_request(self) -> Self {
        match self {
            Self::Nothing | Self::Request => Self::Request,
            Self::Update | Self::UpdateThenRequest => Self::UpdateThenRequest,
        }
    }

    /// The `request_update` field of the next KeyUpdate, and the KeyUpdates after it.
    pub(super) fn next(self) -> Option<(u8, Self)> {
        match self {
            Self::Nothing => None,
            Self::Update => Some((UPDATE_NOT_REQUESTED, Self::Nothing)),
            Self::Request => Some((UPDATE_REQUESTED, Self::Nothing)),
            Self::UpdateThenRequest => Some((UPDATE_NOT_REQUESTED, Self::Request)),
        }
    }
}
