//! The access log: one line a request. A request leaves its facts in a buffer of its thread; one
//! thread makes lines of them and writes these out. Requests never wait for it: those that find
//! the buffer full are dropped and counted.
//!
//! Requests gather for [`GATHER`]. Code and tables that make a line are out of the processor's
//! caches after a request, which makes one line four times as expensive as one of many in a row.
//! Threads have buffers of their own, so that they do not wait for each other.
//!
//! A log may be turned on, off, and to another file at any time. A request looks at one flag to see
//! whether it is on.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};
use prism_handoff::observe::Count;
use rustix::fs::{OFlags, fcntl_setfl};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

mod lines;
mod waiting;

use self::lines::LineMaker;
use self::waiting::{Batch, Facts, Texts};
use crate::observe::Answered;

/// The time in which requests gather before their lines are written.
const GATHER: Duration = Duration::from_millis(100);
/// Bytes of lines that are written at once. They stay in the processor's caches.
const WRITE_BYTES: usize = 64 << 10;
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

/// The form of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessLogForm {
    /// An object of JSON, with all that is known.
    #[default]
    Json,
    /// The combined log format of Apache and nginx.
    Combined,
}

/// An access log. Its last lines are written when it is dropped, if that takes no longer than 2 s.
#[derive(Debug, Default)]
pub struct AccessLog {
    shared: Arc<Shared>,
    writer: Mutex<Writer>,
}

#[derive(Debug, Default)]
struct Writer {
    to: AccessLogTo,
    form: AccessLogForm,
    /// The thread that writes; `None` until the log is on for the first time.
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    is_on: AtomicBool,
    work: Mutex<Work>,
    has_work: Condvar,
    dropped: Count,
}

/// The work of the thread that writes.
#[derive(Debug, Default)]
struct Work {
    /// The requests of each thread that wait.
    waiting: Vec<Arc<Mutex<Batch>>>,
    /// Whether any wait.
    has_requests: bool,
    /// The new place and form of lines, also of requests that wait. If it is nowhere, they still go
    /// to the old one.
    next: Option<(Output, AccessLogForm)>,
    is_ending: bool,
}

/// The access log as one thread writes to it.
#[derive(Debug)]
pub(crate) struct LogOfThread {
    waiting: Arc<Mutex<Batch>>,
    shared: Arc<Shared>,
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
    pub fn open(to: &AccessLogTo, form: AccessLogForm) -> io::Result<Self> {
        let log = Self::default();
        log.turn_to(to, form)?;
        Ok(log)
    }

    /// Writes the requests that end from now on to another place, or in another form.
    ///
    /// # Errors
    /// The file cannot be opened, or the thread cannot be started. The log stays as it was.
    pub fn turn_to(&self, to: &AccessLogTo, form: AccessLogForm) -> io::Result<()> {
        self.open_in(&mut self.writer.lock(), to, form)
    }

    /// Opens the file again by its name, after it was renamed.
    ///
    /// # Errors
    /// The file cannot be opened. The log stays as it was.
    pub fn reopen(&self) -> io::Result<()> {
        let mut writer = self.writer.lock();
        let to = writer.to.clone();
        let form = writer.form;
        self.open_in(&mut writer, &to, form)
    }

    fn open_in(
        &self,
        writer: &mut Writer,
        to: &AccessLogTo,
        form: AccessLogForm,
    ) -> io::Result<()> {
        let output = Output::open(to)?;
        let is_on = *to != AccessLogTo::Nowhere;
        if is_on && writer.thread.is_none() {
            let work = self.shared.clone();
            let thread = std::thread::Builder::new();
            writer.thread = Some(
                thread
                    .name("access-log".into())
                    .spawn(move || work.write_all())?,
            );
        }
        writer.to = to.clone();
        writer.form = form;
        self.shared.work.lock().next = Some((output, form));
        self.shared.is_on.store(is_on, Ordering::Relaxed);
        self.shared.has_work.notify_one();
        Ok(())
    }

    /// The log for the calling thread.
    pub(crate) fn of_thread(&self) -> LogOfThread {
        let waiting = Arc::<Mutex<Batch>>::default();
        self.shared.work.lock().waiting.push(waiting.clone());
        LogOfThread {
            waiting,
            shared: self.shared.clone(),
        }
    }

