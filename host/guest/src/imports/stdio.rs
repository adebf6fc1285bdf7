//! A guest's standard output and error, line by line into the rollout's log.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

use super::record::{LogEntry, LogLevel, Record};
use rollout_core::limits::Limits;
use rollout_wire::text::printable;

/// Maximum length of a line in bytes; longer lines are split.
const LINE_BYTES_MAX: usize = 4096;

/// Number of bytes that a guest may write at once.
const WRITE_BYTES_MAX: usize = 4096;

/// A guest's standard output or error. Clones write to the same line.
#[derive(Clone)]
pub(super) struct LogStream(Arc<Shared>);

struct Shared {
    record: Arc<Record>,
    limits: Arc<Limits>,
    level: LogLevel,
    line: Mutex<Vec<u8>>,
}

impl LogStream {
    pub(super) fn new(record: Arc<Record>, limits: Arc<Limits>, level: LogLevel) -> Self {
        Self(Arc::new(Shared { record, limits, level, line: Mutex::default() }))
    }
}

impl Shared {
    /// Adds bytes to the current line and logs each finished line. The log counts and drops lines that exceed
    /// its limits, so a guest's print never fails.
    fn take(&self, bytes: &[u8]) {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            for part in piece.chunks(LINE_BYTES_MAX) {
                if line.len() + part.len() > LINE_BYTES_MAX {
                    self.write_line(&mut line);
                }
                line.extend_from_slice(part);
            }
            if line.last() == Some(&b'\n') {
                line.pop();
                self.write_line(&mut line);
            }
        }
    }

    fn write_line(&self, line: &mut Vec<u8>) {
        let text = String::from_utf8_lossy(line);
        let entry = || LogEntry::Line { level: self.level, text: printable(&text) };
        self.record.lock().log(text.len(), &self.limits, entry);
        line.clear();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let mut line = std::mem::take(self.line.get_mut().unwrap_or_else(PoisonError::into_inner));
        if !line.is_empty() {
            self.write_line(&mut line);
        }
    }
}

impl IsTerminal for LogStream {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for LogStream {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

impl AsyncWrite for LogStream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        self.0.take(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Pollable for LogStream {
    fn ready<'a, 'b>(&'a mut self) -> Pin<Box<dyn Future<Output = ()> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(std::future::ready(()))
    }
}

impl OutputStream for LogStream {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.0.take(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(WRITE_BYTES_MAX)
    }
}
