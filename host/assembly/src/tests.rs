//! Tests of an assembled host with generated components and several drivers.

use std::panic::panic_any;

use super::*;
use crate::config::RawConfig;
use rollout_core::limits::Limits;
use rollout_guest::imports::ClockStart;
use rollout_rollout::{
    AdmitError, AfterWorkflow, Failure, FailureKind, LoopOptions, ModelAddress, Next, Outcome, Resources,
    Rollout, RolloutEnd, RolloutRequest, Steps, drive,
};
use rollout_wire::id::RolloutId;

#[path = "../../../tests/src/made.rs"]
#[expect(unreachable_pub, reason = "other tests use it as a crate")]
mod made;

/// Returns a component whose workflow runs these instructions and then returns one message.
fn workflow(body: &str) -> Vec<u8> {
    let module = format!(
        r#"(memory (export "memory") 1)
        (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096))
        (func (export "run") (param i32 i32) (result i32) {body} (i32.const 16))
        (func (export "post") (param i32))"#
    );
    wat::parse_str(made::component_text(&module, "5")).unwrap()
}

async fn assembled(component: Vec<u8>, configuration: &str) -> Result<Assembled, AssemblyError> {
    let text = format!("max-concurrent = 2\nqueue-max = 0\n{configuration}");
    let config = RawConfig::parse(&text, "test").resolve().unwrap();
    let sources = Sources::of(Path::new("made.wasm"), None);
    assemble(&config, sources, Options::default(), |engine, _| {
        let fault = Fault::Plugin;
        engine.load(&component).map_err(|error| NotLoaded { fault, reason: format!("{error:#}") })
    })
    .await
}

fn admit(host: &Host, id: &str) -> Result<Box<Rollout>, AdmitError> {
    let (model, secrets) = ModelAddress::split("http://127.0.0.1:1/v1", "m", None);
    let endpoint = Arc::new(secrets.endpoint(&model).unwrap());
    let request = RolloutRequest {
        id: RolloutId::parse(id).unwrap(),
        caller_id: None,
        attempt: 1,
        prompt: rollout_wire::messages::Messages::default(),
        label: None,
        metadata: None,
        loop_options: LoopOptions::default(),
        model,
        samples_max: 1,
        samples_must_ask: false,
        workflow_secs: None,
        grader_secs: None,
        trajectory_extra: None,
        fork: None,
        conversation: None,
        group: None,
    };
    host.admit(request, Resources { model: endpoint, secrets, charge: None, continuation: None, past: None })
}

/// Driver that returns how a rollout ended.
struct ReturningDriver;

impl Steps for ReturningDriver {
    type End = RolloutEnd;

    fn after_workflow<'a>(&'a self, _ran: Result<(), &'a Failure>) -> AfterWorkflow<'a> {
        AfterWorkflow::Go(Next::Finish)
    }

    async fn finished(self: Box<Self>, ended: RolloutEnd) -> RolloutEnd {
        ended
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_assembled_host_runs_rollouts() {
    let assembled = assembled(workflow(""), "").await.unwrap();
    assert_eq!((assembled.slots.running_max, assembled.slots.bound_by), (2, Bound::Asked));
    let host = &assembled.host;
    let rollout = admit(host, "r").unwrap();

    let RolloutEnd::Finished(finished) = drive(rollout, Box::new(ReturningDriver)).await else {
        panic!("the rollout ends")
    };

    assert_eq!(finished.samples[0].record.messages.get(0), Some(r#"{"role":"assistant","content":"5"}"#));
    assert!(matches!(&finished.outcome, Outcome::Unscored(Failure { kind: FailureKind::NotGraded, .. })));
    assert_eq!(host.load().running, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_assembly_error_names_the_party_at_fault() {
    async fn check(component: Vec<u8>, configuration: &str, fault: Fault, why: &str) {
        let error = assembled(component, configuration).await.err().expect("the assembly fails");
        assert_eq!(error.fault(), fault, "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
    check(b"no component".to_vec(), "", Fault::Plugin, "not a WebAssembly file").await;
    check(workflow("unreachable"), "[grader]\nx = 1\n", Fault::Host, "[grader] configures the component")
        .await;
    check(workflow(""), "[plugin]\nname = 1\n", Fault::Host, "made.wasm: the plugin's configuration").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deployments_on_one_runtime_share_its_slots() {
    let first = assembled(workflow(""), "").await.unwrap();
    let runtime = first.host.runtime();
    let plugin = runtime.engine().load(&workflow("nop")).unwrap();
    let second = Deployment::new(DeploymentSettings {
        served_as: None,
        workflow: plugin,
        grader: None,
        limits: Limits::default(),
        plugin_config: None,
        grader_config: None,
        tools: None,
        judge: None,
        clock_begins: ClockStart::default(),
    })
    .unwrap();
    assert_ne!(second.digest(), first.host.deployment().digest());
    let second = Host::new(runtime.clone(), Arc::new(second));
    let _one = admit(&first.host, "one").unwrap();
    assert_eq!(admit(&second, "one").err(), Some(AdmitError::Duplicate));
    let two = admit(&second, "two").unwrap();
    assert!(matches!(admit(&first.host, "three").err(), Some(AdmitError::Full { .. })));

    assert!(matches!(drive(two, Box::new(ReturningDriver)).await, RolloutEnd::Finished(_)));

    assert!(admit(&first.host, "three").is_ok());
}

/// Driver that panics after the workflow.
struct PanickingDriver;

impl Steps for PanickingDriver {
    type End = RolloutEnd;

    fn after_workflow<'a>(&'a self, _ran: Result<(), &'a Failure>) -> AfterWorkflow<'a> {
        panic_any("the panic of this test")
    }

    async fn finished(self: Box<Self>, ended: RolloutEnd) -> RolloutEnd {
        ended
    }
}

/// Driver that abandons its rollout immediately.
struct AbandoningDriver;

impl Steps for AbandoningDriver {
    type End = RolloutEnd;

    fn after_workflow<'a>(&'a self, _ran: Result<(), &'a Failure>) -> AfterWorkflow<'a> {
        unreachable!("its workflow never ends")
    }

    async fn abandoned(&self) {}

    async fn finished(self: Box<Self>, ended: RolloutEnd) -> RolloutEnd {
        ended
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_that_panics_or_is_abandoned_ends_alone_and_frees_its_slot() {
    let assembled = assembled(workflow(""), "").await.unwrap();
    let host = &assembled.host;

    let crashed = drive(admit(host, "r").unwrap(), Box::new(PanickingDriver)).await;

    let RolloutEnd::Crashed(failure) = crashed else { panic!("the rollout crashed") };
    assert_eq!((failure.kind, failure.fault), (FailureKind::Host, Fault::Host));
    assert!(host.find(&RolloutId::parse("r").unwrap()).is_none());

    let endless = self::assembled(workflow("(loop $again (br $again))"), "").await.unwrap();
    let abandoned = drive(admit(&endless.host, "r").unwrap(), Box::new(AbandoningDriver)).await;

    let RolloutEnd::Cancelled(finished) = abandoned else { panic!("the rollout was cancelled") };
    assert!(matches!(&finished.outcome, Outcome::Unscored(Failure { kind: FailureKind::Cancelled, .. })));
    assert_eq!((host.load().running, endless.host.load().running), (0, 0));
}
