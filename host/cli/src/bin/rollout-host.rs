//! The `rollout-host` program: selects the allocator and calls [`rollout_host::main`].

#[cfg(feature = "jemalloc")]
mod allocator {
    use std::ptr;

    use tikv_jemallocator::Jemalloc;

    /// The process's allocator. With thousands of concurrent rollouts, the system's allocator takes more
    /// CPU time (`docs/adr/0018` has figures).
    #[global_allocator]
    static ALLOCATOR: Jemalloc = Jemalloc;

    /// Settings that the allocator reads when it starts, before those of `_RJEM_MALLOC_CONF`.
    ///
    /// They turn background threads off: threads that start before `main` would keep privileges that the
    /// program drops later. [`start_threads`] turns them on.
    ///
    /// Freed memory is returned to the kernel within a second instead of ten. Otherwise, memory that the start or a
    /// deployment needs only briefly, some 100 MiB for a Python component, would count as used by the server for ten
    /// seconds.
    #[unsafe(export_name = "_rjem_malloc_conf")]
    pub(super) static ALLOCATOR_SETTINGS: &[u8] = b"background_thread:false,dirty_decay_ms:1000\0";

    /// Starts the allocator's background threads, which return memory to the kernel.
    pub(super) fn start_threads() {
        let mut on = true;
        // SAFETY: the name is null-terminated, and the setting is a `bool` that is only read during the call.
        let result = unsafe {
            tikv_jemalloc_sys::mallctl(
                c"background_thread".as_ptr(),
                ptr::null_mut(),
                ptr::null_mut(),
                (&raw mut on).cast(),
                size_of::<bool>(),
            )
        };
        // Without background threads, allocating threads return memory.
        debug_assert_eq!(result, 0, "the allocator supports background_thread");
    }
}

/// The system's allocator, which has no background threads.
#[cfg(not(feature = "jemalloc"))]
mod allocator {
    pub(super) fn start_threads() {}
}

fn main() -> std::process::ExitCode {
    rollout_host::main(allocator::start_threads)
}
