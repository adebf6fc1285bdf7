//! Which calls of the kernel a process may make once it has begun to compile.
//!
//! A list of what compiling needs: memory, time, waiting for its own threads, reading and
//! writing what is open. Everything else is refused with EPERM, which libraries take for a
//! missing right, instead of ending the process, so that one that asks for something new and
//! can do without goes on doing without.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter_all_threads,
};

/// Calls that are allowed whatever their arguments.
const ALLOWED: [libc::c_long; 28] = [
    // What is open. Nothing more can be opened.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_lseek,
    // Memory, which no program can be made in: see `IN_MEMORY`.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    // Threads that are there; no others can be started.
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_set_robust_list,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Traps of the guest's code are none here, but an overflow of the stack is reported.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    // Time and chance.
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_getrandom,
];

/// Calls whose third argument says what memory is for; not for running what is in it.
const IN_MEMORY: [libc::c_long; 2] = [libc::SYS_mmap, libc::SYS_mprotect];

/// Binds all threads of this process to the list.
pub(super) fn apply() -> Result<(), seccompiler::Error> {
    apply_filter_all_threads(&program()?)
}

fn program() -> Result<BpfProgram, BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    let executable = libc::PROT_EXEC as u64;
    for call in IN_MEMORY {
        rules.insert(call, vec![only_if(2, SeccompCmpOp::MaskedEq(executable), 0)?]);
    }
    // How a process ends itself when it gives up; other processes are out of reach.
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
    fn the_list_makes_a_program_here() {
        assert!(program().unwrap().len() > ALLOWED.len());
    }
}
