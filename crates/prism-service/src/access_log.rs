//! The access log: one line a request. A request adds its line to a buffer in memory, which one
//! thread writes out. Requests never wait for it: lines that find the buffer full are dropped and
//! counted.
//!
//! Lines gather for [`GATHER`], so that the writer wakes a few times a second. The queue of
//! `tracing-appender` wakes it for each line.
//!
//! A log may be turned on, off, and to another file at any time. A request looks at one flag to see
//! whether it is on.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use prism_handoff::Count;
use rustix::fs::{OFlags, fcntl_setfl};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

mod lines;

pub(crate) use self::lines::LineMaker;
use crate::observe::Answered;

/// Most bytes of lines that wait to be written: some 10,000 requests.
const MAX_BUFFER_BYTES: usize = 4 << 20;
/// The time in which lines gather before they are written.
const GATHER: Duration = Duration::from_millis(200);
/// Longest time for the last lines.
const LAST_LINES: Duration = Duration::from_secs(2);
/// The mode of a new file.
pub(crate) const FILE_MODE: u32 = 0o640;

/// The place of the lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AccessLogTo {
    /// Nowhere: the log is off.
    #[default]
    Nowhere,
    /// Standard output.
    Stdout,
    /// The end of this file.
    File(PathBuf),
}

/// An access log. Its last lines are written when it is dropped, if that takes no longer than 2 s.
#[derive(Debug, Default)]
pub struct AccessLog {
    is_on: AtomicBool,
    shared: Arc<Shared>,
    writer: Mutex<Writer>,
}

#[derive(Debug, Default)]
struct Writer {
    to: AccessLogTo,
    /// The thread that writes; `None` until the log is on for the first time.
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    buffer: Mutex<Buffer>,
    has_work: Condvar,
    dropped: Count,
}

#[derive(Debug, Default)]
struct Buffer {
    lines: Lines,
    /// The new place of lines, also of those that wait. If it is nowhere, they still go to the
    /// old one.
    next: Option<Output>,
    is_ending: bool,
}

#[derive(Debug, Default)]
struct Lines {
    text: Vec<u8>,
    count: u64,
}

/// An open place of lines.
#[derive(Debug)]
enum Output {
    Nowhere,
    Stdout,
    File(File),
}

impl AccessLog {
    /// Opens a log.
    ///
    /// # Errors
    /// The file cannot be opened, or the thread cannot be started.
    pub fn open(to: &AccessLogTo) -> io::Result<Self> {
        let log = Self::default();
        log.turn_to(to)?;
        Ok(log)
    }

    /// Writes the requests that end from now on to another place.
    ///
    /// # Errors
    /// The file cannot be opened, or the thread cannot be started. The log stays as it was.
    pub fn turn_to(&self, to: &AccessLogTo) -> io::Result<()> {
        self.open_in(&mut self.locked(), to)
    }

    /// Opens the file again by its name, after it was renamed.
    ///
    /// # Errors
    /// The file cannot be opened. The log stays as it was.
    pub fn reopen(&self) -> io::Result<()> {
        let mut writer = self.locked();
        let to = writer.to.clone();
        self.open_in(&mut writer, &to)
    }

    fn open_in(&self, writer: &mut Writer, to: &AccessLogTo) -> io::Result<()> {
        let output = Output::open(to)?;
        let is_on = *to != AccessLogTo::Nowhere;
        if is_on && writer.thread.is_none() {
            let (work, thread) = (self.shared.clone(), std::thread::Builder::new());
            writer.thread = Some(
                thread
                    .name("access-log".into())
                    .spawn(move || work.write_all())?,
            );
        }
        writer.to = to.clone();
        self.shared.locked().next = Some(output);
        self.is_on.store(is_on, Ordering::Relaxed);
        self.shared.has_work.notify_one();
        Ok(())
    }

