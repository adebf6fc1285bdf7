//! Shared code of the test guests.
//!
//! Each file under `examples/` is a guest that misbehaves in one way when its prompt ends with [`MISBEHAVE`] (or, for a
//! grader, when that is the label), and is honest otherwise, so that a test can show that the host continues afterwards.
//!
//! [`raw_workflow`] and [`raw_grader`] are the contract without the SDK, for misbehaviour that the SDK prevents.

mod looping;

pub use looping::Looping;

use rollout_sdk::{Context, GradeContext, Grader, Message, Output, Result, Verdicts, Workflow};

/// The last message of a prompt, or the label, that requests misbehaviour.
pub const MISBEHAVE: &str = "misbehave";

/// A workflow that calls the model once, and a grader that compares the answer with the label.
pub struct Honest;

impl Workflow for Honest {
    fn run(ctx: Context) -> Result<Output> {
        ask_once(&ctx)
    }
}

impl Grader for Honest {
    fn grade(ctx: GradeContext) -> Result<Verdicts> {
        let answer = ctx.sample()?.answer_after("####").unwrap_or_default();
        Ok((answer == ctx.require_label()?).into())
    }
}

/// Calls the model once and returns the prompt with the reply.
pub fn ask_once(ctx: &Context) -> Result<Output> {
    let reply = ctx.sample()?.chat(ctx.prompt()).send()?;
    Ok(with_reply(ctx, reply.into_message()))
}

/// Returns the prompt followed by a message.
pub fn with_reply(ctx: &Context, reply: Message) -> Output {
    let mut messages = ctx.prompt().to_vec();
    messages.push(reply);
    messages.into()
}

/// Returns the prompt followed by a report, which the test reads.
pub fn report(ctx: &Context, found: impl Into<rollout_sdk::Value>) -> Output {
    with_reply(ctx, Message::assistant(found.into().to_string()))
}

/// Returns the text of the prompt's last message.
pub fn prompt_text<C>(ctx: &Context<C>) -> String {
    ctx.prompt().last().map(Message::text).unwrap_or_default()
}

/// Returns whether the prompt requests misbehaviour.
pub fn requests_misbehaviour(ctx: &Context) -> bool {
    prompt_text(ctx) == MISBEHAVE
}

/// Never returns and never calls the host.
pub fn spin() -> ! {
    loop {
        std::hint::spin_loop();
    }
}

/// Computes for about half a millisecond, by a number of steps, because a guest's clock does not advance meanwhile.
pub fn compute_briefly() {
    const STEPS: u64 = 400_000;
    let mut state = 1_u64;
    for step in 0..STEPS {
        state = std::hint::black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step));
    }
}

/// Requests any number of random bytes from the host in one call; returns how many it received. The standard library
/// would split the request.
#[cfg(target_family = "wasm")]
pub fn random_bytes(length: u64) -> u32 {
    #[link(wasm_import_module = "wasi:random/random@0.2.6")]
    unsafe extern "C" {
        #[link_name = "get-random-bytes"]
        fn get_random_bytes(length: i64, bytes: *mut [u32; 2]);
    }
    let mut bytes = [0; 2];
    // SAFETY: the canonical ABI writes address and length there, and the memory is leaked.
    unsafe { get_random_bytes(length.cast_signed(), &raw mut bytes) };
    bytes[1]
}

/// Returns a random number of the host.
#[cfg(target_family = "wasm")]
pub fn random_number() -> u64 {
    #[link(wasm_import_module = "wasi:random/random@0.2.6")]
    unsafe extern "C" {
        #[link_name = "get-random-u64"]
        fn get_random_u64() -> i64;
    }
    // SAFETY: the function has no parameters and returns a number.
    unsafe { get_random_u64() }.cast_unsigned()
}

/// Returns 0 outside wasm, where there is no host.
#[cfg(not(target_family = "wasm"))]
pub fn random_number() -> u64 {
    0
}

/// Returns 0 outside wasm, where there is no host.
#[cfg(not(target_family = "wasm"))]
pub fn random_bytes(_length: u64) -> u32 {
    0
}

