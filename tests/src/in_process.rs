//! A host, its server and a model in the process of the test, for tests that need no separate process.
//!
//! It is created from a configuration and a component by the functions that the commands use, and receives requests
//! over HTTP. Options, the environment, confinement and signals belong to the commands, and are tested with
//! [`TestHost`] as a process.

use std::any::Any;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use rollout_assembly::config::RawConfig;
use rollout_assembly::{NotLoaded, Options, Sources, assemble};
use rollout_core::error::Fault;
use rollout_mock_model::{MockModel, MockModelSettings};
use rollout_server::{Server, ServerIdentity};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{RolloutRequest, TestHost, guest};

/// Maximum number of concurrent connections.
const CALLERS_MAX: usize = 64;

/// A host, its server and a model that does arithmetic. All end when this is dropped.
pub struct InProcess {
    /// The server.
    pub host: TestHost,
    /// The model that workflows call.
    pub model: MockModel,
}

impl InProcess {
    /// Serves this guest with this configuration, on free ports. The runtime needs threads in addition to the test's.
    pub async fn start(guest_name: &str, configuration: &str) -> Self {
        let model =
            MockModel::start(loopback(), MockModelSettings::default()).await.expect("the stand-in starts");
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let config = RawConfig::parse(configuration, "the test").resolve().expect("it is a configuration");
        let options = Options {
            artifact_root: Some(dir.path().join("kept")),
            descriptors_for_callers: Server::descriptors_per_rollout(&config),
            ..Options::default()
        };
        let plugin = guest(guest_name);
        let load = |engine: &rollout_guest::engine::Engine, path: &Path| {
            let component = std::fs::read(path).expect("a guest can be read");
            let not_loaded =
                |error: &dyn std::fmt::Display| NotLoaded { fault: Fault::Plugin, reason: error.to_string() };
            engine.load(&component).map_err(|error| not_loaded(&error))
        };
        let assembled = assemble(&config, Sources::of(&plugin, None), options, load).await.expect("a host");
        let identity = ServerIdentity {
            agent_name: guest_name.to_owned(),
            instance_id: None,
            server_key: None,
            worker: None,
        };
        let server = Server::for_host(&assembled.host, &config, identity, Default::default());
        let socket = rollout_server::bind(loopback()).expect("a port is free");
        let listener = rollout_server::listen(socket).expect("it can be listened on");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let stop = CancellationToken::new();
        let ended: DropGuard = stop.clone().drop_guard();
        tokio::spawn(rollout_server::serve(listener, server.router(), CALLERS_MAX, stop));
        let kept: Box<dyn Any + Send + Sync> = Box::new(ended);
        Self { host: TestHost::in_this_process(url, dir, kept), model }
    }

    /// Returns a request for a rollout with this id and prompt.
    pub fn rollout(&self, id: &str, text: &str) -> RolloutRequest {
        RolloutRequest::of_model(self.model.addr(), &self.model.base_url(), id, text)
    }
}

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}
