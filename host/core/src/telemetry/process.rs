//! Metrics of the process, read from the system when metrics are requested.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGauge, Result};

/// Gauges that are read from `/proc/self`. A value that cannot be read is omitted, not zero.
pub(super) struct Process {
    resident: IntGauge,
    fds: IntGauge,
    mappings: IntGauge,
}

impl Process {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            resident: IntGauge::new("rollout_host_resident_memory_bytes", "Resident memory of the process.")?,
            fds: IntGauge::new("rollout_host_open_fds", "Open file descriptors of the process.")?,
            mappings: IntGauge::new(
                "rollout_host_memory_mappings",
                "Memory mappings of the process; the kernel kills it beyond vm.max_map_count.",
            )?,
        })
    }
}

impl Collector for Process {
    fn desc(&self) -> Vec<&Desc> {
        [&self.resident, &self.fds, &self.mappings].into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let read = [(&self.resident, resident_bytes()), (&self.fds, fds()), (&self.mappings, mappings())];
        let known = read.into_iter().filter_map(|(gauge, value)| {
            gauge.set(i64::try_from(value?).ok()?);
            Some(gauge.collect())
        });
        known.flatten().collect()
    }
}

fn resident_bytes() -> Option<u64> {
    resident_in(&std::fs::read_to_string("/proc/self/status").ok()?)
}

fn resident_in(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

fn fds() -> Option<u64> {
    Some(std::fs::read_dir("/proc/self/fd").ok()?.count() as u64)
}

fn mappings() -> Option<u64> {
    let maps = std::fs::read("/proc/self/maps").ok()?;
    Some(maps.iter().filter(|byte| **byte == b'\n').count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_in_bytes() {
        fn check(status: &str, expected: Option<u64>) {
            assert_eq!(resident_in(status), expected, "{status:?}");
        }
        check("VmHWM:\t  20 kB\nVmRSS:\t    1234 kB\n", Some(1234 * 1024));
        check("VmRSS:\t    1234 pages\n", None);
        check("VmHWM:\t  20 kB\n", None);
    }
}
