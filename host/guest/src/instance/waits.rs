//! The imports in which a guest may wait.
//!
//! The functions here replace those that the bindings add. They behave the same, and also note the addresses of the
//! guest's memory and stack.

use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, Resource};
use wasmtime_wasi::p2::DynPollable;
use wasmtime_wasi::p2::bindings::io::poll as wasi_poll;

use super::InstanceState;
use super::rest::Placed;
use crate::imports::bindings::rollout::plugin::calls::{self, Call};
use crate::imports::bindings::rollout::plugin::models::{self, Completion};
use crate::imports::bindings::rollout::plugin::samples::Sample;
use crate::imports::bindings::rollout::plugin::tools;
use crate::imports::bindings::rollout::plugin::types::ToolCall;
use crate::imports::{Imports, ModelCallError};
use crate::stack;

/// Replaces the functions in a linker that has them already.
pub(super) fn note(linker: &mut Linker<InstanceState>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    note_wasi(linker)?;
    note_contract(linker)?;
    linker.allow_shadowing(false);
    Ok(())
}

/// Replaces WASI's functions. They do not pass the gate, so the stack's address is noted here.
fn note_wasi(linker: &mut Linker<InstanceState>) -> wasmtime::Result<()> {
    let mut poll = linker.instance("wasi:io/poll@0.2.12")?;
    poll.func_wrap_async("poll", |mut store, (pollables,): (Placed<Vec<Resource<DynPollable>>>,)| {
        Box::new(async move {
            stack::note_place();
            let table = &mut store.data_mut().imports.table;
            Ok((wasi_poll::Host::poll(table, pollables.0).await?,))
        })
    })?;
    poll.func_wrap_async("[method]pollable.block", |mut store, (pollable,): (Resource<DynPollable>,)| {
        Box::new(async move {
            stack::note_place();
            let table = &mut store.data_mut().imports.table;
            wasi_poll::HostPollable::block(table, pollable).await
        })
    })
}

fn note_contract(linker: &mut Linker<InstanceState>) -> wasmtime::Result<()> {
    let mut instance = linker.instance("rollout:plugin/calls@0.1.0")?;
    instance.func_wrap_async(
        "wait",
        |mut store, (calls, timeout_ms): (Placed<Vec<Resource<Call>>>, Option<u64>)| {
            Box::new(async move { Ok((calls::Host::wait(imports(&mut store), calls.0, timeout_ms).await?,)) })
        },
    )?;
    let mut instance = linker.instance("rollout:plugin/models@0.1.0")?;
    instance.func_wrap_async(
        "complete",
        |mut store,
         (role, sample, request): (models::Role, Option<Resource<Sample>>, Placed<models::Request>)| {
            Box::new(async move {
                let imports = imports(&mut store);
                let result = models::Host::complete(imports, role, sample, request.0).await;
                completion(imports, result)
            })
        },
    )?;
    instance.func_wrap_async("finish", |mut store, (call,): (Placed<Resource<Call>>,)| {
        Box::new(async move {
            let imports = imports(&mut store);
            let result = models::Host::finish(imports, call.0).await;
            completion(imports, result)
        })
    })?;
    let mut instance = linker.instance("rollout:plugin/tools@0.1.0")?;
    instance.func_wrap_async("execute", |mut store, (calls,): (Placed<Vec<ToolCall>>,)| {
        Box::new(async move { Ok((tools::Host::execute(imports(&mut store), calls.0).await?,)) })
    })?;
    instance.func_wrap_async("finish", |mut store, (call,): (Placed<Resource<Call>>,)| {
        Box::new(async move { Ok((tools::Host::finish(imports(&mut store), call.0).await?,)) })
    })
}

fn imports<'a>(store: &'a mut StoreContextMut<'_, InstanceState>) -> &'a mut Imports {
    &mut store.data_mut().imports
}

/// Returns the result of a model call as the contract declares it, or fails with the error that ends the guest.
fn completion(
    imports: &mut Imports,
    result: Result<Completion, ModelCallError>,
) -> wasmtime::Result<(Result<Completion, models::Error>,)> {
    Ok((match result {
        Ok(completion) => Ok(completion),
        Err(error) => Err(models::Host::convert_error(imports, error)?),
    },))
}
