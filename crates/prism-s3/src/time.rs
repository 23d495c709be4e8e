//! The three forms of time in S3. No clock is read here.
//!
//! Every request has two of them: [`iso_basic`] and [`http_date`]. Neither interprets a description
//! of its form, which would take ten times as long.

use ::time::format_description::BorrowedFormatItem;
use ::time::format_description::well_known::Rfc2822;
use ::time::macros::format_description;
use ::time::{Date, Duration, Month, OffsetDateTime, PrimitiveDateTime, Time, UtcOffset};

const ISO_MILLIS: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");
const IMF: &[BorrowedFormatItem<'_>] = format_description!(
    "[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT"
);

/// `20130524T000000Z`, as in `x-amz-date`.
pub fn iso_basic(time: OffsetDateTime) -> String {
    let time = time.to_offset(UtcOffset::UTC);
    let mut text = String::with_capacity(16);
    push_year(&mut text, time);
    push_two(&mut text, u8::from(time.month()));
    push_two(&mut text, time.day());
    text.push('T');
    push_two(&mut text, time.hour());
    push_two(&mut text, time.minute());
    push_two(&mut text, time.second());
    text.push('Z');
    text
}

/// Reads `20130524T000000Z`.
pub fn parse_iso_basic(text: &str) -> Option<OffsetDateTime> {
    let (date, time) = text.as_bytes().split_first_chunk()?;
    let [b'T', time @ .., b'Z'] = time else {
        return None;
    };
    let [y, e, a, r, m3, m4, d1, d2] = digits::<8>(*date)?;
    let [h1, h2, m1, m2, s1, s2] = digits::<6>(time.try_into().ok()?)?;
    let year = (i32::from(y) * 10 + i32::from(e)) * 100 + i32::from(a * 10 + r);
    let month = Month::try_from(m3 * 10 + m4).ok()?;
    let date = Date::from_calendar_date(year, month, d1 * 10 + d2).ok()?;
    let time = Time::from_hms(h1 * 10 + h2, m1 * 10 + m2, s1 * 10 + s2).ok()?;
    Some(PrimitiveDateTime::new(date, time).assume_utc())
}

/// The values of digits.
fn digits<const N: usize>(mut digits: [u8; N]) -> Option<[u8; N]> {
    for digit in &mut digits {
        *digit = digit.checked_sub(b'0').filter(|value| *value <= 9)?;
    }
    Some(digits)
}

fn push_two(text: &mut String, value: u8) {
    text.push(char::from(b'0' + value / 10 % 10));
    text.push(char::from(b'0' + value % 10));
}

/// Appends a year in four digits, which is enough for every year in a store.
fn push_year(text: &mut String, time: OffsetDateTime) {
    let year = u16::try_from(time.year()).unwrap_or(0);
    for part in [year / 100, year % 100] {
        push_two(text, u8::try_from(part).unwrap_or(0));
    }
}

/// The time so many milliseconds after the Unix epoch.
pub fn from_ms(ms: u64) -> OffsetDateTime {
    let seconds = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
    let time = OffsetDateTime::from_unix_timestamp(seconds);
    time.unwrap_or(OffsetDateTime::UNIX_EPOCH) + Duration::milliseconds((ms % 1000).cast_signed())
}

/// `2013-05-24T00:00:00.000Z`, as in XML bodies. A year beyond four digits gives an empty text.
pub(crate) fn iso_millis(time: OffsetDateTime) -> String {
    let time = time.to_offset(UtcOffset::UTC);
    time.format(ISO_MILLIS).unwrap_or_default()
}

/// `Fri, 24 May 2013 00:00:00 GMT`, as in `Date` and `Last-Modified`. A time before 1970 or
/// after 9999, which only a client can have chosen, becomes the nearest one between them.
pub fn http_date(time: OffsetDateTime) -> String {
    let first = OffsetDateTime::UNIX_EPOCH;
    let last = PrimitiveDateTime::MAX.assume_utc();
    httpdate::fmt_http_date(time.clamp(first, last).into())
}

/// Reads an HTTP date. Other zones than GMT are accepted, because some clients send `+0000`. The
/// two obsolete forms are not.
pub fn parse_http_date(text: &str) -> Option<OffsetDateTime> {
    PrimitiveDateTime::parse(text, IMF)
        .map(PrimitiveDateTime::assume_utc)
        .or_else(|_| OffsetDateTime::parse(text, &Rfc2822))
        .ok()
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
    fn every_time_of_a_client_can_be_written() {
        let early = parse_http_date("Fri, 01 Jan 1960 00:00:00 GMT").unwrap();
        assert_eq!(http_date(early), "Thu, 01 Jan 1970 00:00:00 GMT");
        let west = UtcOffset::from_hms(-1, 0, 0).unwrap();
        let late = PrimitiveDateTime::MAX.assume_offset(west);
        assert_eq!(http_date(late), "Fri, 31 Dec 9999 23:59:59 GMT");
    }

    #[test]
    fn any_time_reads_as_the_description_of_its_form_says() {
        let iso = format_description!("[year][month][day]T[hour][minute][second]Z");
        for n in 0..5000 {
            // Up to the year 9999, some four and a half years apart.
            let t = OffsetDateTime::from_unix_timestamp(n * 50_679_113 % 253_402_300_800).unwrap();
            assert_eq!(http_date(t), t.format(IMF).unwrap());
            assert_eq!(iso_basic(t), t.format(iso).unwrap());
            assert_eq!(parse_iso_basic(&iso_basic(t)), Some(t));
        }
    }

    #[test]
    fn other_text_is_no_time() {
        for text in [
            "",
            "20130524",
            "20130524T000000",
            "20131324T000000Z",
            "20130524T000000Zx",
            "20130524T240000Z",
            "20130524T0000000",
            "2013052/T000000Z",
            "+0130524T000000Z",
        ] {
            assert_eq!(parse_iso_basic(text), None, "{text}");
        }
        for text in ["", "yesterday", "Fri, 32 May 2013 00:00:00 GMT"] {
            assert_eq!(parse_http_date(text), None, "{text}");
        }
    }
}
