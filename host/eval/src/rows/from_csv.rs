//! Reads rows from CSV or TSV: a header, commas or tabs, double quotes.

use super::cell::Cell;
use super::cells::check_names;
use super::{Collector, Position};

/// Reads every record. A record with more or fewer fields than the header is refused.
pub(super) fn read(bytes: &[u8], delimiter: u8, found: &mut Collector<'_>) {
    let mut reader = csv::ReaderBuilder::new().delimiter(delimiter).from_reader(bytes);
    let mut lines = Lines { bytes, counted: 0, line: 1 };
    let names: Vec<String> = match reader.headers() {
        Ok(headers) => headers.iter().map(str::to_owned).collect(),
        Err(error) => return found.bad_row(Position::Header, problem(&error, delimiter)),
    };
    if names.is_empty() {
        return;
    }
    if let Err(what) = check_names(&names, found.columns()) {
        return found.bad_row(Position::Header, what);
    }
    for record in reader.records() {
        match record {
            Ok(record) => {
                let position = lines.position(record.position());
                let cells = record.iter().map(|text| match text {
                    "" => Cell::Null,
                    text => Cell::Text(text.to_owned()),
                });
                found.row(position, names.iter().cloned().zip(cells).collect());
            }
            Err(error) => found.bad_row(lines.position(error.position()), problem(&error, delimiter)),
        }
    }
}

fn problem(error: &csv::Error, delimiter: u8) -> String {
    let delimiter = if delimiter == b'\t' { "tab" } else { "comma" };
    match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => format!(
            "{len} fields where the header has {expected_len}; \
             put a field with a {delimiter}, quote or line break into double quotes"
        ),
        csv::ErrorKind::Utf8 { err, .. } => {
            format!("field {} is not UTF-8; save the file as UTF-8", err.field() + 1)
        }
        _ => format!("not CSV ({error}); correct it"),
    }
}

/// Computes line numbers from byte offsets. The line that the csv reader reports for a record is one too small after a
/// blank line and after CR LF.
struct Lines<'a> {
    bytes: &'a [u8],
    counted: usize,
    line: usize,
}

impl Lines<'_> {
    fn position(&mut self, position: Option<&csv::Position>) -> Position {
        let offset = position.map_or(self.counted as u64, csv::Position::byte);
        let mut start = usize::try_from(offset).unwrap_or(usize::MAX);
        while matches!(self.bytes.get(start), Some(b'\r' | b'\n')) {
            start += 1;
        }
        let passed = self.bytes.get(self.counted..start).unwrap_or_default();
        self.line += passed.iter().filter(|&&byte| byte == b'\n').count();
        self.counted = start.max(self.counted);
        Position::Line(self.line)
    }
}
