//! The three ways in which S3 writes a time. No clock is read here.

use ::time::format_description::BorrowedFormatItem;
use ::time::format_description::well_known::Rfc2822;
use ::time::macros::format_description;
use ::time::{OffsetDateTime, PrimitiveDateTime, UtcOffset};

const ISO_BASIC: &[BorrowedFormatItem<'_>] =
    format_description!("[year][month][day]T[hour][minute][second]Z");
const ISO_MILLIS: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");
const IMF: &[BorrowedFormatItem<'_>] = format_description!(
    "[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT"
);

/// `20130524T000000Z`, as in `x-amz-date`.
#[must_use]
pub fn iso_basic(time: OffsetDateTime) -> String {
    formatted(time, ISO_BASIC)
}

/// Reads `20130524T000000Z`.
#[must_use]
pub fn parse_iso_basic(text: &str) -> Option<OffsetDateTime> {
    PrimitiveDateTime::parse(text, ISO_BASIC)
        .ok()
        .map(PrimitiveDateTime::assume_utc)
}

/// `2013-05-24T00:00:00.000Z`, as in XML bodies.
#[must_use]
pub fn iso_millis(time: OffsetDateTime) -> String {
    formatted(time, ISO_MILLIS)
}

/// `Fri, 24 May 2013 00:00:00 GMT`, as in `Date` and `Last-Modified`.
#[must_use]
pub fn http_date(time: OffsetDateTime) -> String {
    formatted(time, IMF)
}

/// Reads an HTTP date. Zones other than GMT are taken too, since some clients
/// send `+0000`; the two obsolete forms are not.
#[must_use]
pub fn parse_http_date(text: &str) -> Option<OffsetDateTime> {
    PrimitiveDateTime::parse(text, IMF)
        .map(PrimitiveDateTime::assume_utc)
        .or_else(|_| OffsetDateTime::parse(text, &Rfc2822))
        .ok()
}

/// Formatting fails only for years beyond four digits; such a time is written
/// as nothing rather than as something wrong.
fn formatted(time: OffsetDateTime, form: &[BorrowedFormatItem<'_>]) -> String {
    time.to_offset(UtcOffset::UTC)
        .format(form)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn forms_are_written_and_read_back() {
        let t = OffsetDateTime::from_unix_timestamp(1_369_353_600).unwrap();
        assert_eq!(iso_basic(t), "20130524T000000Z");
        assert_eq!(iso_millis(t), "2013-05-24T00:00:00.000Z");
        assert_eq!(http_date(t), "Fri, 24 May 2013 00:00:00 GMT");
        assert_eq!(parse_iso_basic("20130524T000000Z"), Some(t));
        assert_eq!(parse_http_date("Fri, 24 May 2013 00:00:00 GMT"), Some(t));
        assert_eq!(parse_http_date("Fri, 24 May 2013 02:00:00 +0200"), Some(t));
    }

    #[test]
    fn other_text_is_no_time() {
        for text in [
            "",
            "20130524",
            "20130524T000000",
            "20131324T000000Z",
            "20130524T000000Zx",
        ] {
            assert_eq!(parse_iso_basic(text), None, "{text}");
        }
        for text in ["", "yesterday", "Fri, 32 May 2013 00:00:00 GMT"] {
            assert_eq!(parse_http_date(text), None, "{text}");
        }
    }
}
