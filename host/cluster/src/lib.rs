//! Logs of workers, replicated on NATS JetStream, and the owners of these logs.
//!
//! A worker's *log* has the records of all its journals, in order, in messages of one subject. [`Cluster::connect`]
//! connects a process. [`Cluster::claim`] claims a log: the process's own when it starts, or that of a dead worker.
//! [`ClaimedLog::rebuild`] writes the journals' directories from the log. [`ClaimedLog::writer`] returns a writer that
//! continues the log, and [`LogWriter::replica`] returns the replica for a journal's settings.
//!
//! A claim is a compare-and-set in a bucket, and then a *fence* in the log with a new epoch. Each message expects to
//! follow the last one, so the former owner's next append fails, and [`LogWriter::fenced`] returns. That process stops.
//!
//! A catalog that several workers share has a log and an object store of its own: [`Cluster::catalog`]. Its workers load a
//! version of a plugin before it becomes active: [`Cluster::staging`].
//!
//! A worker sends [heartbeats](ClaimedLog::announce). [`Cluster::members`] watches the heartbeats of all workers, and lists the
//! logs with an expired lease. [`ClaimedLog::quotas`] leases parts of tenants' quotas for a worker.

mod catalog;
mod check;
mod claim;
mod connect;
mod entry;
mod error;
mod finding;
mod inspect;
mod leases;
mod logs;
mod members;
mod message;
mod objects;
mod read;
mod settings;
mod staging;
mod storage;
mod usage;
mod writer;

pub use catalog::{CatalogChanges, CatalogLog};
pub use check::{check, connect_checked};
pub use claim::{Claim, ClaimedLog, Heartbeats};
pub use connect::Cluster;
pub use entry::WorkerState;
pub use error::{ClaimError, ClusterError, LogDamage};
pub use finding::{Finding, Severity};
pub use leases::{LeasedSlots, QuotaLeases, SharedQuotas, SlotDemand};
pub use logs::{ForgetError, ListedLog};
pub use members::{Member, Members};
pub use read::RebuiltJournal;
pub use settings::{ClusterSettings, WrongSetting};
pub use staging::{Reservation, StageVersions, StagedVersion, Staging, StagingError};
pub use usage::{MeteredTenants, SharedUsage, UsageExchange};
pub use writer::LogWriter;
