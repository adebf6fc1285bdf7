use std::sync::atomic::AtomicUsize;
use std::task::{Wake, Waker};

use tokio::sync::Notify;
use wasmtime::component::{Component, Linker};
use wasmtime::{Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, Store};

use super::*;

/// Time after which an event that a test waits for counts as missing.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// A guest that writes to its initial memory, to memory behind it and to memory that it grows, waits, and does so again.
/// It writes one word to most pages, many to some, and the mapped value to others. It returns the checksum of all of its
/// memory from its start, and one from its end, which is 0 if a wait changed the memory.
const GUEST: &str = r#"
(component
    (import "wait" (func $wait (param "text" string)))
    (core module $Memory
        (memory (export "memory") 16)
        (data (i32.const 65536) "the beginning of the image")
        (data (i32.const 400000) "its end"))
    (core instance $memory (instantiate $Memory))
    (core func $wait (canon lower (func $wait) (memory (core memory $memory "memory"))))
    (core module $Guest
        (import "memory" "memory" (memory 16))
        (import "host" "wait" (func $wait (param i32 i32)))
        (func $checksum (result i64)
            (local $at i32) (local $sum i64)
            (loop $next
                (local.set $sum
                    (i64.xor (i64.mul (local.get $sum) (i64.const 31)) (i64.load (local.get $at))))
                (local.set $at (i32.add (local.get $at) (i32.const 8)))
                (br_if $next (i32.lt_u (local.get $at) (i32.mul (memory.size) (i32.const 65536)))))
            (local.get $sum))
        (func $write (param $seed i32)
            (local $at i32) (local $word i32)
            (loop $next
                (i32.store offset=40 (local.get $at) (i32.mul (local.get $at) (local.get $seed)))
                (i32.store8 offset=4095 (local.get $at) (local.get $seed))
                (i32.store offset=2000 (local.get $at) (i32.load offset=2000 (local.get $at)))
                ;; Every fiftieth page is full.
                (if (i32.eqz (i32.rem_u (i32.shr_u (local.get $at) (i32.const 12)) (i32.const 50)))
                    (then
                        (local.set $word (i32.const 0))
                        (loop $fill
                            (i32.store
                                (i32.add (local.get $at) (local.get $word))
                                (i32.mul (i32.add (local.get $word) (local.get $seed)) (i32.const 40503)))
                            (local.set $word (i32.add (local.get $word) (i32.const 4)))
                            (br_if $fill (i32.lt_u (local.get $word) (i32.const 4096))))))
                (local.set $at (i32.add (local.get $at) (i32.const 4096)))
                (br_if $next (i32.lt_u (local.get $at) (i32.mul (memory.size) (i32.const 65536))))))
        (func $waits (result i32)
            (local $sum i64)
            (local.set $sum (call $checksum))
            (call $wait (i32.const 0) (i32.const 0))
            (i64.eq (local.get $sum) (call $checksum)))
        (func (export "run") (result i32)
            (local $begin i64) (local $same i32)
            (local.set $begin (call $checksum))
            (call $write (i32.const 7))
            (drop (memory.grow (i32.const 8)))
            (call $write (i32.const 12345))
            (local.set $same (call $waits))
            (call $write (i32.const 77777))
            (local.set $same (i32.and (local.get $same) (call $waits)))
            (i64.store (i32.const 0) (local.get $begin))
            (i64.store (i32.const 8)
                (select (call $checksum) (i64.const 0) (local.get $same)))
            (i32.const 0)))
    (core instance $host (export "wait" (func $wait)))
    (core instance $guest (instantiate $Guest
        (with "memory" (instance $memory))
        (with "host" (instance $host))))
    (func (export "run") (result (tuple u64 u64))
        (canon lift (core func $guest "run") (memory (core memory $memory "memory")))))
"#;

/// An engine with memory for one guest, mapped as a host's guests are.
fn engine() -> Engine {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(1).total_memories(1).max_memory_size(16 << 20);
    let mut config = Config::new();
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    Engine::new(&config).unwrap()
}

/// A guest's run, and the event that ends its next wait.
fn run(engine: &Engine, rester: &Rester) -> (Run<(u64, u64)>, Arc<Notify>) {
    let component = Component::new(engine, wat::parse_str(GUEST).unwrap()).unwrap();
    let mut linker = Linker::new(engine);
    let replied = Arc::<Notify>::default();
    let reply = replied.clone();
    linker
        .root()
        .func_wrap_async("wait", move |_, (_,): (Placed<String>,)| {
            let replied = replied.clone();
            Box::new(async move {
                replied.notified().await;
                Ok(())
            })
        })
        .unwrap();
    let engine = engine.clone();
    let future = Box::pin(async move {
        let mut store = Store::new(&engine, ());
        let instance = linker.instantiate_async(&mut store, &component).await.unwrap();
        let run = instance.get_typed_func::<(), ((u64, u64),)>(&mut store, "run").unwrap();
        run.call_async(&mut store, ()).await.unwrap().0
    });
    (Run::new(future, rester), reply)
}

/// Polls a guest once; it waits.
fn poll(run: &mut Run<(u64, u64)>) -> Arc<WaitingMemory> {
    let mut cx = Context::from_waker(Waker::noop());
    assert!(run.awake(&mut cx).unwrap().poll(&mut cx).is_pending());
    run.memory.waiting.clone().expect("the import noted the guest's memory")
}

