//! Errors of `/api/v1`, as Svix writes them: `{code, detail}`, and for what is wrong with a request 422 with a list of
//! places. Problems are rewritten where answers leave the node, so that those from before a handler are written alike.

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::Response,
};
use serde::Serialize;
use utoipa::ToSchema;

use crate::api::problem::{Code, Place, Problem};

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Whether errors on this path are written so.
pub fn is_webhooks(path: &str) -> bool {
    path.strip_prefix("/api/v1").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[derive(Serialize, ToSchema)]
#[schema(as = HttpErrorOut)]
pub struct HttpErrorBody<'a> {
    /// Stable: decide by it.
    code: &'static str,
    /// What is wrong and what is allowed.
    detail: &'a str,
}

#[derive(Serialize, ToSchema)]
#[schema(as = HTTPValidationError)]
pub struct ValidationErrorBody<'a> {
    /// Stable: decide by it.
    code: &'static str,
    detail: Vec<InvalidPlace<'a>>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = ValidationError)]
pub struct InvalidPlace<'a> {
    /// `body`, `query`, `path` or `header`, and the way from there.
    loc: Vec<&'a str>,
    /// What is wrong and what is allowed.
    msg: &'a str,
    /// Always `value_error`.
    #[serde(rename = "type")]
    kind: &'static str,
}

/// Writes a response that is made of a problem as Svix would, and leaves any other as it is.
pub fn rewrite(mut response: Response) -> Response {
    let Some(problem) = response.extensions_mut().remove::<Problem>() else { return response };
    let (status, body) = write(&problem);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, JSON);
    headers.remove(header::CONTENT_LENGTH);
    *response.status_mut() = status;
    *response.body_mut() = Body::from(body);
    response
}

fn write(problem: &Problem) -> (StatusCode, Vec<u8>) {
    let code = problem.code.as_str();
    let written = match problem.place.filter(|_| is_unprocessable(problem)) {
        Some(place) => {
            let body = ValidationErrorBody { code, detail: places(problem, place) };
            (StatusCode::UNPROCESSABLE_ENTITY, serde_json::to_vec(&body))
        }
        None => (problem.status, serde_json::to_vec(&HttpErrorBody { code, detail: &problem.detail })),
    };
    (written.0, written.1.expect("strings are JSON"))
}

fn is_unprocessable(problem: &Problem) -> bool {
    match problem.code {
        Code::InvalidRequest => problem.status == StatusCode::BAD_REQUEST,
        _ => problem.status == StatusCode::UNPROCESSABLE_ENTITY,
    }
}

fn places(problem: &Problem, place: Place) -> Vec<InvalidPlace<'_>> {
    let name = match place {
        Place::Body => "body",
        Place::Query => "query",
        Place::Path => "path",
        Place::Header => "header",
    };
    let kind = "value_error";
    if problem.errors.is_empty() {
        return vec![InvalidPlace { loc: vec![name], msg: &problem.detail, kind }];
    }
    let errors = problem.errors.iter().map(|error| {
        let loc = std::iter::once(name).chain(steps(&error.field)).collect();
        InvalidPlace { loc, msg: &error.message, kind }
    });
    errors.collect()
}

/// The steps of a path like `channels[3]` or `headers["X-A"]`. Dots and brackets within quotes are part of a name.
fn steps(path: &str) -> impl Iterator<Item = &str> {
    let mut steps = Vec::new();
    let (mut start, mut quoted, mut escaped) = (0, false, false);
    for (at, byte) in path.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'.' | b'[' if !quoted => {
                steps.push(&path[start..at]);
                start = if byte == b'.' { at + 1 } else { at };
            }
            _ => {}
        }
    }
    steps.push(&path[start..]);
    steps.into_iter().filter(|step| !step.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_below_api_v1_are_svixs() {
        for path in ["/api/v1", "/api/v1/", "/api/v1/app/x"] {
            assert!(is_webhooks(path), "{path}");
        }
        for path in ["/", "/api", "/api/v11", "/api/v2/app", "/v1/limits/check", "/x/api/v1"] {
            assert!(!is_webhooks(path), "{path}");
        }
    }

    #[test]
    fn a_path_is_told_step_by_step() {
        let steps = |path| steps(path).collect::<Vec<_>>();
        assert_eq!(steps("url"), ["url"]);
        assert_eq!(steps("channels[3]"), ["channels", "[3]"]);
        assert_eq!(steps("application.metadata[\"a.b[\\\"\"]"), ["application", "metadata", "[\"a.b[\\\"\"]"]);
        assert_eq!(steps(""), [""; 0]);
    }
}
