//! A document that several visitors see, and that is made anew at most once in a while.

use std::time::Duration;

use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::pages::Page;

/// A document is made again after this time: a little less than the interval of events.
const FRESH: Duration = Duration::from_millis(900);

/// The last document.
#[derive(Default)]
pub struct Latest(Mutex<Option<(Instant, Page)>>);

impl Latest {
    /// The last document, or a new one by `making` if that one is too old.
    pub async fn page(&self, making: impl Future<Output = Value>) -> Page {
        // Others wait for the document that the first one makes.
        let mut latest = self.0.lock().await;
        if let Some((at, page)) = &*latest
            && at.elapsed() < FRESH
        {
            return page.clone();
        }
        let page = Page::json(&making.await);
        *latest = Some((Instant::now(), page.clone()));
        page
    }
}