/// Returns the content of a waiting guest's memory, and the number of private pages that are not the kernel's page of
/// zeros.
fn look_at(memory: &WaitingMemory, pages: &PageMap) -> (Vec<u8>, usize) {
    let state = memory.lock();
    let [Place { start, bytes }] = state.places[..] else { panic!("{:?}", state.places) };
    let mut runs = Vec::new();
    pages.private(start..start + bytes, bytes, &mut runs).unwrap();
    // SAFETY: the guest waits, so its memory exists and nothing else uses it.
    let content = unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(start), bytes) };
    let private = runs
        .into_iter()
        .flat_map(|run| content[run.start - start..run.end - start].chunks(pages.page_bytes()));
    let count = private.filter(|page| page.iter().any(|byte| *byte != 0)).count();
    (content.to_vec(), count)
}

fn put_to_rest(memory: &WaitingMemory, pages: &PageMap) {
    memory.lock().since = Some(Instant::now());
    assert_eq!(memory.look(pages, &mut Scratch::default(), Duration::ZERO), Look::Done);
}

fn pages() -> PageMap {
    PageMap::open().expect("these tests need a kernel that reports private pages")
}

#[test]
fn a_guest_continues_with_exactly_the_memory_that_it_had_before_it_rested() {
    let (pages, rester) = (pages(), Rester::start().unwrap());
    let (mut run, reply) = run(&engine(), &rester);
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..2 {
        let memory = poll(&mut run);
        let (content, private) = look_at(&memory, &pages);
        assert_eq!(content.len(), 24 << 16, "it has grown");
        assert_eq!(private, content.len() / pages.page_bytes(), "the guest wrote to all pages");

        put_to_rest(&memory, &pages);

        let (rested, private) = look_at(&memory, &pages);
        assert!(private <= 384 / 50 + 1, "{private} private pages at rest");
        assert!(rested != content);
        let kept = memory.lock().at_rest.as_ref().map(Difference::bytes);
        assert!(kept.is_some_and(|bytes| (1..32 << 10).contains(&bytes)), "{kept:?}");

        assert!(run.awake(&mut cx).is_some());
        assert!(look_at(&memory, &pages).0 == content, "the memory has changed");
        reply.notify_one();
    }
    let Poll::Ready((_, end)) = run.awake(&mut cx).unwrap().poll(&mut cx) else {
        panic!("both waits are over")
    };
    assert_ne!(end, 0, "the guest found its memory changed");
}

#[test]
fn the_memory_of_a_guest_that_ends_at_rest_is_new_for_the_next_one() {
    let (pages, rester, engine) = (pages(), Rester::start().unwrap(), engine());
    let begin_after = |first: Option<Run<(u64, u64)>>| {
        drop(first);
        let (mut run, reply) = run(&engine, &rester);
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..2 {
            poll(&mut run);
            reply.notify_one();
        }
        match run.awake(&mut cx).unwrap().poll(&mut cx) {
            Poll::Ready((begin, end)) if end != 0 => begin,
            other => panic!("{other:?}"),
        }
    };
    let new = begin_after(None);
    let (mut first, _reply) = run(&engine, &rester);
    let memory = poll(&mut first);
    put_to_rest(&memory, &pages);

    assert_eq!(begin_after(Some(first)), new);

    assert!(memory.lock().at_rest.is_none(), "nothing is kept for a guest that has ended");
}

#[tokio::test]
async fn a_guest_that_waits_is_put_to_rest_and_woken_by_its_reply() {
    let rester = Rester::after(Duration::ZERO).unwrap();
    let (mut run, reply) = run(&engine(), &rester);
    for wait in 0..2 {
        std::future::poll_fn(|cx| {
            let Some(mut guest) = run.awake(cx) else { return Poll::Pending };
            assert!(guest.poll(cx).is_pending(), "wait {wait}");
            guest.mark_waiting();
            Poll::Ready(())
        })
        .await;
        let memory = run.memory.waiting.clone().unwrap();
        let rested = async {
            while memory.lock().at_rest.is_none() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(WAIT_MAX, rested).await.expect("the thread puts the memory to rest");
        reply.notify_one();
    }
    let (_, end) = std::future::poll_fn(|cx| match run.awake(cx) {
        Some(mut guest) => guest.poll(cx),
        None => Poll::Pending,
    })
    .await;
    assert_ne!(end, 0, "the guest found its memory changed");
}

#[test]
fn a_guest_whose_memory_is_being_put_to_rest_is_polled_as_soon_as_the_thread_has_stopped() {
    #[derive(Default)]
    struct Woken(AtomicUsize);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let (pages, rester) = (pages(), Rester::start().unwrap());
    let (mut run, _reply) = run(&engine(), &rester);
    let memory = poll(&mut run);
    let (content, private) = look_at(&memory, &pages);
    let woken = Arc::<Woken>::default();
    let waker = Waker::from(woken.clone());
    let mut cx = Context::from_waker(&waker);

    let held = memory.lock();
    assert!(run.awake(&mut cx).is_none());
    drop(held);
    put_to_rest(&memory, &pages);

    assert_eq!(woken.0.load(Ordering::SeqCst), 1);
    assert_eq!(look_at(&memory, &pages), (content, private), "a guest that is wanted keeps its pages");
    assert!(run.awake(&mut cx).is_some());
    put_to_rest(&memory, &pages);
    assert!(look_at(&memory, &pages).1 < private, "it is no longer wanted");
}
