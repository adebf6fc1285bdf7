//! The bytes on disk of a tenant's rollouts, charged before they are written.
//!
//! A tenant with a quota of stored bytes has one [`StorageQuota`]. It counts the bytes that cannot be deleted for new
//! ones: records of unfinished rollouts and unread results, which the journal reports, and [charges](StorageCharge) for
//! data that running rollouts hold in memory and write when they end. The rollout whose data would exceed the quota is
//! ended. Its data was charged before, so there is room for its outcome.
//!
//! This module counts bytes and knows nothing about rollouts: each account has a token that cancels one.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio_util::sync::CancellationToken;

/// Part of the room that no new rollout may use: one eighth, for the data of those that run.
const RESERVE_PART: u64 = 8;

/// Error of a quota of stored bytes that is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverStorage {
    /// The bytes in use, including the requested ones and those that are reserved.
    pub used: u64,
    /// The quota.
    pub max: u64,
}

/// A tenant's quota of stored bytes.
pub struct StorageQuota {
    bounds: Mutex<Bounds>,
    /// Bytes that are charged and not yet written.
    charged: AtomicU64,
    /// Returns the bytes of written data that cannot be deleted.
    retained: Box<dyn Fn() -> u64 + Send + Sync>,
}

#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// The quota.
    max: u64,
    /// The part of it for data that cannot be deleted.
    room: u64,
}

impl fmt::Debug for StorageQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StorageQuota").field("used", &self.used()).finish_non_exhaustive()
    }
}

impl StorageQuota {
    /// Creates the quota of a tenant, without a limit. `retained` returns the bytes of written data that cannot be
    /// deleted.
    pub fn new(retained: impl Fn() -> u64 + Send + Sync + 'static) -> Arc<Self> {
        let bounds = Bounds { max: u64::MAX, room: u64::MAX };
        Arc::new(Self { bounds: bounds.into(), charged: AtomicU64::new(0), retained: Box::new(retained) })
    }

    /// Sets the quota, and the part of it for data that cannot be deleted. `None` means unlimited.
    pub fn set(&self, quota: Option<(u64, u64)>) {
        let (max, room) = quota.unwrap_or((u64::MAX, u64::MAX));
        *self.bounds.lock().unwrap_or_else(PoisonError::into_inner) = Bounds { max, room };
    }

    fn bounds(&self) -> Bounds {
        *self.bounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the bytes that cannot be deleted, including those that are charged.
    fn used(&self) -> u64 {
        self.charged.load(Ordering::Relaxed).saturating_add((self.retained)())
    }

    fn over(bounds: Bounds, used: u64) -> OverStorage {
        OverStorage { used: used.saturating_add(bounds.max - bounds.room), max: bounds.max }
    }

    /// Checks that there is room for a new rollout beside the reserve for those that run.
    pub fn check_new(&self) -> Result<(), OverStorage> {
        let bounds = self.bounds();
        let reserve = bounds.room / RESERVE_PART;
        let used = self.used();
        match bounds.max == u64::MAX || used < bounds.room - reserve {
            true => Ok(()),
            false => Err(Self::over(bounds, used.saturating_add(reserve))),
        }
    }

    fn check(&self) -> Result<(), OverStorage> {
        let (bounds, used) = (self.bounds(), self.used());
        if used <= bounds.room { Ok(()) } else { Err(Self::over(bounds, used)) }
    }

    /// Opens the account of a running rollout. `end` is cancelled if the rollout's data would exceed the quota.
    pub fn account(self: &Arc<Self>, end: CancellationToken) -> Arc<StorageAccount> {
        Arc::new(StorageAccount { quota: self.clone(), over: OnceLock::new(), end })
    }
}

/// The account of a running rollout.
#[derive(Debug)]
pub struct StorageAccount {
    quota: Arc<StorageQuota>,
    over: OnceLock<OverStorage>,
    end: CancellationToken,
}

impl StorageAccount {
    /// Returns an empty charge that can grow.
    pub fn nothing(self: &Arc<Self>) -> StorageCharge {
        StorageCharge { account: self.clone(), bytes: 0 }
    }

