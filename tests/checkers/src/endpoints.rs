//! What a history tells of each endpoint: since when it is there, and whether it was ever taken away.

use std::collections::BTreeMap;

use crate::history::{Call, History, Operation, Reply};

/// An application and an endpoint of it.
pub(crate) type EndpointName<'a> = (&'a str, &'a str);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    /// When the first call that may have created it began.
    pub first_us: u64,
    /// By when it certainly was there.
    pub created_us: u64,
    pub may_be_deleted: bool,
    /// Disabled by a call, or found so.
    pub may_be_disabled: bool,
}

pub(crate) fn endpoints(history: &History) -> BTreeMap<EndpointName<'_>, Known> {
    let mut endpoints: BTreeMap<EndpointName<'_>, Known> = BTreeMap::new();
    for operation in history.operations.iter().filter(|operation| operation.may_have_applied()) {
        let name = match &operation.call {
            Call::PutEndpoint { app, endpoint, .. }
            | Call::DeleteEndpoint { app, endpoint }
            | Call::GetEndpoint { app, endpoint } => (app.as_str(), endpoint.as_str()),
            _ => continue,
        };
        let new = Known { first_us: u64::MAX, created_us: u64::MAX, may_be_deleted: false, may_be_disabled: false };
        endpoints.entry(name).or_insert(new).take(operation);
    }
    endpoints
}

impl Known {
    fn take(&mut self, operation: &Operation) {
        self.may_be_disabled |= matches!(operation.reply(), Some(Reply::Endpoint { disabled: true, .. }));
        match (&operation.call, operation.reply()) {
            (Call::PutEndpoint { disabled, .. }, None | Some(Reply::Endpoint { .. })) => {
                self.may_be_disabled |= disabled;
                self.first_us = self.first_us.min(operation.invoked_us);
                self.created_us = self.created_us.min(operation.effective_until_us());
            }
            (Call::DeleteEndpoint { .. }, None | Some(Reply::Deleted)) => self.may_be_deleted = true,
            _ => {}
        }
    }
}
