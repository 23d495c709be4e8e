//! The `Date` field of answers.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The end of the year 9999, in seconds since 1970. The form has no later time, and the library
/// panics at one; a clock can be that wrong.
const LAST_S: u64 = 253_402_300_799;

/// The value of `Date`, which one thread formats once a second.
#[derive(Debug, Default)]
pub struct DateCache(RefCell<Option<(u64, Rc<str>)>>);

impl DateCache {
    /// The value for this second.
    pub fn now(&self) -> Rc<str> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_s = since.unwrap_or_default().as_secs();
        let mut cached = self.0.borrow_mut();
        match &*cached {
            Some((second, text)) if *second == now_s => text.clone(),
            _ => cached.insert((now_s, imf_fixdate(now_s))).1.clone(),
        }
    }
}

fn imf_fixdate(unix_time_s: u64) -> Rc<str> {
    let time = Duration::from_secs(unix_time_s.min(LAST_S));
    httpdate::fmt_http_date(UNIX_EPOCH + time).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_has_the_form_of_rfc_9110() {
        assert_eq!(&*imf_fixdate(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(&*imf_fixdate(0), "Thu, 01 Jan 1970 00:00:00 GMT");
    }

    #[test]
    fn the_text_is_formatted_once_a_second() {
        let cache = DateCache::default();
        let shared = (0..1000).filter(|_| Rc::ptr_eq(&cache.now(), &cache.now()));
        assert!(shared.count() > 990);
    }
}
