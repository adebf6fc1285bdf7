//! Waiting for calls of models and tools in progress.
//!
//! [`ChatRequest::start`](crate::ChatRequest::start), [`host_tools::start`](crate::host_tools::start) and, in
//! a grader, [`JudgeRequest::start`](crate::JudgeRequest::start) return a handle at once. The functions here
//! wait for any of several handles.

use std::time::Duration;

use crate::bindings::imports::calls;

/// A call in progress. Only this crate implements the trait.
pub trait UnderWay {
    #[doc(hidden)]
    fn call(&self) -> &calls::Call;
}

impl<C: UnderWay + ?Sized> UnderWay for &C {
    fn call(&self) -> &calls::Call {
        (**self).call()
    }
}

/// Waits until at least one of the calls is ready and returns the indices of the ready calls, in order. The
/// result is empty if the timeout passes first or there are no calls.
///
/// Calls of different types are passed together as `&[&a as &dyn UnderWay, &b]`.
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

/// Waits without blocking a thread of the host.
pub fn sleep(duration: Duration) {
    calls::wait(&[], Some(millis(duration)));
}

fn millis(duration: Duration) -> u64 {
    // Rounded up, so that a wait is never too short.
    duration.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(u64::MAX)
}
