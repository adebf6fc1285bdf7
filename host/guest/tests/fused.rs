//! A component does the same when its modules are one.

use wasmtime::component::{Component, Linker};
use wasmtime::{Config, Engine, Result, Store};

const LIBRARIES: &str = include_str!("../../fuse/tests/libraries.wat");

/// What a guest said to its host, and what the host gives it next.
#[derive(Default)]
struct Host {
    said: Vec<String>,
    next: u32,
}

/// Each pair that was returned, what was said, and the function of the trap.
type Ran = (Vec<(u32, u32)>, Vec<String>, String);

/// Runs a component: what it returned, what it said, and how it ended where it traps.
fn run(component: &[u8]) -> Result<Ran> {
    let engine = Engine::new(&Config::new())?;
    let component = Component::new(&engine, component)?;
    let mut linker: Linker<Host> = Linker::new(&engine);
    let mut host = linker.instance("test:host/host")?;
    host.func_wrap("say", |mut store, (text,): (String,)| {
        store.data_mut().said.push(text);
        Ok(())
    })?;
    host.func_wrap("next", |mut store, ()| {
        store.data_mut().next += 1;
        Ok((store.data().next,))
    })?;
    let mut store = Store::new(&engine, Host::default());
    let instance = linker.instantiate(&mut store, &component)?;
    let run = instance.get_typed_func::<(&str,), ((u32, u32),)>(&mut store, "run")?;
    let mut returned = Vec::new();
    for text in ["abc", "longer", "x"] {
        returned.push(run.call(&mut store, (text,))?.0);
    }
    let trap = instance.get_typed_func::<(), ()>(&mut store, "trap")?;
    let trapped = trap.call(&mut store, ()).expect_err("it traps");
    let function = trapped.downcast_ref::<wasmtime::WasmBacktrace>().and_then(|trace| {
        let frame = trace.frames().first()?;
        frame.func_name().map(str::to_owned)
    });
    Ok((returned, store.into_data().said, function.unwrap_or_default()))
}

#[test]
fn libraries_in_one_module_do_what_they_did_in_several() {
    let apart = wat::parse_str(LIBRARIES).unwrap();
    let fused = rollout_fuse::fuse(&apart).unwrap();

    let (returned, said, trapped) = run(&apart).unwrap();

    // The square of a length, how often it was counted, what the host gave, and thrice 100
    // and twice 1000.
    let sums = [9 + 1 + 1 + 300 + 2000, 36 + 2 + 2 + 300 + 2000, 1 + 3 + 3 + 300 + 2000];
    assert_eq!(returned, [(sums[0], 3), (sums[1], 6), (sums[2], 1)]);
    assert_eq!(said, ["abc", "hello", "longer", "hello", "x", "hello"]);
    assert_eq!(trapped, "trap");
    assert_eq!(run(&fused.bytes).unwrap(), (returned, said, trapped));
}