    /// Whether requests are written.
    pub fn is_on(&self) -> bool {
        self.shared.is_on.load(Ordering::Relaxed)
    }

    /// Lines that were dropped because the buffer was full, or could not be written.
    pub fn dropped_lines(&self) -> u64 {
        self.shared.dropped.read()
    }
}

impl LogOfThread {
    /// Adds a request that ends now, if the log is on.
    pub(crate) fn write(&self, answered: &Answered<'_>) {
        if !self.shared.is_on.load(Ordering::Relaxed) {
            return;
        }
        let mut waiting = self.waiting.lock();
        if waiting.is_full() {
            return self.shared.dropped.add_one();
        }
        let is_first = waiting.len() == 0;
        waiting.add(answered, SystemTime::now());
        drop(waiting);
        if is_first {
            self.shared.work.lock().has_requests = true;
            self.shared.has_work.notify_one();
        }
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.shared.work.lock().is_ending = true;
        self.shared.has_work.notify_one();
        let thread = &self.writer.get_mut().thread;
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
    /// Writes lines until the log ends.
    fn write_all(&self) {
        let mut batches = Vec::<Batch>::new();
        let mut writer = LineWriter::new(&self.dropped);
        let mut is_ending = false;
        while !is_ending {
            self.has_work.wait_while(&mut self.work.lock(), |work| {
                !work.has_requests && work.next.is_none() && !work.is_ending
            });
            std::thread::sleep(GATHER);
            let next;
            (next, is_ending) = self.work.lock().take(&mut batches);
            let is_last = matches!(next, Some((Output::Nowhere, _)));
            let (before, after) = if is_last { (None, next) } else { (next, None) };
            writer.turn_to(before);
            for batch in &mut batches {
                batch.drain(|facts, texts| writer.add(facts, texts));
            }
            writer.write();
            writer.turn_to(after);
        }
    }
}

impl Work {
    /// Takes the requests that wait, in exchange for as many empty batches, the new place, and
    /// whether the log ends. A request that is added after a place was set goes to that place.
    fn take(&mut self, batches: &mut Vec<Batch>) -> (Option<(Output, AccessLogForm)>, bool) {
        batches.resize_with(self.waiting.len(), Batch::default);
        for (waiting, batch) in self.waiting.iter().zip(batches) {
            std::mem::swap(&mut *waiting.lock(), batch);
        }
        self.has_requests = false;
        (self.next.take(), self.is_ending)
    }
}

/// Makes lines and writes many at once.
struct LineWriter<'s> {
    maker: LineMaker,
    lines: u64,
    output: Output,
    /// Whether the last lines could be written.
    works: bool,
    dropped: &'s Count,
}

impl<'s> LineWriter<'s> {
    fn new(dropped: &'s Count) -> Self {
        Self {
            maker: LineMaker::default(),
            lines: 0,
            output: Output::Nowhere,
            works: true,
            dropped,
        }
    }

    fn turn_to(&mut self, next: Option<(Output, AccessLogForm)>) {
        if let Some((output, form)) = next {
            self.output = output;
            self.maker.set_form(form);
        }
    }

    fn add(&mut self, facts: &Facts, texts: &Texts<'_>) {
        self.maker.add(facts, texts);
        self.lines += 1;
        if self.maker.lines().len() >= WRITE_BYTES {
            self.write();
        }
    }

    /// Writes the lines that were made.
    fn write(&mut self) {
        if self.lines == 0 {
            return;
        }
        let written = self.output.write_all(self.maker.lines());
        if let Err(error) = &written {
            self.dropped.add(self.lines);
            if self.works {
                tracing::warn!(%error, "cannot write the access log; its lines are dropped");
            }
        }
        self.works = written.is_ok();
        self.maker.clear();
        self.lines = 0;
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
    String::from_utf8_lossy(&request_id_digits(id)).into_owned()
}

fn request_id_digits(id: u64) -> [u8; 16] {
    std::array::from_fn(|n| {
        let digit = (id >> (60 - 4 * n)) as u8 & 0xf;
        digit + if digit < 10 { b'0' } else { b'A' - 10 }
    })
}

#[cfg(test)]
#[path = "access_log_tests.rs"]
mod tests;
