//! Arguments in, exit code out.

#[cfg(feature = "jemalloc")]
mod allocator {
    use std::ptr;

    use tikv_jemallocator::Jemalloc;

    /// Thousands of rollouts in flight cost more of the processor with the system's
    /// (`docs/adr/0018` has how much).
    #[global_allocator]
    static ALLOCATOR: Jemalloc = Jemalloc;

    /// Settings that the allocator reads when it starts, before those of `_RJEM_MALLOC_CONF`. It
    /// would have threads of its own before this program begins, and these would keep privileges
    /// that the program gives up; so it is notified when.
    #[unsafe(export_name = "_rjem_malloc_conf")]
    pub(super) static ALLOCATOR_SETTINGS: &[u8] = b"background_thread:false\0";

    /// Has the allocator give memory back from threads of its own.
    pub(super) fn start_threads() {
        let mut on = true;
        // SAFETY: the name ends with a zero, and the setting is a `bool`, which is read within the
        // call.
        let result = unsafe {
            tikv_jemalloc_sys::mallctl(
                c"background_thread".as_ptr(),
                ptr::null_mut(),
                ptr::null_mut(),
                (&raw mut on).cast(),
                size_of::<bool>(),
            )
        };
        // Without them memory is given back by whoever allocates.
        debug_assert_eq!(result, 0, "the allocator has the setting");
    }
}

/// The system's allocator, which has no threads.
#[cfg(not(feature = "jemalloc"))]
mod allocator {
    pub(super) fn start_threads() {}
}

fn main() -> std::process::ExitCode {
    rollout_host::main(allocator::start_threads)
}
