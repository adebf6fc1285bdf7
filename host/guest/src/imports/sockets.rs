//! WASI's sockets, all of which are refused. The host refuses them itself and counts the refusals: a program
//! may ignore the error, which can make its reward meaningless.
//!
//! Guests without an SDK's runtime reach this module, mainly Rust programs. Files, processes and threads are
//! refused by a guest's own library, invisibly to the host (`docs/adr/0113`).

use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, Resource};
use wasmtime_wasi::p2::bindings::sockets::ip_name_lookup::ResolveAddressStream;
use wasmtime_wasi::p2::bindings::sockets::network::{ErrorCode, IpAddressFamily, Network};
use wasmtime_wasi::p2::bindings::sockets::tcp::TcpSocket;
use wasmtime_wasi::p2::bindings::sockets::udp::UdpSocket;

use super::Imports;
use super::refused::RefusedKind;
use rollout_wire::text::beginning;

/// Version of the package in wasmtime's own interfaces, which these functions shadow.
const VERSION: &str = "0.2.12";

/// Number of bytes of a host name that are stored.
const NAME_BYTES_MAX: usize = 128;

type Answer<T> = wasmtime::Result<(Result<Resource<T>, ErrorCode>,)>;

/// Replaces the functions that create sockets and resolve names with functions that count and refuse.
pub(crate) fn refuse<T: 'static>(
    linker: &mut Linker<T>,
    imports: fn(&mut T) -> &mut Imports,
) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    let interface = |name: &str| format!("wasi:sockets/{name}@{VERSION}");
    linker.instance(&interface("tcp-create-socket"))?.func_wrap(
        "create-tcp-socket",
        move |mut store: StoreContextMut<'_, T>, (_,): (IpAddressFamily,)| -> Answer<TcpSocket> {
            imports(store.data_mut()).refuse_network("a TCP socket");
            Ok((Err(ErrorCode::AccessDenied),))
        },
    )?;
    linker.instance(&interface("udp-create-socket"))?.func_wrap(
        "create-udp-socket",
        move |mut store: StoreContextMut<'_, T>, (_,): (IpAddressFamily,)| -> Answer<UdpSocket> {
            imports(store.data_mut()).refuse_network("a UDP socket");
            Ok((Err(ErrorCode::AccessDenied),))
        },
    )?;
    linker.instance(&interface("ip-name-lookup"))?.func_wrap(
        "resolve-addresses",
        move |mut store: StoreContextMut<'_, T>,
              (_, name): (Resource<Network>, String)|
              -> Answer<ResolveAddressStream> {
            let place = format!("the address of {}", beginning(&name, NAME_BYTES_MAX));
            imports(store.data_mut()).refuse_network(&place);
            Ok((Err(ErrorCode::PermanentResolverFailure),))
        },
    )?;
    linker.allow_shadowing(false);
    Ok(())
}

impl Imports {
    fn refuse_network(&self, place: &str) {
        self.record.lock().refused_by_host(RefusedKind::Network, place);
    }
}
