//! Evaluates a program in an instance of the engine and stores the instance's memory in the component.

use std::time::Duration;

use anyhow::Result;
use chacha20::ChaCha8Rng;
use rand_core::SeedableRng;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, Instance, Lift, Linker, ResourceTable, ResourceType, WasmList};
use wasmtime::{Config, Engine, OptLevel, Store, StoreLimits, StoreLimitsBuilder};
use wasmtime_wasi::p2::pipe::MemoryOutputPipe;
use wasmtime_wasi::{HostMonotonicClock, HostWallClock, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};
use wasmtime_wizer::{ComponentInstanceState, Wizer};

use crate::Error;

/// The export that evaluates a program. The finished component keeps it, although it can then only report that a
/// program was evaluated: `Wizer` would also remove the function of this name from the core modules, which refer to it.
const INIT: &str = "init";

/// Maximum memory of the evaluation, in bytes.
const MEMORY_BYTES_MAX: usize = 1 << 30;

/// Maximum size of the engine's output, which explains a failure, in bytes.
const OUTPUT_BYTES_MAX: usize = 64 << 10;

/// Time of all clocks while the program is evaluated: 2025-01-01, at which the clock of a rollout begins.
const NOW: Duration = Duration::from_secs(1_735_689_600);

/// Evaluates the program, and returns the component with the resulting memory.
pub(crate) fn snapshot(component: &[u8], program: &str) -> Result<Vec<u8>, Error> {
    // A separate thread is needed because the caller may run within a runtime.
    std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .build()
                .map_err(|error| Error::Evaluate(error.into()))?;
            runtime.block_on(evaluate(component, program))
        });
        work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

async fn evaluate(component: &[u8], program: &str) -> Result<Vec<u8>, Error> {
    let wizer = Wizer::new();
    let (context, instrumented) = wizer.instrument_component(component).map_err(link_error)?;
    let output = MemoryOutputPipe::new(OUTPUT_BYTES_MAX);
    let (mut store, instance) = instantiate(&instrumented, &output).await.map_err(Error::Evaluate)?;
    let outcome = call_init(&mut store, instance, program).await.map_err(|error| {
        let written = String::from_utf8_lossy(&output.contents()).trim().to_owned();
        Error::Evaluate(if written.is_empty() { error } else { error.context(written) })
    })?;
    outcome.map_err(Error::Program)?;
    wizer
        .snapshot_component(&context, &mut InstanceMemory { store: &mut store, instance })
        .await
        .map_err(link_error)
}

fn link_error(error: impl Into<anyhow::Error>) -> Error {
    Error::Link(error.into())
}

