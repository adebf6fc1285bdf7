//! Addresses of linear memories, noted when a guest calls an import in which it may wait.
//!
//! The engine has no function that returns a component's memory. An import's parameters are read from it, however, so
//! the type of a parameter can note its address.

use std::cell::Cell;

use wasmtime::component::__internal::{CanonicalAbiInfo, InstanceType, InterfaceType, LiftContext};
use wasmtime::component::{ComponentType, Lift};

/// A linear memory of a suspended guest. Memory from the engine's pool neither moves nor shrinks while its store exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Address of the first byte.
    pub(super) start: usize,
    /// Size in bytes.
    pub(super) bytes: usize,
}

thread_local! {
    /// The memory of the guest that this thread polls, if it called an import with a [`Placed`] parameter.
    static SEEN: Cell<Option<Place>> = const { Cell::new(None) };
}

/// The poll of one guest on this thread. No memory is noted before and after it, even if it panics.
pub(super) struct Noting(());

impl Noting {
    pub(super) fn begin() -> Self {
        SEEN.set(None);
        Self(())
    }

    /// Returns the memory that was noted since the beginning.
    pub(super) fn end(self) -> Option<Place> {
        SEEN.take()
    }
}

impl Drop for Noting {
    fn drop(&mut self) {
        SEEN.set(None);
    }
}

/// A parameter of an import that notes the memory that it is read from.
pub(in crate::instance) struct Placed<T>(pub(in crate::instance) T);

fn note(memory: &[u8]) {
    if !memory.is_empty() {
        SEEN.set(Some(Place { start: memory.as_ptr().expose_provenance(), bytes: memory.len() }));
    }
}

// SAFETY: every item is that of the inner type's implementation.
unsafe impl<T: ComponentType> ComponentType for Placed<T> {
    type Lower = T::Lower;

    const ABI: CanonicalAbiInfo = T::ABI;
    const IS_RUST_UNIT_TYPE: bool = T::IS_RUST_UNIT_TYPE;
    const MAY_REQUIRE_REALLOC: bool = T::MAY_REQUIRE_REALLOC;

    fn typecheck(ty: &InterfaceType, types: &InstanceType<'_>) -> wasmtime::Result<()> {
        T::typecheck(ty, types)
    }
}

// SAFETY: the value is read by the inner type's implementation, from the same address.
unsafe impl<T: Lift> Lift for Placed<T> {
    fn linear_lift_from_flat(
        cx: &mut LiftContext<'_>,
        ty: InterfaceType,
        src: &Self::Lower,
    ) -> wasmtime::Result<Self> {
        note(cx.memory());
        T::linear_lift_from_flat(cx, ty, src).map(Self)
    }

    fn linear_lift_from_memory(
        cx: &mut LiftContext<'_>,
        ty: InterfaceType,
        bytes: &[u8],
    ) -> wasmtime::Result<Self> {
        note(cx.memory());
        T::linear_lift_from_memory(cx, ty, bytes).map(Self)
    }
}
