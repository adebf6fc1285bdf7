//! Guests: components of workflows, graders and tools, and their runs.
//!
//! An [`Engine`](engine::Engine) compiles and links a component, which gives a [`Plugin`](plugin::Plugin). Each run of
//! a plugin is an [`instance`] in a store of its own, with the [`imports`] of its role. A
//! [`Toolbox`](toolbox::Toolbox) has the tools that the host provides.
//!
//! This crate knows neither rollouts nor protocols nor their JSON.

pub mod engine;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod imports;
pub mod instance;
pub mod plugin;
mod stack;
pub mod toolbox;
