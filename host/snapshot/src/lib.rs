//! Runs a component while it is built, and stores the resulting memory in it.
//!
//! An interpreter starts and imports modules once, in an instance of [`Instrumented`]. Each rollout then begins with the
//! memory that this instance had at its end. The instance has no files, arguments or environment variables, its clocks only
//! count how often they are read, and its random numbers are constant: the same input results in the same bytes on any
//! machine. Functions of the contract fail.
//!
//! This crate knows no language and no engine: its callers compile the instrumented component.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use chacha20::ChaCha8Rng;
use rand_core::SeedableRng;
use wasmtime::component::types::ComponentItem;
pub use wasmtime::component::{Component, Instance};
use wasmtime::component::{Lift, Linker, ResourceTable, ResourceType, WasmList};
use wasmtime::{Store, StoreLimits, StoreLimitsBuilder};
use wasmtime_wasi::p2::pipe::MemoryOutputPipe;
use wasmtime_wasi::{HostMonotonicClock, HostWallClock, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};

use wasmtime_wizer::{ComponentContext, ComponentInstanceState, Wizer};

/// Maximum memory of the instance, in bytes.
const MEMORY_BYTES_MAX: usize = 1 << 30;

/// Maximum size of the instance's output, which explains a failure, in bytes.
const OUTPUT_BYTES_MAX: usize = 64 << 10;

/// Time at which the clock begins: 2025-01-01, as in a rollout.
const NOW: Duration = Duration::from_secs(1_735_689_600);

/// The store of an instance.
pub type BuildStore = Store<State>;

/// A component with additional exports, through which its memory is read.
pub struct Instrumented<'a> {
    wizer: Wizer,
    context: ComponentContext<'a>,
    bytes: Vec<u8>,
}

impl<'a> Instrumented<'a> {
    /// Instruments a component.
    ///
    /// # Errors
    ///
    /// The component is invalid or has a form that the tool does not support.
    pub fn new(component: &'a [u8]) -> Result<Self> {
        let wizer = Wizer::new();
        let (context, bytes) = wizer.instrument_component(component)?;
        Ok(Self { wizer, context, bytes })
    }

    /// Returns the instrumented component, to be compiled.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Runs `work` in an instance of the compiled component. Returns its result, and the component with the instance's
    /// memory if `is_kept` is true for the result and the instance's output.
    ///
    /// # Errors
    ///
    /// The component cannot be instantiated, or `work` failed. The error has the instance's output.
    pub fn run<T: Send>(
        &self,
        compiled: &Component,
        work: impl AsyncFnOnce(&mut BuildStore, Instance) -> Result<T> + Send,
        is_kept: impl FnOnce(&T, &[u8]) -> Result<bool> + Send,
    ) -> Result<(T, Option<Vec<u8>>)> {
        let run = async {
            let output = MemoryOutputPipe::new(OUTPUT_BYTES_MAX);
            let (mut store, instance) = instantiate(compiled, &output).await?;
            let done = work(&mut store, instance).await.map_err(|error| {
                let written = String::from_utf8_lossy(&output.contents()).trim().to_owned();
                if written.is_empty() { error } else { error.context(written) }
            })?;
            if !is_kept(&done, &output.contents())? {
                return Ok((done, None));
            }
            let mut memory = InstanceMemory { store: &mut store, instance };
            let component = self.wizer.snapshot_component(&self.context, &mut memory).await?;
            Ok((done, Some(component)))
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .context("cannot start a runtime")?;
        runtime.block_on(run)
    }
}

async fn instantiate(component: &Component, output: &MemoryOutputPipe) -> Result<(BuildStore, Instance)> {
    let mut linker = Linker::new(component.engine());
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    refuse_contract(&mut linker, component)?;
    let mut store = Store::new(component.engine(), State::new(output));
    store.limiter(|state| &mut state.limits);
    // An engine that interrupts its guests does so at the deadline. This one has none.
    store.set_epoch_deadline(u64::MAX / 2);
    let instance = linker.instantiate_async(&mut store, component).await?;
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

/// State of the instance's store. The instance has no files, arguments or environment variables, and its clocks only
/// count how often they are read.
pub struct State {
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
            .wall_clock(Clock::default())
            .monotonic_clock(Clock::default())
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

/// A clock that advances by a microsecond each time that it is read, so that a program that waits for a time goes on.
#[derive(Default)]
struct Clock(AtomicU64);

impl Clock {
    fn advance(&self) -> Duration {
        Duration::from_micros(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

impl HostWallClock for Clock {
    fn resolution(&self) -> Duration {
        Duration::from_micros(1)
    }

    fn now(&self) -> Duration {
        NOW + self.advance()
    }
}

impl HostMonotonicClock for Clock {
    fn resolution(&self) -> u64 {
        1_000
    }

    fn now(&self) -> u64 {
        u64::try_from(self.advance().as_nanos()).unwrap_or(u64::MAX)
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
