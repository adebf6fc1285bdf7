//! Adapters between the functions of the contract and those of the author.
//!
//! Only this module converts an [`Error`] to the host's error type.

use std::thread::LocalKey;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use crate::bindings::grader::{GradedSample, Verdict};
use crate::bindings::imports::types::{Failure, Metric};
use crate::bindings::settings::Declaration;
use crate::bindings::{agent_loop, environment as environment_export, group_grader, workflow};
use crate::environment::{self, EpisodeCell};
use crate::message::{self, parse_messages};
use crate::{
    AgentLoop, Context, Environment, Error, ErrorKind, GradeContext, Grader, GroupContext, GroupGrader,
    GroupRating, LoopContext, LoopRequest, Output, Result, Tool, ToolPlugin, Value, Workflow, context,
    settings,
};

/// Exports a plugin: the agent (a workflow or an agent loop), the grader or both, an environment, and
/// optionally the declaration of its configuration. Use the macro once in a crate of type `cdylib`.
///
/// ```
/// # use rollout_sdk::{Context, GradeContext, Grader, Output, Result, Verdicts, Workflow};
/// # struct MyWorkflow;
/// # impl Workflow for MyWorkflow {
/// #     fn run(_: Context) -> Result<Output> { Ok(().into()) }
/// # }
/// # struct MyGrader;
/// # impl Grader for MyGrader {
/// #     fn grade(_: GradeContext) -> Result<Verdicts> { Ok(1.0.into()) }
/// # }
/// rollout_sdk::export!(workflow = MyWorkflow, grader = MyGrader);
/// ```
///
/// A component that exports only one of them is `export!(workflow = MyWorkflow);` or
/// `export!(grader = MyGrader);`. One type may implement both. An [`AgentLoop`](crate::AgentLoop) is exported
/// instead of a workflow with `agent_loop = MyLoop`. A [`GroupGrader`](crate::GroupGrader) is exported in addition with
/// `group_grader = MyGroupGrader`. `environment = MyEnvironment` exports an [`Environment`](crate::Environment), alone
/// or with a grader. Tools for other plugins are exported with `tool = MyTools`, see [`ToolPlugin`](crate::ToolPlugin).
///
/// `settings = MyConfig` also declares the configuration, so that the host checks it when it loads the plugin
/// and can list the available settings:
///
/// ```
/// # use rollout_sdk::*;
/// # struct MyWorkflow;
/// # impl Workflow<MyConfig> for MyWorkflow {
/// #     fn run(_: Context<MyConfig>) -> Result<Output> { Ok(().into()) }
/// # }
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// #[serde(default, deny_unknown_fields)]
/// struct MyConfig {
///     /// Maximum number of model calls.
///     max_turns: u32,
/// }
///
/// impl Default for MyConfig {
///     fn default() -> Self {
///         Self { max_turns: 8 }
///     }
/// }
///
/// export!(workflow = MyWorkflow, settings = MyConfig);
/// ```
///
/// The declaration is derived from the type: names and types of the fields, doc comments as descriptions, and
/// the defaults that `serde` uses, here those of [`Default`]. A field without a default is required. The
/// default of a field whose type is a structure of the plugin is shown if that type implements `Serialize`.
#[macro_export]
macro_rules! export {
    ($($part:ident = $of:ty),+ $(,)?) => {
        $($crate::__export!($part = $of);)+
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export {
    (workflow = $of:ty) => {
        $crate::__export_workflow!($of);
    };
    (agent_loop = $of:ty) => {
        $crate::__export_agent_loop!($of);
    };
    (grader = $of:ty) => {
        $crate::__export_grader!($of);
    };
    (group_grader = $of:ty) => {
        $crate::__export_group_grader!($of);
    };
    (settings = $of:ty) => {
        $crate::__export_settings!($of);
    };
    (environment = $of:ty) => {
        $crate::__export_environment!($of);
    };
    (tool = $of:ty) => {
        $crate::__export_tool!($of);
    };
    ($part:ident = $of:ty) => {
        ::core::compile_error!(::core::concat!(
            "a plugin exports no `",
            ::core::stringify!($part),
            "`; there are: workflow, agent_loop, grader, group_grader, environment, tool, settings"
        ));
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_workflow {
    ($workflow:ty) => {
        const _: () = {
            struct Exported;

            impl $crate::__private::workflow::Guest for Exported {
                fn run(
                    prompt: ::std::vec::Vec<::std::string::String>,
                ) -> ::core::result::Result<$crate::__private::workflow::Outcome, $crate::__private::Failure>
                {
                    $crate::__private::run_workflow::<$workflow, _>(prompt)
                }
            }

            #[cfg(target_family = "wasm")]
            $crate::__private::workflow::export_workflow!(
                Exported with_types_in $crate::__private::workflow
            );

            // On other targets the contract's names are not valid symbols. This keeps the compiler from
            // reporting the author's code as unused.
            #[cfg(not(target_family = "wasm"))]
            #[used]
            static USED: fn() = $crate::__private::used_workflow::<Exported>;
        };
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_agent_loop {
    ($agent_loop:ty) => {
        const _: () = {
            struct Exported;

            impl $crate::__private::agent_loop::Guest for Exported {
                fn name() -> ::std::string::String {
                    $crate::__private::agent_loop_name::<$agent_loop, _>()
                }

                fn get_tools(
                    request: $crate::__private::agent_loop::Request,
                ) -> ::core::result::Result<
                    ::std::vec::Vec<::std::string::String>,
                    $crate::__private::Failure,
                > {
                    $crate::__private::agent_loop_tools::<$agent_loop, _>(request)
                }

                fn run(
                    request: $crate::__private::agent_loop::Request,
                ) -> ::core::result::Result<
                    $crate::__private::agent_loop::Outcome,
                    $crate::__private::Failure,
                > {
                    $crate::__private::run_agent_loop::<$agent_loop, _>(request)
                }
            }

            #[cfg(target_family = "wasm")]
            $crate::__private::agent_loop::export_agent_loop!(
                Exported with_types_in $crate::__private::agent_loop
            );

            #[cfg(not(target_family = "wasm"))]
            #[used]
            static USED: fn() = $crate::__private::used_agent_loop::<Exported>;
        };
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_grader {
    ($grader:ty) => {
        const _: () = {
            struct Exported;

            impl $crate::__private::grader::Guest for Exported {
                fn grade(
                    label: ::core::option::Option<::std::string::String>,
                    samples: ::std::vec::Vec<$crate::__private::grader::GradedSample>,
                ) -> ::core::result::Result<
                    ::std::vec::Vec<$crate::__private::grader::Verdict>,
                    $crate::__private::Failure,
                > {
                    $crate::__private::run_grader::<$grader, _>(label, samples)
                }
            }

            #[cfg(target_family = "wasm")]
            $crate::__private::grader::export_grader!(
                Exported with_types_in $crate::__private::grader
            );

            #[cfg(not(target_family = "wasm"))]
            #[used]
            static USED: fn() = $crate::__private::used_grader::<Exported>;
        };
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_group_grader {
    ($grader:ty) => {
        const _: () = {
            struct Exported;

            impl $crate::__private::group_grader::Guest for Exported {
                fn grade_group(
                    group: $crate::__private::group_grader::Group,
                ) -> ::core::result::Result<
                    ::std::vec::Vec<$crate::__private::group_grader::Rating>,
                    $crate::__private::Failure,
                > {
                    $crate::__private::run_group_grader::<$grader, _>(group)
                }
            }

            #[cfg(target_family = "wasm")]
            $crate::__private::group_grader::export_group_grader!(
                Exported with_types_in $crate::__private::group_grader
            );

            #[cfg(not(target_family = "wasm"))]
            #[used]
            static USED: fn() = $crate::__private::used_group_grader::<Exported>;
        };
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_tool {
    ($tool:ty) => {
        const _: () = {
            struct Exported;

            impl $crate::__private::tool::Guest for Exported {
                fn describe() -> ::std::vec::Vec<::std::string::String> {
                    $crate::__private::describe_tools::<$tool, _>()
                }

                fn call(
                    name: ::std::string::String,
                    arguments: ::std::string::String,
                ) -> ::core::result::Result<::std::string::String, ::std::string::String> {
                    $crate::__private::call_tool::<$tool, _>(&name, &arguments)
                }
            }

            #[cfg(target_family = "wasm")]
            $crate::__private::tool::export_tool!(
                Exported with_types_in $crate::__private::tool
            );

            #[cfg(not(target_family = "wasm"))]
            #[used]
            static USED: fn() = $crate::__private::used_tool::<Exported>;
        };
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_environment {
    ($environment:ty) => {
        const _: () = {
            struct Exported;

            ::std::thread_local! {
                static EPISODE: $crate::__private::EpisodeCell<$environment> =
                    const { ::core::cell::RefCell::new(::core::option::Option::None) };
            }

            impl $crate::__private::environment::Guest for Exported {
                fn describe() -> $crate::__private::environment::Description {
                    $crate::__private::describe_environment::<$environment, _>()
                }

                fn task(
                    split: ::std::string::String,
                    index: u64,
                ) -> ::core::result::Result<::std::string::String, $crate::__private::Failure> {
                    $crate::__private::environment_task::<$environment, _>(&split, index)
                }

                fn reset(
                    request: $crate::__private::environment::ResetRequest,
                ) -> ::core::result::Result<
                    $crate::__private::environment::Outcome,
                    $crate::__private::Failure,
                > {
                    $crate::__private::reset_environment::<$environment, _>(&EPISODE, request)
                }

                fn step(
                    action: $crate::__private::environment::Action,
                ) -> ::core::result::Result<
                    $crate::__private::environment::Outcome,
                    $crate::__private::Failure,
                > {
                    $crate::__private::step_environment::<$environment, _>(&EPISODE, action)
                }

                fn state() -> ::core::result::Result<::std::string::String, $crate::__private::Failure> {
                    $crate::__private::environment_state::<$environment, _>(&EPISODE)
                }
            }

            #[cfg(target_family = "wasm")]
            $crate::__private::environment::export_environment!(
                Exported with_types_in $crate::__private::environment
            );

            #[cfg(not(target_family = "wasm"))]
            #[used]
            static USED: fn() = $crate::__private::used_environment::<Exported>;
        };
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_settings {
    ($settings:ty) => {
        const _: () = {
            struct Exported;

            impl $crate::__private::settings::Guest for Exported {
                fn declare() -> $crate::__private::settings::Declaration {
                    $crate::__private::declare_settings::<$settings>()
                }
            }

            #[cfg(target_family = "wasm")]
            $crate::__private::settings::export_settings!(
                Exported with_types_in $crate::__private::settings
            );

            #[cfg(not(target_family = "wasm"))]
            #[used]
            static USED: fn() = $crate::__private::used_settings::<Exported>;
        };
    };
}

/// Runs the author's workflow.
pub fn run_workflow<W, C>(prompt: Vec<String>) -> Result<workflow::Outcome, Failure>
where
    W: Workflow<C>,
    C: DeserializeOwned,
{
    let run = || {
        let prompt = parse_messages("prompt", &prompt)?;
        W::run(Context::read(prompt)?)
    };
    let Output { messages, metrics } = run().map_err(tell)?;
    let metrics = metrics.into_iter().map(|(name, value)| Metric { name, value }).collect();
    Ok(workflow::Outcome { messages: messages.map(|messages| message::to_json(&messages)), metrics })
}

/// Returns the name of the author's agent loop.
pub fn agent_loop_name<L, C>() -> String
where
    L: AgentLoop<C>,
    C: DeserializeOwned,
{
    L::name()
}

/// Returns the tools of the author's agent loop.
pub fn agent_loop_tools<L, C>(request: agent_loop::Request) -> Result<Vec<String>, Failure>
where
    L: AgentLoop<C>,
    C: DeserializeOwned,
{
    let tools = || L::get_tools(&LoopRequest::read(request)?, &context::config()?);
    Ok(tools().map_err(tell)?.iter().map(Value::to_string).collect())
}

/// Runs the author's agent loop.
pub fn run_agent_loop<L, C>(request: agent_loop::Request) -> Result<agent_loop::Outcome, Failure>
where
    L: AgentLoop<C>,
    C: DeserializeOwned,
{
    let run = || {
        let request = LoopRequest::read(request)?;
        let config = context::config()?;
        let tools = L::get_tools(&request, &config)?;
        L::run(LoopContext::new(request, config, tools)?)
    };
    run().map(Into::into).map_err(tell)
}

/// Runs the author's grader.
pub fn run_grader<G, C>(label: Option<String>, samples: Vec<GradedSample>) -> Result<Vec<Verdict>, Failure>
where
    G: Grader<C>,
    C: DeserializeOwned,
{
    let ids: Vec<String> = samples.iter().map(|sample| sample.id.clone()).collect();
    let grade = || G::grade(GradeContext::read(label, samples)?)?.resolve(&ids);
    grade().map_err(tell)
}

/// Runs the author's group grader.
pub fn run_group_grader<G, C>(group: group_grader::Group) -> Result<Vec<group_grader::Rating>, Failure>
where
    G: GroupGrader<C>,
    C: DeserializeOwned,
{
    let grade = || G::grade_group(GroupContext::read(group)?);
    Ok(grade().map_err(tell)?.into_iter().map(GroupRating::encode).collect())
}

/// Describes the author's tools. The contract has no error for this, so an error traps the instance, and the
/// host reports the panic message.
pub fn describe_tools<T, C>() -> Vec<String>
where
    T: ToolPlugin<C>,
    C: DeserializeOwned,
{
    match own_tools::<T, C>() {
        Ok(tools) => tools.iter().map(|tool| tool.schema().to_string()).collect(),
        Err(error) => panic!("the tools cannot be described: {error}"),
    }
}

/// Runs one of the author's tools.
pub fn call_tool<T, C>(name: &str, arguments: &str) -> Result<String, String>
where
    T: ToolPlugin<C>,
    C: DeserializeOwned,
{
    let tools = own_tools::<T, C>().map_err(|error| error.to_string())?;
    match tools.into_iter().find(|tool| tool.name() == name) {
        Some(mut tool) => tool.run(arguments),
        None => Err(format!("there is no tool '{name}' here")),
    }
}

fn own_tools<T, C>() -> Result<Vec<Tool>>
where
    T: ToolPlugin<C>,
    C: DeserializeOwned,
{
    T::tools(context::config()?)
}

/// Describes the author's environment.
pub fn describe_environment<E, C>() -> environment_export::Description
where
    E: Environment<C>,
    C: DeserializeOwned,
{
    environment::describe::<E, C>()
}

/// Returns a task of the author's environment.
pub fn environment_task<E, C>(split: &str, index: u64) -> Result<String, Failure>
where
    E: Environment<C>,
    C: DeserializeOwned,
{
    environment::task::<E, C>(split, index).map_err(tell)
}

/// Begins an episode of the author's environment.
pub fn reset_environment<E, C>(
    episode: &'static LocalKey<EpisodeCell<E>>,
    request: environment_export::ResetRequest,
) -> Result<environment_export::Outcome, Failure>
where
    E: Environment<C>,
    C: DeserializeOwned,
{
    environment::reset::<E, C>(episode, request).map_err(tell)
}

/// Takes an action in the episode.
pub fn step_environment<E, C>(
    episode: &'static LocalKey<EpisodeCell<E>>,
    action: environment_export::Action,
) -> Result<environment_export::Outcome, Failure>
where
    E: Environment<C>,
    C: DeserializeOwned,
{
    environment::step::<E, C>(episode, action).map_err(tell)
}

/// Returns the visible state of the episode.
pub fn environment_state<E, C>(episode: &'static LocalKey<EpisodeCell<E>>) -> Result<String, Failure>
where
    E: Environment<C>,
    C: DeserializeOwned,
{
    environment::state::<E, C>(episode).map_err(tell)
}

/// Marks the exported environment as used on targets without components.
pub fn used_environment<E: environment_export::Guest>() {}

/// Marks the exported tools as used on targets without components.
pub fn used_tool<E: crate::bindings::tool::Guest>() {}

/// Returns the declaration of the author's configuration type.
pub fn declare_settings<C: DeserializeOwned + JsonSchema>() -> Declaration {
    let (schema, defaults) = settings::declared::<C>();
    Declaration { schema: schema.to_string(), defaults: defaults.to_string() }
}

/// Marks the declaration of settings as used on targets without components.
pub fn used_settings<E: crate::bindings::settings::Guest>() {}

/// Marks the exported workflow as used on targets without components.
pub fn used_workflow<E: crate::bindings::workflow::Guest>() {}

/// Marks the exported agent loop as used on targets without components.
pub fn used_agent_loop<E: agent_loop::Guest>() {}

/// Marks the exported group grader as used on targets without components.
pub fn used_group_grader<E: group_grader::Guest>() {}

/// Marks the exported grader as used on targets without components.
pub fn used_grader<E: crate::bindings::grader::Guest>() {}

fn tell(error: Error) -> Failure {
    match error.kind() {
        ErrorKind::Failed => Failure::Failed(error.to_string()),
        ErrorKind::Invalid => Failure::Invalid(error.to_string()),
        ErrorKind::TimedOut => Failure::TimedOut(error.to_string()),
    }
}
