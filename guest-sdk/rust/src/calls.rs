//! Waiting for calls under way, of the model and of tools.
//!
//! [`ChatRequest::start`](crate::ChatRequest::start) and
//! [`host_tools::start`](crate::host_tools::start) go on at once and give a handle; these functions
//! wait for any of several. So does [`JudgeRequest::start`](crate::JudgeRequest::start) in a
//! grader.

use std::time::Duration;

use crate::bindings::imports::calls;

/// A call that was started and is not finished. Implemented by this crate only.
pub trait UnderWay {
    #[doc(hidden)]
    fn call(&self) -> &calls::Call;
}

impl<C: UnderWay + ?Sized> UnderWay for &C {
    fn call(&self) -> &calls::Call {
        (**self).call()
    }
}

/// Waits until at least one of the calls can be finished without waiting, and gives the
/// places in the list of those that can, in order. Empty if the time was over first, or
/// if there was nothing to wait for.
///
/// Calls of different kinds go in one list as `&[&a as &dyn UnderWay, &b]`.
pub fn wait_any<C: UnderWay>(under_way: &[C], timeout: Option<Duration>) -> Vec<usize> {
    if under_way.is_empty() {
        return Vec::new();
    }
    let handles: Vec<&calls::Call> = under_way.iter().map(UnderWay::call).collect();
    let mut ready: Vec<usize> =
        calls::wait(&handles, timeout.map(millis)).into_iter().map(|place| place as usize).collect();
    ready.sort_unstable();
    ready
}

/// Waits, at no cost to the host.
pub fn sleep(duration: Duration) {
    calls::wait(&[], Some(millis(duration)));
}

fn millis(duration: Duration) -> u64 {
    // Rounded up, so that a wait is never shorter than was asked for.
    duration.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(u64::MAX)
}
