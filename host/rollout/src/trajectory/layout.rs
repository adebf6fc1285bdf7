//! Offsets of the parts of a written trajectory that a caller's report replaces, and their replacement.
//!
//! A document is written once, part by part, and the offsets are recorded meanwhile. A report is put into a copy of the
//! file at these offsets. The document is not parsed, so the memory does not depend on its size.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde::{Serialize, Serializer};

use super::extra::Member;
use super::replace::{replace, sibling};
use crate::model::{Layout, StepOffsets};
use rollout_wire::atif::{FinalMetrics, Metrics};

/// Offsets in a document that is being written.
pub(super) struct Marks {
    written: Rc<Cell<u64>>,
    layout: RefCell<Layout>,
}

impl Marks {
    /// Returns the number of bytes written so far.
    pub(super) fn here(&self) -> u64 {
        self.written.get()
    }

    /// Records an offset.
    pub(super) fn note(&self, note: impl FnOnce(&mut Layout)) {
        note(&mut self.layout.borrow_mut());
    }
}

/// A value whose offset is recorded when it is written.
pub(super) struct Marked<'a, T> {
    pub value: T,
    pub marks: &'a Marks,
    pub note: fn(&mut Layout, Range<u64>),
}

impl<T: Serialize> Serialize for Marked<'_, T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let start = self.marks.here();
        let done = self.value.serialize(to)?;
        self.marks.note(|layout| (self.note)(layout, start..self.marks.here()));
        Ok(done)
    }
}

/// Counts the written bytes.
struct Counting<W> {
    to: W,
    written: Rc<Cell<u64>>,
}

impl<W: Write> Write for Counting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.to.write(bytes)?;
        self.written.set(self.written.get() + count as u64);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Writes a document and returns its offsets.
pub(super) fn write<D: Serialize>(
    to: &mut impl Write,
    document: impl FnOnce(Rc<Marks>) -> D,
) -> io::Result<Layout> {
    let written = Rc::new(Cell::new(0));
    let marks = Rc::new(Marks { written: written.clone(), layout: RefCell::default() });
    serde_json::to_writer_pretty(Counting { to, written }, &document(marks.clone()))?;
    Ok(marks.layout.take())
}

/// Values of a report for one document.
#[derive(Default)]
pub struct Amendment<'a> {
    /// The model, as the caller knows it.
    pub model_name: Option<&'a str>,
    /// Returns the values for the agent's steps, one after the other.
    pub steps: Option<&'a GiveSteps<'a>>,
    /// Replacement of the sums; the number of steps stays.
    pub final_metrics: Option<FinalMetrics<'a>>,
    /// Members of the protocol's object under `extra`.
    pub members: Vec<(&'static str, Member<'a>)>,
}

/// Passes the values for each step to a function.
pub(super) type GiveSteps<'a> = dyn Fn(&mut TakeStep<'_>) -> io::Result<()> + 'a;

/// Function that receives the values for the next step.
pub type TakeStep<'t> = dyn FnMut(StepAmendment<'_>) -> io::Result<()> + 't;

/// Values of a report for the call behind a step.
#[derive(Default)]
pub struct StepAmendment<'a> {
    /// The model that wrote it.
    pub model_name: Option<&'a str>,
    /// Usage. Without a value, the observed one stays.
    pub metrics: Option<Metrics<'a>>,
}

/// A trajectory without any report, kept while another report may arrive.
#[derive(Debug)]
pub(super) struct Original {
    path: PathBuf,
}

impl Original {
    /// Links the file at this path under a second name.
    pub(super) fn keep(path: &Path) -> io::Result<Self> {
        let kept = sibling(path, ".original");
        match std::fs::hard_link(path, &kept) {
            Ok(()) => {}
            // An earlier process left the link, or the file system has no links.
            Err(_) => {
                let _ = std::fs::remove_file(&kept);
                std::fs::copy(path, &kept)?;
            }
        }
        Ok(Self { path: kept })
    }

    /// Replaces the file at this path by the file with an amendment.
    pub(super) fn amend(&self, layout: &Layout, amendment: &Amendment<'_>, path: &Path) -> io::Result<()> {
        let from = BufReader::new(File::open(&self.path)?);
        replace(path, |to| amended(from, to, layout, amendment))
    }
}

impl Drop for Original {
    fn drop(&mut self) {
        // A link that cannot be removed now is removed when the rollout runs again.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Writes a document with an amendment.
pub(super) fn amended(
    from: impl Read,
    to: &mut impl Write,
    layout: &Layout,
    amendment: &Amendment<'_>,
) -> io::Result<()> {
    let mut copy = Copy { from, to, at: 0 };
    if let Some(name) = amendment.model_name {
        copy.replace(&layout.model_name, |to| Ok(serde_json::to_writer(to, name)?))?;
    }
    if let Some(steps) = amendment.steps {
        let mut places = layout.agent_steps.iter();
        steps(&mut |step| match places.next() {
            Some(place) => copy.amend_step(place, &step),
            None => Ok(()),
        })?;
    }
    if let Some(sums) = &amendment.final_metrics {
        let sums = FinalMetrics { total_steps: layout.total_steps, ..sums.clone() };
        copy.replace(&layout.final_metrics, |to| Ok(serde_json::to_writer(to, &sums)?))?;
    }
    if let Some((_, last)) = layout.members.last() {
        let is_new = |name: &str| amendment.members.iter().any(|(new, _)| *new == name);
        for (_, place) in layout.members.iter().filter(|(name, _)| is_new(name)) {
            copy.replace(place, |_| Ok(()))?;
        }
        copy.until(last.end)?;
        for (name, value) in &amendment.members {
            write!(copy.to, ",\n      \"{name}\": ")?;
            serde_json::to_writer(&mut *copy.to, value)?;
        }
    }
    copy.rest()
}

/// A copy in progress, in which parts are replaced from front to back.
struct Copy<'t, R, W> {
    from: R,
    to: &'t mut W,
    at: u64,
}

impl<R: Read, W: Write> Copy<'_, R, W> {
    fn until(&mut self, end: u64) -> io::Result<()> {
        let wanted = end.saturating_sub(self.at);
        if io::copy(&mut (&mut self.from).take(wanted), self.to)? < wanted {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at += wanted;
        Ok(())
    }

    fn skip_to(&mut self, end: u64) -> io::Result<()> {
        let unwanted = end.saturating_sub(self.at);
        io::copy(&mut (&mut self.from).take(unwanted), &mut io::sink())?;
        self.at += unwanted;
        Ok(())
    }

    fn replace(
        &mut self,
        place: &Range<u64>,
        write: impl FnOnce(&mut W) -> io::Result<()>,
    ) -> io::Result<()> {
        self.until(place.start)?;
        write(self.to)?;
        self.skip_to(place.end)
    }

    fn amend_step(&mut self, place: &StepOffsets, step: &StepAmendment<'_>) -> io::Result<()> {
        self.until(place.at)?;
        if let Some(name) = step.model_name {
            self.to.write_all(b",\n      \"model_name\": ")?;
            serde_json::to_writer(&mut *self.to, name)?;
        }
        if let Some(metrics) = &step.metrics {
            self.to.write_all(b",\n      \"metrics\": ")?;
            serde_json::to_writer(&mut *self.to, metrics)?;
            self.skip_to(place.metrics_end)?;
        }
        self.until(place.metrics_end)?;
        self.to.write_all(b",\n      \"llm_call_count\": 1")?;
        self.skip_to(place.end)
    }

    fn rest(mut self) -> io::Result<()> {
        io::copy(&mut self.from, self.to).map(drop)
    }
}