    /// Charges bytes that are about to be written, until the charge is dropped. If there is no room for them, the
    /// rollout is ended.
    pub fn charge(self: &Arc<Self>, bytes: usize) -> Result<StorageCharge, OverStorage> {
        let mut charge = self.nothing();
        charge.grow(bytes)?;
        Ok(charge)
    }

    /// Ends the rollout if the data written so far exceeds the quota.
    pub fn check(&self) -> Result<(), OverStorage> {
        if let Some(over) = self.over.get() {
            return Err(*over);
        }
        self.quota.check().map_err(|over| self.exceed(over))
    }

    /// Returns the reason if the rollout was ended for the quota.
    pub fn excess(&self) -> Option<OverStorage> {
        self.over.get().copied()
    }

    fn exceed(&self, over: OverStorage) -> OverStorage {
        let over = *self.over.get_or_init(|| over);
        self.end.cancel();
        over
    }
}

/// Bytes that a running rollout will write. Dropping the charge releases them.
#[derive(Debug)]
pub struct StorageCharge {
    account: Arc<StorageAccount>,
    bytes: u64,
}

impl StorageCharge {
    /// Charges `bytes` more. If there is no room for them, the rollout is ended, and nothing changes.
    pub fn grow(&mut self, bytes: usize) -> Result<(), OverStorage> {
        let bytes = bytes as u64;
        self.account.quota.charged.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        self.account.check().inspect_err(|_| self.release(bytes))
    }

    /// Releases `bytes` bytes.
    pub fn shrink(&mut self, bytes: usize) {
        self.release(bytes as u64);
    }

    fn release(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.account.quota.charged.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for StorageCharge {
    fn drop(&mut self) {
        self.release(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a quota of 100 bytes, of which 20 are always in use, and the number of retained bytes.
    fn quota() -> (Arc<StorageQuota>, Arc<AtomicU64>) {
        let retained = Arc::new(AtomicU64::new(0));
        let current = retained.clone();
        let quota = StorageQuota::new(move || current.load(Ordering::Relaxed));
        quota.set(Some((100, 80)));
        (quota, retained)
    }

    #[test]
    fn the_rollout_that_would_exceed_the_quota_is_ended_and_no_other() {
        let (quota, retained) = quota();
        let [first_end, second_end] = [CancellationToken::new(), CancellationToken::new()];
        let [first, second] = [&first_end, &second_end].map(|end| quota.account(end.clone()));
        retained.store(30, Ordering::Relaxed);
        let held = first.charge(40).unwrap();
        let over = second.charge(11).unwrap_err();
        assert_eq!(over, OverStorage { used: 101, max: 100 });
        assert!(second_end.is_cancelled() && !first_end.is_cancelled());
        assert_eq!((first.excess(), second.excess()), (None, Some(over)));
        assert_eq!(quota.used(), 70, "the refused bytes are not charged");
        drop(held);
        assert!(second.charge(1).is_err(), "an ended rollout gets nothing");
        let mut charge = first.charge(50).unwrap();
        charge.shrink(20);
        assert_eq!(quota.used(), 60);
    }

    #[test]
    fn data_that_was_written_without_a_charge_ends_its_rollout() {
        let (quota, retained) = quota();
        let end = CancellationToken::new();
        let account = quota.account(end.clone());
        account.check().unwrap();
        retained.store(81, Ordering::Relaxed);
        assert_eq!(account.check(), Err(OverStorage { used: 101, max: 100 }));
        assert!(end.is_cancelled());
    }

    #[test]
    fn new_rollouts_leave_an_eighth_to_those_that_run() {
        let (quota, retained) = quota();
        retained.store(69, Ordering::Relaxed);
        quota.check_new().unwrap();
        retained.store(70, Ordering::Relaxed);
        assert_eq!(quota.check_new(), Err(OverStorage { used: 100, max: 100 }));
        quota.account(CancellationToken::new()).check().unwrap();
        quota.set(None);
        retained.store(u64::MAX, Ordering::Relaxed);
        quota.check_new().unwrap();
    }
}
