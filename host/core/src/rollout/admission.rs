//! Admits a rollout, or says at once why not.

use super::host::Host;
use super::model::RolloutRequest;
use super::run::{Resources, Rollout};
use super::slots::AdmitError;

impl Host {
    /// Admits a rollout, or says at once why not. In a box, because every future that it
    /// is handed through would have its size again, for as long as it waits.
    pub fn admit(&self, request: RolloutRequest, resources: Resources) -> Result<Box<Rollout>, AdmitError> {
        let entered = self.enter(&request);
        match &entered {
            Ok(_) => self.metrics().accepted(),
            Err(error) => self.metrics().refused(error.into()),
        }
        Ok(Box::new(Rollout::new(self.clone(), request, resources, entered?)))
    }
}
