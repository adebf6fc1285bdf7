//! Memory of a host's process, as the kernel counts it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt;

use crate::{TestHost, until};

const PAGE_BYTES: u64 = 4096;

/// Name of the file, in a process's mappings, from which an instance's initial memory is mapped. The code comes from the same
/// file, and only the memory is writable.
const IMAGE: &str = "memfd:rollout-host-code";

fn read(host: &TestHost, file: &str) -> String {
    let path = format!("/proc/{}/{file}", host.process().id().expect("it runs"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the number of page faults of the process so far.
pub fn page_faults(host: &TestHost) -> u64 {
    let stat = read(host, "stat");
    let (_, fields) = stat.rsplit_once(") ").expect("a name is in parentheses");
    fields.split(' ').nth(7).and_then(|field| field.parse().ok()).expect("the tenth field counts faults")
}

/// Returns the private pages of a component's initial memory, by the address of each instance so far.
pub fn private_pages(host: &TestHost) -> BTreeMap<u64, BTreeSet<u64>> {
    const PRESENT: u64 = 1 << 63;
    const OF_A_FILE: u64 = 1 << 61;
    let pagemap = format!("/proc/{}/pagemap", host.process().id().expect("it runs"));
    let pagemap = std::fs::File::open(pagemap).expect("it is a child of this process");
    let maps = read(host, "maps");
    let is_image = |line: &&str| line.contains(IMAGE) && line.contains(" rw-p ");
    let images = maps.lines().filter(is_image).map(|line| {
        let (begin, end) = line.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
        let page = |address| u64::from_str_radix(address, 16).expect("an address") / PAGE_BYTES;
        let pages = page(begin)..page(end);
        let mut entries = vec![0; usize::try_from(pages.end - pages.start).expect("it is mapped") * 8];
        pagemap.read_exact_at(&mut entries, pages.start * 8).expect("each page has an entry");
        let entries =
            entries.chunks_exact(8).map(|entry| u64::from_le_bytes(entry.try_into().expect("8 bytes")));
        let own = |entry: u64| entry & PRESENT != 0 && entry & OF_A_FILE == 0;
        let place = pages.start;
        (place, pages.zip(entries).filter(|(_, entry)| own(*entry)).map(|(page, _)| page).collect())
    });
    images.collect()
}

/// Waits until so many instances have rested: until each has at most `pages_max` private pages of its initial memory.
pub async fn instances_rest(host: &TestHost, count: usize, pages_max: usize) {
    until("the memory of waiting instances to rest", async || {
        let rested = private_pages(host).values().filter(|pages| pages.len() <= pages_max).count();
        (rested >= count).then_some(())
    })
    .await;
}

/// Returns the memory of the process in KiB. Pages that its instances share count once. So do all pages of the program's file,
/// however many other processes have mapped it: the hosts of other tests come and go.
pub fn memory_kib(host: &TestHost) -> u64 {
    let kib = |file: &str, name: &str| -> u64 {
        let content = read(host, file);
        let line = content.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel reports it");
        line.trim().strip_suffix(" kB").and_then(|kib| kib.trim().parse().ok()).expect("a number")
    };
    kib("smaps_rollup", "Pss_Anon:") + kib("smaps_rollup", "Pss_Shmem:") + kib("status", "RssFile:")
}
