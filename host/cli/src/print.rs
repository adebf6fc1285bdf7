//! Standard output and standard error of the commands.
//!
//! The reader of a stream may go away (`… | head`) or stop reading, and neither may stop the command's work,
//! so nothing here fails or panics. The first failure of standard output is stored for the exit code, see
//! [`output_status`]. After [`queue_errors`], a thread writes standard error, so that no task waits for its
//! reader.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Maximum number of bytes queued for standard error: enough for a short delay of the reader at thousands of
/// lines a second.
const QUEUE_BYTES_MAX: usize = 4 << 20;

/// Maximum time that a stopping server waits for a standard error that is not read.
const STUCK_TIME_MAX: Duration = Duration::from_secs(5);

/// Pause before a retry if another process made the stream non-blocking.
const WOULD_BLOCK_PAUSE: Duration = Duration::from_millis(5);

/// Writes to standard output, as `print!` does, and never fails.
macro_rules! out {
    ($($arg:tt)*) => { $crate::print::write_out(format_args!($($arg)*)) };
}

/// Writes a line to standard output, as `println!` does, and never fails.
macro_rules! outln {
    () => { $crate::print::write_out(format_args!("\n")) };
    ($($arg:tt)*) => { $crate::print::write_out(format_args!("{}\n", format_args!($($arg)*))) };
}

/// Writes to standard error, as `eprint!` does, and never fails.
macro_rules! err {
    ($($arg:tt)*) => { $crate::print::write_err(format_args!($($arg)*)) };
}

/// Writes a line to standard error, as `eprintln!` does, and never fails.
macro_rules! errln {
    ($($arg:tt)*) => { $crate::print::write_err(format_args!("{}\n", format_args!($($arg)*))) };
}

pub(super) use {err, errln, out, outln};

/// The first failure of standard output; nothing is written to it afterwards.
static OUT_FAILED: OnceLock<io::Error> = OnceLock::new();

static ERRORS: OnceLock<ErrorQueue> = OnceLock::new();

/// Writes to standard output; use [`out!`] and [`outln!`].
pub(super) fn write_out(text: fmt::Arguments<'_>) {
    if OUT_FAILED.get().is_some() {
        return;
    }
    // In one piece, so that lines of several threads do not mix.
    if let Err(error) = write_to(&io::stdout(), text.to_string().as_bytes()) {
        let _ = OUT_FAILED.set(error);
    }
}

/// Writes to standard error; use [`err!`] and [`errln!`].
pub(super) fn write_err(text: fmt::Arguments<'_>) {
    match ERRORS.get() {
        Some(queue) => queue.push(text.to_string().as_bytes()),
        // A failure of standard error cannot be reported.
        None => drop(write_to(&io::stderr(), text.to_string().as_bytes())),
    }
}

/// Writer of data to standard output. The first failure is stored, see [`output_status`], and nothing is
/// written afterwards.
pub(super) struct OutWriter;

impl OutWriter {
    /// Returns whether standard output has failed.
    pub(crate) fn has_failed() -> bool {
        OUT_FAILED.get().is_some()
    }
}