/// Generated code of the workflow's part of the contract, with every import.
#[allow(missing_docs, clippy::all)]
pub mod raw_workflow {
    wit_bindgen::generate!({
        path: "../../wit",
        inline: "
            package rollout:test-guests;
            world raw-workflow {
                import rollout:plugin/context@0.1.0;
                import rollout:plugin/samples@0.1.0;
                import rollout:plugin/calls@0.1.0;
                import rollout:plugin/models@0.1.0;
                import rollout:plugin/tools@0.1.0;
                import rollout:plugin/observations@0.1.0;
                import rollout:plugin/artifacts@0.1.0;
                import rollout:plugin/log@0.1.0;
                export rollout:plugin/workflow@0.1.0;
            }
        ",
        world: "rollout:test-guests/raw-workflow",
        generate_all,
        pub_export_macro: true,
        export_macro_name: "export_raw",
    });
    pub use exports::rollout::plugin::workflow::Failure;
    use exports::rollout::plugin::workflow::{Guest as Exported, Outcome};
    pub use rollout::plugin::*;

    #[doc(hidden)]
    pub fn used<G: Exported>() {}

    /// A workflow that returns messages or nothing.
    pub trait Guest {
        fn run(prompt: Vec<String>) -> Result<Option<Vec<String>>, Failure>;
    }

    impl<G: Guest> Exported for G {
        fn run(prompt: Vec<String>) -> Result<Outcome, Failure> {
            let messages = <G as Guest>::run(prompt)?;
            Ok(Outcome { messages, metrics: Vec::new() })
        }
    }

    /// Calls of the policy with a list of messages.
    pub mod chat {
        use super::rollout::plugin::calls::Call;
        use super::rollout::plugin::models::{self, Conversation, Role};
        use super::rollout::plugin::samples::Sample;
        pub use models::{Completion, Error};

        #[derive(Clone)]
        pub struct Request {
            pub messages: Vec<String>,
            pub tools: Vec<String>,
            pub params: Option<String>,
        }

        fn to_model_request(request: &Request) -> models::Request {
            let Request { messages, tools, params } = request.clone();
            models::Request {
                conversation: Conversation::Messages(messages),
                tools,
                params,
                keep_reply: false,
            }
        }

        pub fn complete(sample: &Sample, request: &Request) -> Result<Completion, Error> {
            models::complete(Role::Policy, Some(sample), &to_model_request(request))
        }

        pub fn start(sample: &Sample, request: &Request) -> Result<Call, Error> {
            models::start(Role::Policy, Some(sample), &to_model_request(request))
        }

        pub fn finish(call: Call) -> Result<Completion, Error> {
            models::finish(call)
        }
    }
}

/// Generated code of the grader's part of the contract, with every import.
#[allow(missing_docs, clippy::all)]
pub mod raw_grader {
    wit_bindgen::generate!({
        path: "../../wit",
        inline: "
            package rollout:test-guests;
            world raw-grader {
                import rollout:plugin/context@0.1.0;
                import rollout:plugin/samples@0.1.0;
                import rollout:plugin/calls@0.1.0;
                import rollout:plugin/models@0.1.0;
                import rollout:plugin/tools@0.1.0;
                import rollout:plugin/observations@0.1.0;
                import rollout:plugin/artifacts@0.1.0;
                import rollout:plugin/log@0.1.0;
                export rollout:plugin/grader@0.1.0;
            }
        ",
        world: "rollout:test-guests/raw-grader",
        generate_all,
        pub_export_macro: true,
        export_macro_name: "export_raw",
    });
    pub use exports::rollout::plugin::grader::{Failure, GradedSample, Guest, Verdict};
    pub use rollout::plugin::*;

    #[doc(hidden)]
    pub fn used<G: Guest>() {}
}

/// Exports a workflow that uses [`raw_workflow`], and the honest grader.
#[macro_export]
macro_rules! export_raw_workflow {
    ($guest:ident) => {
        ::rollout_sdk::export!(grader = $crate::Honest);
        $crate::export_raw_half!($guest, raw_workflow);
    };
}

/// Exports a grader that uses [`raw_grader`], and the honest workflow.
#[macro_export]
macro_rules! export_raw_grader {
    ($guest:ident) => {
        ::rollout_sdk::export!(workflow = $crate::Honest);
        $crate::export_raw_half!($guest, raw_grader);
    };
}

/// Exports one part. Outside wasm the contract's names are not valid symbols for a linker, so the guest is only marked
/// as used.
#[doc(hidden)]
#[macro_export]
macro_rules! export_raw_half {
    ($guest:ident, $half:ident) => {
        #[cfg(target_family = "wasm")]
        $crate::$half::export_raw!($guest with_types_in $crate::$half);

        #[cfg(not(target_family = "wasm"))]
        #[used]
        static USED_RAW: fn() = $crate::$half::used::<$guest>;
    };
}
