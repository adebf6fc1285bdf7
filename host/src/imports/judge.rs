//! `judge`: a model that judges, lent to a grader.

use wasmtime::component::Resource;

use super::bindings::rollout::plugin::judge::{self, Error, Reply, Request};
use super::calls::{Call, CallOutcome};
use super::{Ended, Imports, Role};

impl judge::Host for Imports {
    async fn complete(&mut self, _request: Request) -> wasmtime::Result<Result<Reply, Error>> {
        self.called()?;
        self.only(Role::Grader, "judge.complete")?;
        Ok(Err(Error::NotLent))
    }

    fn start(&mut self, _request: Request) -> wasmtime::Result<Result<Resource<Call>, Error>> {
        self.called()?;
        self.only(Role::Grader, "judge.start")?;
        Ok(Err(Error::NotLent))
    }

    async fn finish(&mut self, call: Resource<Call>) -> wasmtime::Result<Result<Reply, Error>> {
        self.called()?;
        let other = match self.take_back(call)?.outcome().await? {
            CallOutcome::Chat(_) => "chat",
            CallOutcome::Tool(_) => "tools",
        };
        Err(wasmtime::Error::new(Ended::WrongCall("judge", other)))
    }
}
