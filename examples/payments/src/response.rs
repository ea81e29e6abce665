//! An answer that is kept: what the ledger commits, what Onceward stores, and what every repetition gets, byte for byte.

use std::collections::BTreeMap;

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, StatusCode},
    response::Response,
};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredResponse {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl StoredResponse {
    pub fn new(status: StatusCode, content_type: &str, body: String) -> StoredResponse {
        let headers = BTreeMap::from([("content-type".to_owned(), content_type.to_owned())]);
        StoredResponse { status: status.as_u16(), headers, body }
    }

    /// Exactly these bytes. `replayed` says in a header of its own that they are not of this request's making.
    pub fn to_http(&self, replayed: bool) -> Result<Response, axum::http::Error> {
        let mut response = Response::builder().status(self.status).body(Body::from(self.body.clone()))?;
        for (name, value) in &self.headers {
            let name: HeaderName = name.parse()?;
            response.headers_mut().insert(name, value.parse::<HeaderValue>()?);
        }
        if replayed {
            response.headers_mut().insert("idempotent-replayed", HeaderValue::from_static("true"));
        }
        Ok(response)
    }
}
