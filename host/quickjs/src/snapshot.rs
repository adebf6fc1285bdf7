//! Evaluates a program in an instance of the engine and stores the instance's memory in the component.

use anyhow::Result;
use rollout_snapshot::{BuildStore, Component, Instance, Instrumented};
use wasmtime::{Config, Engine, OptLevel};

use crate::Error;

/// The export that evaluates a program. The finished component keeps it, although it can then only report that a
/// program was evaluated: `Wizer` would also remove the function of this name from the core modules, which refer to it.
const INIT: &str = "init";

/// Evaluates the program, and returns the component with the resulting memory.
pub(crate) fn snapshot(component: &[u8], program: &str) -> Result<Vec<u8>, Error> {
    // A separate thread is needed because the caller may run within a runtime.
    std::thread::scope(|scope| {
        let work = scope.spawn(|| evaluate(component, program));
        work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn evaluate(component: &[u8], program: &str) -> Result<Vec<u8>, Error> {
    let instrumented = Instrumented::new(component).map_err(Error::Link)?;
    let compiled = compile(instrumented.bytes()).map_err(Error::Evaluate)?;
    let call = async |store: &mut BuildStore, instance: Instance| call_init(store, instance, program).await;
    let (outcome, component) =
        instrumented.run(&compiled, call, |done, _| Ok(done.is_ok())).map_err(Error::Evaluate)?;
    outcome.map_err(Error::Program)?;
    Ok(component.unwrap_or_default())
}

fn compile(component: &[u8]) -> Result<Component> {
    let mut config = Config::new();
    // The code runs only for milliseconds, so optimizing it would take longer.
    config.cranelift_opt_level(OptLevel::None);
    Ok(Component::new(&Engine::new(&config)?, component)?)
}

/// Calls the engine's `init`. The arguments are an initial module, the program, its path (none, so that the memory
/// contains no path), and whether the garbage collector is off.
async fn call_init(store: &mut BuildStore, instance: Instance, program: &str) -> Result<Result<(), String>> {
    const FIRST_MODULE: &str = "globalThis.wit = {};\n";
    type Arguments<'a> = (&'a str, &'a str, Option<&'a str>, bool);
    let init = instance.get_typed_func::<Arguments<'_>, (Result<(), String>,)>(&mut *store, INIT)?;
    let (outcome,) = init.call_async(&mut *store, (FIRST_MODULE, program, None, false)).await?;
    if outcome.is_ok() {
        // The text that was passed is in memory that the engine has freed. Another text of this length, which the engine
        // refuses, overwrites it with zeros, which take no space in the component.
        let zeros = "\0".repeat(program.len());
        let _refusal = init.call_async(&mut *store, (FIRST_MODULE, &zeros, None, false)).await?;
    }
    Ok(outcome)
}