    fn locked(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether requests are written.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Lines that were dropped because the buffer was full, or could not be written.
    pub fn dropped_lines(&self) -> u64 {
        self.shared.dropped.read()
    }

    /// Adds a request that ends now, if the log is on.
    pub(crate) fn write(&self, answered: &Answered<'_>, maker: &mut LineMaker) {
        if !self.is_on() {
            return;
        }
        let line = maker.line(answered, SystemTime::now());
        let mut buffer = self.shared.locked();
        let lines = &mut buffer.lines;
        if lines.text.len() + line.len() > MAX_BUFFER_BYTES {
            return self.shared.dropped.add_one();
        }
        let is_first = lines.count == 0;
        lines.text.extend_from_slice(line);
        lines.count += 1;
        drop(buffer);
        if is_first {
            self.shared.has_work.notify_one();
        }
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.shared.locked().is_ending = true;
        self.shared.has_work.notify_one();
        let writer = self.writer.get_mut();
        let thread = &writer.unwrap_or_else(PoisonError::into_inner).thread;
        // The reader of a pipe may read no more. The process ends all the same.
        let give_up = Instant::now() + LAST_LINES;
        while thread.as_ref().is_some_and(|thread| !thread.is_finished())
            && Instant::now() < give_up
        {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Shared {
    fn locked(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes lines until the log ends.
    fn write_all(&self) {
        let (mut lines, mut is_ending) = (Lines::default(), false);
        let (mut output, mut works) = (Output::Nowhere, true);
        while !is_ending {
            let waiting = self.has_work.wait_while(self.locked(), |buffer| {
                let is_idle = buffer.lines.count == 0 && !buffer.is_ending;
                is_idle && buffer.next.is_none()
            });
            drop(waiting);
            std::thread::sleep(GATHER);
            let next = {
                let mut buffer = self.locked();
                std::mem::swap(&mut buffer.lines, &mut lines);
                is_ending = buffer.is_ending;
                buffer.next.take()
            };
            let is_last = matches!(next, Some(Output::Nowhere));
            match next {
                Some(next) if !is_last => output = next,
                _ => {}
            }
            let written = output.write_all(&lines.text);
            if let Err(error) = &written {
                self.dropped.add(lines.count);
                if works {
                    tracing::warn!(%error, "cannot write the access log; its lines are dropped");
                }
            }
            works = written.is_ok();
            lines.text.clear();
            lines.count = 0;
            if is_last {
                output = Output::Nowhere;
            }
        }
    }
}

impl Output {
    fn open(to: &AccessLogTo) -> io::Result<Self> {
        Ok(match to {
            AccessLogTo::Nowhere => Self::Nowhere,
            AccessLogTo::Stdout => Self::Stdout,
            AccessLogTo::File(path) => Self::File(open_file(path)?),
        })
    }

    fn write_all(&mut self, lines: &[u8]) -> io::Result<()> {
        match self {
            Self::Nowhere => Ok(()),
            Self::Stdout => io::stdout().write_all(lines),
            Self::File(file) => file.write_all(lines),
        }
    }
}

/// Opens a file to append to it. A pipe without a reader is an error, instead of a wait for one.
fn open_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(FILE_MODE);
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let file = options.custom_flags(nonblocking).open(path)?;
    fcntl_setfl(&file, OFlags::APPEND)?;
    Ok(file)
}

/// A time in UTC, to the millisecond.
pub(crate) fn time_text(time: SystemTime) -> String {
    let time = OffsetDateTime::from(time);
    let millis = u32::from(time.millisecond()) * 1_000_000;
    let time = time.replace_nanosecond(millis).unwrap_or(time);
    time.format(&Rfc3339).unwrap_or_default()
}

/// The identifier of a request as clients and logs have it.
pub fn request_id_text(id: u64) -> String {
    let digits: [u8; 16] = std::array::from_fn(|n| {
        let digit = (id >> (60 - 4 * n)) as u8 & 0xf;
        digit + if digit < 10 { b'0' } else { b'A' - 10 }
    });
    String::from_utf8_lossy(&digits).into_owned()
}

#[cfg(test)]
#[path = "access_log_tests.rs"]
mod tests;
