//! Guests: components of workflows, graders and tools, and their runs.
//!
//! An [`Engine`](engine::Engine) compiles and links a component, which gives a [`Plugin`](plugin::Plugin). Each run of one is an
//! [`instance`] in a store of its own, with the [`imports`] of its role. A [`Toolbox`](toolbox::Toolbox) has the tools that the
//! host provides.
//!
//! This crate knows no rollout, no protocol and no JSON of one.

pub mod engine;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod imports;
pub mod instance;
pub mod plugin;
mod stack;
pub mod toolbox;
