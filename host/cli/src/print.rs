//! What a command writes: the one way to standard output and to standard error.
//!
//! The reader of a stream may go away (`… | head`) or stop reading, and neither may take down
//! what the command does. So nothing here fails or panics. What standard output did not take is
//! remembered, and [`finish`] makes the exit code of it. Standard error is written by a thread
//! of its own once [`queue_errors`] was called, so that no task waits for whoever reads it.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Bytes that wait for standard error to be read. A reader that is late for a moment loses
/// nothing at thousands of lines a second, and one that is gone costs no more than this.
const QUEUE_BYTES_MAX: usize = 4 << 20;

/// How long a server that ends waits for a standard error of which nothing is read.
const STUCK_TIME_MAX: Duration = Duration::from_secs(5);

/// The pause before a stream is tried again that somebody else made non-blocking.
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

/// Use [`out!`] and [`outln!`].
pub(super) fn write_out(text: fmt::Arguments<'_>) {
    if OUT_FAILED.get().is_some() {
        return;
    }
    // In one piece, so that lines of several threads do not mix.
    if let Err(error) = write_to(&io::stdout(), text.to_string().as_bytes()) {
        let _ = OUT_FAILED.set(error);
    }
}

/// Use [`err!`] and [`errln!`].
pub(super) fn write_err(text: fmt::Arguments<'_>) {
    match ERRORS.get() {
        Some(queue) => queue.push(text.to_string().as_bytes()),
        // Nobody is left to whom a failure could be reported.
        None => drop(write_to(&io::stderr(), text.to_string().as_bytes())),
    }
}

/// Standard output for data that is not text, or not lines. A failure is remembered and reported, and
/// nothing is written afterwards.
pub(super) struct OutWriter;

impl OutWriter {
    /// Whether it takes nothing more.
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

/// What came of standard output.
#[derive(Debug)]
pub(super) enum Written {
    /// All of it was taken.
    All,
    /// Its reader went away before the end, which is for the reader to decide.
    ReaderGone,
    /// It failed, such as a disk that is full.
    Failed(&'static io::Error),
}

/// What came of standard output until now.
pub(super) fn written() -> Written {
    match OUT_FAILED.get() {
        None => Written::All,
        Some(error) if error.kind() == io::ErrorKind::BrokenPipe => Written::ReaderGone,
        Some(error) => Written::Failed(error),
    }
}

/// Writes everything, whatever the stream was made by those who share it.
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

/// What becomes of a line for which the queue has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WhenFull {
    /// It is left out and counted: a server goes on whoever reads its log.
    LeaveOut,
    /// Its writer waits: a command at a terminal loses nothing.
    Wait,
}

/// From now on a thread writes standard error; panics are written by it, too. The thread lives
/// as long as the process.
pub(super) fn queue_errors(when_full: WhenFull) -> io::Result<()> {
    let queue = ErrorQueue::new(when_full);
    let taking = queue.clone();
    std::thread::Builder::new()
        .name("standard-error".to_owned())
        .spawn(move || taking.write_all_to(&io::stderr()))?;
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

/// Waits until standard error has been written, as far as somebody reads it.
pub(super) fn flush_errors() {
    if let Some(queue) = ERRORS.get() {
        queue.flush();
    }
}

/// Where log lines are written to; one `write` is one line.
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

/// Lines on their way to standard error.
#[derive(Clone)]
struct ErrorQueue(Arc<Shared>);

struct Shared {
    when_full: WhenFull,
    state: Mutex<State>,
    /// There is something to write.
    filled: Condvar,
    /// Something was written.
    taken: Condvar,
}

#[derive(Default)]
struct State {
    lines: VecDeque<Vec<u8>>,
    /// Of the lines, and of the one that is being written.
    bytes: usize,
    left_out: u64,
    /// The stream takes nothing more.
    closed: bool,
}

impl ErrorQueue {
    fn new(when_full: WhenFull) -> Self {
        let (state, filled, taken) = Default::default();
        Self(Arc::new(Shared { when_full, state, filled, taken }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: &[u8]) {
        let mut state = self.state();
        // One line is taken whatever its length, where it is the only one.
        while state.bytes > 0 && state.bytes + line.len() > QUEUE_BYTES_MAX && !state.closed {
            if self.0.when_full == WhenFull::LeaveOut {
                state.left_out += 1;
                return;
            }
            state = self.0.taken.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if !state.closed {
            state.bytes += line.len();
            state.lines.push_back(line.to_vec());
            self.0.filled.notify_one();
        }
    }

    /// Writes what comes, for as long as the stream takes it.
    fn write_all_to(&self, stream: &impl AsFd) {
        loop {
            let (line, left_out) = self.next();
            if left_out > 0 {
                tracing::warn!(left_out, "log lines were left out, because standard error was not read");
            }
            let result = write_to(stream, &line);
            let mut state = self.state();
            state.bytes -= line.len();
            if result.is_err() {
                *state = State { closed: true, ..State::default() };
            }
            self.0.taken.notify_all();
            if state.closed {
                return;
            }
        }
    }

    /// The next line, and how many were left out before there was room again.
    fn next(&self) -> (Vec<u8>, u64) {
        let mut state = self.state();
        loop {
            if let Some(line) = state.lines.pop_front() {
                // There must be room for the line that says so.
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
                self.0.taken.wait_timeout(state, STUCK_TIME_MAX).unwrap_or_else(PoisonError::into_inner);
            state = next;
            let is_stuck = waited.timed_out() && state.bytes == before;
            if is_stuck && self.0.when_full == WhenFull::LeaveOut {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn queue(when_full: WhenFull) -> (ErrorQueue, io::PipeReader) {
        let (reader, writer) = io::pipe().unwrap();
        let queue = ErrorQueue::new(when_full);
        let taking = queue.clone();
        std::thread::spawn(move || taking.write_all_to(&writer));
        (queue, reader)
    }

    #[test]
    fn a_reader_that_is_stuck_holds_up_nobody_and_what_it_missed_is_counted() {
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
