//! The page for a browser.

mod assets;

pub(crate) use assets::asset;
