//! Filter of the system calls that a process may make while it compiles.
//!
//! The filter allows the calls that compiling needs: memory, time, waiting for its own threads, reading and writing
//! open descriptors. All other calls fail with EPERM instead of killing the process. Libraries treat this error as a
//! missing permission, so a library that tries an optional new call continues without it.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter_all_threads,
};

/// Calls that are allowed with any arguments.
const ALLOWED: [libc::c_long; 28] = [
    // Open descriptors. No further ones can be opened.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_lseek,
    // Memory. It cannot become executable: see `IN_MEMORY`.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    // Existing threads; no others can be started.
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_set_robust_list,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // The guest's code does not run here, so none of its traps occur, but an overflow of the stack is reported.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    // Time and random numbers.
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_getrandom,
];

/// Calls whose third argument is the protection of memory. Executable memory is refused.
const IN_MEMORY: [libc::c_long; 2] = [libc::SYS_mmap, libc::SYS_mprotect];

/// Applies the filter to all threads of this process.
pub(super) fn apply() -> Result<(), seccompiler::Error> {
    apply_filter_all_threads(&program()?)
}

fn program() -> Result<BpfProgram, BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    let executable = libc::PROT_EXEC as u64;
    for call in IN_MEMORY {
        rules.insert(call, vec![only_if(2, SeccompCmpOp::MaskedEq(executable), 0)?]);
    }
    // The call by which a process aborts itself; other processes are out of reach.
    rules.insert(libc::SYS_tgkill, vec![only_if(0, SeccompCmpOp::Eq, std::process::id().into())?]);
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, refused, SeccompAction::Allow, arch)?.try_into()
}

fn only_if(argument: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(argument, SeccompCmpArgLen::Dword, op, value)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_compiles_on_this_architecture() {
        assert!(program().unwrap().len() > ALLOWED.len());
    }
}