impl Write for OutWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match OUT_FAILED.get() {
            Some(error) => return Err(error.kind().into()),
            None => write_to(&io::stdout(), bytes),
        }
        .map(|()| bytes.len())
        .map_err(|error| {
            let kind = error.kind();
            let _ = OUT_FAILED.set(error);
            kind.into()
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// State of standard output.
#[derive(Debug)]
pub(super) enum OutputStatus {
    /// Everything was written.
    All,
    /// The reader closed the stream.
    ReaderGone,
    /// Writing failed, for example because a disk is full.
    Failed(&'static io::Error),
}

/// Returns whether standard output has failed so far.
pub(super) fn output_status() -> OutputStatus {
    match OUT_FAILED.get() {
        None => OutputStatus::All,
        Some(error) if error.kind() == io::ErrorKind::BrokenPipe => OutputStatus::ReaderGone,
        Some(error) => OutputStatus::Failed(error),
    }
}

/// Writes all bytes, also if another process made the stream non-blocking.
fn write_to(stream: &impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    use rustix::io::Errno;
    while !bytes.is_empty() {
        match rustix::io::write(stream, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => std::thread::sleep(WOULD_BLOCK_PAUSE),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Policy for a line that does not fit into the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WhenFull {
    /// Drops and counts the line, so that a server never waits for the reader of its log.
    LeaveOut,
    /// Waits for room, so that a command at a terminal loses nothing.
    Wait,
}

/// Starts the thread that writes standard error, including panics, for the rest of the process's life.
pub(super) fn queue_errors(when_full: WhenFull) -> io::Result<()> {
    let queue = ErrorQueue::new(when_full);
    let writer_queue = queue.clone();
    std::thread::Builder::new()
        .name("standard-error".to_owned())
        .spawn(move || writer_queue.write_all_to(&io::stderr()))?;
    if ERRORS.set(queue).is_ok() {
        std::panic::set_hook(Box::new(|panic| {
            let trace = std::backtrace::Backtrace::capture();
            match trace.status() {
                std::backtrace::BacktraceStatus::Captured => errln!("{panic}\n{trace}"),
                _ => errln!("{panic}"),
            }
        }));
    }
    Ok(())
}

/// Waits until the queue of standard error is written. A server stops waiting if the stream is not read.
pub(super) fn flush_errors() {
    if let Some(queue) = ERRORS.get() {
        queue.flush();
    }
}

/// Writer of log lines; each `write` is one line.
pub(super) struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match ERRORS.get() {
            Some(queue) => queue.push(line),
            None => drop(write_to(&io::stderr(), line)),
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Queue of lines for standard error.
#[derive(Clone)]
struct ErrorQueue(Arc<Shared>);

struct Shared {
    when_full: WhenFull,
    state: Mutex<State>,
    /// Notified when a line is queued.
    filled: Condvar,
    /// Notified when a line was written.
    written: Condvar,
}

#[derive(Default)]
struct State {
    lines: VecDeque<Vec<u8>>,
    /// Number of bytes in `lines` and in the line that is being written.
    bytes: usize,
    left_out: u64,
    /// Whether the stream has failed.
    closed: bool,
}

impl ErrorQueue {
    fn new(when_full: WhenFull) -> Self {
        let (state, filled, written) = Default::default();
        Self(Arc::new(Shared { when_full, state, filled, written }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: &[u8]) {
        let mut state = self.state();
        // A line that is alone in the queue may have any length.
        while state.bytes > 0 && state.bytes + line.len() > QUEUE_BYTES_MAX && !state.closed {
            if self.0.when_full == WhenFull::LeaveOut {
                state.left_out += 1;
                return;
            }
            state = self.0.written.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if !state.closed {
            state.bytes += line.len();
            state.lines.push_back(line.to_vec());
            self.0.filled.notify_one();
        }
    }

    /// Writes queued lines until the stream fails.
    fn write_all_to(&self, stream: &impl AsFd) {
        loop {
            let (line, left_out) = self.next();
            if left_out > 0 {
                tracing::warn!(left_out, "log lines were dropped because standard error was not read");
            }
            let result = write_to(stream, &line);
            let mut state = self.state();
            state.bytes -= line.len();
            if result.is_err() {
                *state = State { closed: true, ..State::default() };
            }
            self.0.written.notify_all();
            if state.closed {
                return;
            }
        }
    }

    /// Waits for the next line. Returns it with the number of lines dropped since the last report.
    fn next(&self) -> (Vec<u8>, u64) {
        let mut state = self.state();
        loop {
            if let Some(line) = state.lines.pop_front() {
                // The report itself needs room in the queue.
                let there_is_room = state.bytes < QUEUE_BYTES_MAX / 2;
                let left_out = if there_is_room { std::mem::take(&mut state.left_out) } else { 0 };
                return (line, left_out);
            }
            state = self.0.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn flush(&self) {
        let mut state = self.state();
        while state.bytes > 0 {
            let before = state.bytes;
            let (next, waited) =
                self.0.written.wait_timeout(state, STUCK_TIME_MAX).unwrap_or_else(PoisonError::into_inner);
            state = next;
            let is_stuck = waited.timed_out() && state.bytes == before;
            if is_stuck && self.0.when_full == WhenFull::LeaveOut {
                return;
            }
        }
    }
}

/// Returns a number with a noun in the singular or plural.
pub(crate) fn counted<N: fmt::Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    format!("{count} {noun}{}", if count == N::from(1) { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn queue(when_full: WhenFull) -> (ErrorQueue, io::PipeReader) {
        let (reader, writer) = io::pipe().unwrap();
        let queue = ErrorQueue::new(when_full);
        let writer_queue = queue.clone();
        std::thread::spawn(move || writer_queue.write_all_to(&writer));
        (queue, reader)
    }

    #[test]
    fn a_stuck_reader_delays_no_writer_and_dropped_lines_are_counted() {
        let (queue, mut reader) = queue(WhenFull::LeaveOut);
        let line = vec![b'x'; 64 << 10];
        for _ in 0..200 {
            queue.push(&line);
        }
        let (bytes, left_out) = {
            let state = queue.state();
            (state.bytes, state.left_out)
        };
        assert!(bytes <= QUEUE_BYTES_MAX, "{bytes}");
        assert!((100..200).contains(&left_out), "{left_out}");

        let mut read = vec![0; (200 - left_out as usize) * line.len()];
        reader.read_exact(&mut read).unwrap();
        queue.flush();
        assert_eq!(queue.state().bytes, 0);
    }

    #[test]
    fn a_command_that_waits_for_its_reader_loses_nothing() {
        let (queue, mut reader) = queue(WhenFull::Wait);
        let line = vec![b'x'; 64 << 10];
        let expected = 200 * line.len();
        let writing = std::thread::spawn(move || {
            for _ in 0..200 {
                queue.push(&line);
            }
            queue.flush();
        });
        let mut read = vec![0; expected];
        reader.read_exact(&mut read).unwrap();
        writing.join().unwrap();
    }

    #[test]
    fn a_reader_that_is_gone_is_no_failure() {
        for when_full in [WhenFull::LeaveOut, WhenFull::Wait] {
            let (queue, reader) = queue(when_full);
            drop(reader);
            for _ in 0..200 {
                queue.push(&[b'x'; 64 << 10]);
            }
            queue.flush();
            assert_eq!(queue.state().bytes, 0);
        }
    }
}
