//! Lines go where the log is turned to.
#![allow(clippy::unwrap_used, reason = "test code")]

use super::*;
use crate::EndedBy;
use crate::observe::{About, LoggedHead};

pub(super) fn request<'t>(
    key: &'t str,
    access_key: Option<&'t str>,
    version: Option<&'t str>,
) -> Answered<'t> {
    Answered {
        about: About {
            is_administrative: false,
            operation: "GetObject",
            access_key,
            bucket: Some("photos"),
            key: Some(key),
            version,
            upstream: Some("/"),
        },
        head: LoggedHead {
            method: "GET",
            target: "/photos/k?a=\"&X-Amz-Signature=12ab",
            version: "1.1",
            host: Some("h:80"),
            user_agent: Some("curl/8"),
            referer: None,
            request_id: None,
        },
        id: 0x12ab,
        trace_id: Some([1; 16]),
        client: ([192, 0, 2, 1], 4000).into(),
        status: 404,
        error: Some("NoSuchKey"),
        ended_by: Some(EndedBy::Client),
        server: Some(([127, 0, 0, 1], 9000).into()),
        retries: 2,
        redirects: 1,
        is_redirect: false,
        bytes_in: 0,
        bytes_out: 7,
        first_byte: None,
        total: Duration::from_micros(9),
        frontend: "fe0",
        backend: "be0",
        is_relayed: false,
        hand_offs: 1,
        is_tls: true,
    }
}

/// The number of lines of a file, when it has so many or after a while.
fn lines_of(path: &Path, wanted: usize) -> usize {
    let begun = Instant::now();
    loop {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let lines = text.lines().count();
        if lines >= wanted || begun.elapsed() > Duration::from_secs(10) {
            return lines;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_log_turns_on_off_and_to_another_file_and_a_fault_leaves_it() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (
        directory.path().join("first"),
        directory.path().join("second"),
    );
    let to = |path: &Path| AccessLogTo::File(path.to_owned());
    let log = AccessLog::default();
    let of_thread = log.of_thread();
    of_thread.write(&request("off", None, None));
    log.turn_to(&to(&first), AccessLogForm::Json).unwrap();
    of_thread.write(&request("first", None, None));
    assert_eq!(lines_of(&first, 1), 1);
    let pipe = directory.path().join("pipe");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    for bad in [&pipe, Path::new("/nowhere/log")] {
        log.turn_to(&to(bad), AccessLogForm::Json).unwrap_err();
    }
    of_thread.write(&request("first", None, None));
    assert_eq!(lines_of(&first, 2), 2);
    log.turn_to(&to(&second), AccessLogForm::Json).unwrap();
    of_thread.write(&request("second", None, None));
    assert_eq!(lines_of(&second, 1), 1);
    // The lines that wait still go to the old file.
    of_thread.write(&request("second", None, None));
    log.turn_to(&AccessLogTo::Nowhere, AccessLogForm::Json)
        .unwrap();
    of_thread.write(&request("off", None, None));
    assert!(!log.is_on());
    assert_eq!(lines_of(&second, 2), 2);
    drop(log);
    assert_eq!((lines_of(&first, 2), lines_of(&second, 2)), (2, 2));
}