async fn instantiate(component: &[u8], output: &MemoryOutputPipe) -> Result<(Store<State>, Instance)> {
    let mut config = Config::new();
    // The code runs only for milliseconds, so optimizing it would take longer.
    config.cranelift_opt_level(OptLevel::None);
    let engine = Engine::new(&config)?;
    let component = Component::new(&engine, component)?;
    let mut linker = Linker::new(&engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    refuse_contract(&mut linker, &component)?;
    let mut store = Store::new(&engine, State::new(output));
    store.limiter(|state| &mut state.limits);
    let instance = linker.instantiate_async(&mut store, &component).await?;
    Ok((store, instance))
}

/// Defines the imports of the contract, which work only in a rollout, as functions that fail.
///
/// `Linker::define_unknown_imports_as_traps` would also replace the interfaces of WASI that the component imports in
/// another, compatible version.
fn refuse_contract(linker: &mut Linker<State>, component: &Component) -> Result<()> {
    let engine = linker.engine().clone();
    for (interface, item) in component.component_type().imports(&engine) {
        let ComponentItem::ComponentInstance(instance) = item.ty else { continue };
        if interface.starts_with("wasi:") {
            continue;
        }
        let mut defined = linker.instance(interface)?;
        for (name, item) in instance.exports(&engine) {
            match item.ty {
                ComponentItem::ComponentFunc(_) => {
                    let text =
                        format!("{interface}#{name} belongs to a rollout, and the component is being built");
                    defined.func_new(name, move |_, _, _, _| Err(wasmtime::Error::msg(text.clone())))?;
                }
                ComponentItem::Resource(_) => {
                    defined.resource(name, ResourceType::host::<()>(), |_, _| Ok(()))?;
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Calls the engine's `init`. The arguments are an initial module, the program, its path (none, so that the memory
/// contains no path), and whether the garbage collector is off.
async fn call_init(
    store: &mut Store<State>,
    instance: Instance,
    program: &str,
) -> Result<Result<(), String>> {
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

/// State of the instance's store. The instance has no files, arguments or environment variables, and its clocks stand
/// still.
struct State {
    wasi: WasiCtx,
    table: ResourceTable,
    limits: StoreLimits,
}

impl State {
    fn new(output: &MemoryOutputPipe) -> Self {
        let random = |seed| ChaCha8Rng::from_seed([seed; 32]);
        let wasi = WasiCtxBuilder::new()
            .stdout(output.clone())
            .stderr(output.clone())
            .secure_random(random(0))
            .insecure_random(random(1))
            .insecure_random_seed(0)
            .wall_clock(Clock)
            .monotonic_clock(Clock)
            .allow_tcp(false)
            .allow_udp(false)
            .build();
        let limits = StoreLimitsBuilder::new().memory_size(MEMORY_BYTES_MAX).build();
        Self { wasi, table: ResourceTable::new(), limits }
    }
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

/// A clock that stands still.
struct Clock;

impl HostWallClock for Clock {
    fn resolution(&self) -> Duration {
        Duration::from_millis(1)
    }

    fn now(&self) -> Duration {
        NOW
    }
}

impl HostMonotonicClock for Clock {
    fn resolution(&self) -> u64 {
        1_000_000
    }

    fn now(&self) -> u64 {
        0
    }
}

/// Reads an instance's globals and memory through the functions that instrumentation exports.
struct InstanceMemory<'a> {
    store: &'a mut Store<State>,
    instance: Instance,
}

/// Interface of the functions that instrumentation exports.
const ACCESS: &str = "wasmtime:wizer/access";

impl InstanceMemory<'_> {
    /// Calls a function that instrumentation exports. The function has no parameters and cannot fail.
    async fn call<R, T>(
        &mut self,
        interface: &str,
        name: &str,
        read: impl FnOnce(&mut Store<State>, R) -> T,
    ) -> T
    where
        R: Lift + Send + Sync + 'static,
    {
        debug_assert_eq!(interface, ACCESS);
        let export = self.instance.get_export_index(&mut *self.store, None, interface);
        let export = export.and_then(|of| self.instance.get_export_index(&mut *self.store, Some(&of), name));
        let function =
            export.map(|export| self.instance.get_typed_func::<(), (R,)>(&mut *self.store, export));
        let function = function.and_then(Result::ok).expect("instrumentation exports the function");
        let returned = function.call_async(&mut *self.store, ()).await;
        let (value,) = returned.expect("a function that reads state does not trap");
        read(self.store, value)
    }
}

impl ComponentInstanceState for InstanceMemory<'_> {
    async fn call_func_ret_list_u8(
        &mut self,
        instance: &str,
        func: &str,
        contents: impl FnOnce(&[u8]) + Send,
    ) {
        self.call(instance, func, |store, list: WasmList<u8>| contents(list.as_le_slice(&store))).await;
    }

    async fn call_func_ret_s32(&mut self, instance: &str, func: &str) -> i32 {
        self.call(instance, func, |_, value| value).await
    }

    async fn call_func_ret_s64(&mut self, instance: &str, func: &str) -> i64 {
        self.call(instance, func, |_, value| value).await
    }

    async fn call_func_ret_f32(&mut self, instance: &str, func: &str) -> u32 {
        self.call(instance, func, |_, value: f32| value.to_bits()).await
    }

    async fn call_func_ret_f64(&mut self, instance: &str, func: &str) -> u64 {
        self.call(instance, func, |_, value: f64| value.to_bits()).await
    }
}
