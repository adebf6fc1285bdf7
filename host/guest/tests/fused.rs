//! Fusing the modules of a component does not change its behavior.

use wasmtime::component::{Component, Linker};
use wasmtime::{Config, Engine, Result, Store};

const LIBRARIES: &str = include_str!("../../fuse/tests/libraries.wat");

/// The texts that a guest passed to its host, and the last number that the host returned.
#[derive(Default)]
struct Host {
    texts: Vec<String>,
    last: u32,
}

/// The returned pairs, the guest's texts, and the name of the function that trapped.
type Observed = (Vec<(u32, u32)>, Vec<String>, String);

/// Runs a component that traps at its end.
fn run(component: &[u8]) -> Result<Observed> {
    let engine = Engine::new(&Config::new())?;
    let component = Component::new(&engine, component)?;
    let mut linker: Linker<Host> = Linker::new(&engine);
    let mut host = linker.instance("test:host/host")?;
    host.func_wrap("say", |mut store, (text,): (String,)| {
        store.data_mut().texts.push(text);
        Ok(())
    })?;
    host.func_wrap("next", |mut store, ()| {
        store.data_mut().last += 1;
        Ok((store.data().last,))
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
    Ok((returned, store.into_data().texts, function.unwrap_or_default()))
}

#[test]
fn fused_libraries_behave_like_separate_ones() {
    let separate = wat::parse_str(LIBRARIES).unwrap();
    let fused = rollout_fuse::fuse(&separate).unwrap();

    let (returned, texts, trapped) = run(&separate).unwrap();

    // The square of a length, the number of calls so far, the host's number, three times 100 and twice 1000.
    let sums = [9 + 1 + 1 + 300 + 2000, 36 + 2 + 2 + 300 + 2000, 1 + 3 + 3 + 300 + 2000];
    assert_eq!(returned, [(sums[0], 3), (sums[1], 6), (sums[2], 1)]);
    assert_eq!(texts, ["abc", "hello", "longer", "hello", "x", "hello"]);
    assert_eq!(trapped, "trap");
    assert_eq!(run(&fused.bytes).unwrap(), (returned, texts, trapped));
}
