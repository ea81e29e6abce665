//! A stored response as JSON: what comes in with `complete` goes out with every replay, in the same shape and order.

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use onceward_core::{
    idempotency::{
        Body, HeaderValues, Response, ResponseError,
        bounds::{HEADER_BYTES_MAX, HEADERS_MAX},
    },
    limits::bounds::QUOTED_CHARS_MAX,
};
use serde::{
    Serialize, Serializer,
    de::{IgnoredAny, MapAccess, SeqAccess},
    ser::SerializeMap,
};
use utoipa::ToSchema;

use crate::api::json::{Field, Judge, Object, Wanted, object, shown};

#[derive(ToSchema)]
#[schema(as = ResponseIn)]
pub struct ResponseIn {
    #[schema(value_type = u16, minimum = 100, maximum = 599)]
    status: Field<u64>,
    /// By name a string, or a list of strings; at most 32 names, and 8 KiB of names and values in all.
    #[schema(value_type = Object, required = false)]
    headers: Field<Headers>,
    /// At most 256 KiB, in UTF-8 or, decoded, in bytes. Default: empty.
    #[schema(value_type = String, required = false)]
    body: Field<String>,
    /// `base64`, with padding, where the body is not text.
    #[schema(value_type = String, required = false)]
    body_encoding: Field<String>,
}

object!(ResponseIn { status, headers, body, body_encoding });

/// The members of `headers` in the order they came in. Of more than are kept only their number is known.
#[derive(Default)]
struct Headers {
    members: Vec<(String, Field<Value>)>,
    count: usize,
}

/// What stands behind a header's name. Of a list that is too long only its length is known.
enum Value {
    One(String),
    Many { values: Vec<Field<String>>, count: usize },
}

impl<'de> Wanted<'de> for Headers {
    const WHAT: &'static str = "an object of strings, or lists of strings, by name";

    fn from_object<A: MapAccess<'de>>(mut object: A) -> Result<Option<Self>, A::Error> {
        let mut headers = Headers::default();
        while let Some(name) = object.next_key::<String>()? {
            headers.count += 1;
            if headers.count <= HEADERS_MAX {
                headers.members.push((name, object.next_value()?));
            } else {
                object.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Some(headers))
    }
}

impl<'de> Wanted<'de> for Value {
    const WHAT: &'static str = "a string or a list of strings";

    fn from_text(text: &str) -> Option<Self> {
        Some(Value::One(text.to_owned()))
    }

    fn from_list<A: SeqAccess<'de>>(mut list: A) -> Result<Option<Self>, A::Error> {
        let (mut values, mut count) = (Vec::new(), 0);
        while values.len() < HEADER_BYTES_MAX
            && let Some(value) = list.next_element()?
        {
            values.push(value);
            count += 1;
        }
        while list.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok(Some(Value::Many { values, count }))
    }
}

/// The response of a body.
pub fn read(judge: &mut Judge, field: Field<Object<ResponseIn>>) -> Option<Response> {
    let given = judge.required(field, || "response".to_owned(), "an object with status, headers and body")?;
    let given = judge.object(given, "response.");
    let status = status(judge, given.status);
    let headers = headers(judge, given.headers);
    let body = body(judge, given.body, given.body_encoding);
    Some(Response { status: status?, headers: headers?, body: body? })
}

fn status(judge: &mut Judge, field: Field<u64>) -> Option<u16> {
    let path = "response.status";
    let status = judge.required(field, || path.to_owned(), "a whole number from 100 to 599")?;
    Response::check_status(status).map_err(|error| refuse(judge, path, error)).ok()
}

fn headers(judge: &mut Judge, field: Field<Headers>) -> Option<Vec<(String, HeaderValues)>> {
    let path = "response.headers";
    let given = match field {
        Field::Absent => return Some(Vec::new()),
        given => judge.required(given, || path.to_owned(), Headers::WHAT)?,
    };
    if given.count > HEADERS_MAX {
        refuse(judge, path, ResponseError::TooManyHeaders(given.count));
        return None;
    }
    let (mut headers, mut values, mut complete) = (Vec::with_capacity(given.count), 0, true);
    for (name, value) in given.members {
        let at = || format!("{path}[{:?}]", shown(&name));
        let value = match judge.required(value, at, Value::WHAT) {
            Some(Value::One(value)) => Some(HeaderValues::One(value)),
            Some(Value::Many { values: list, count }) => {
                values += count;
                many(judge, list, at)
            }
            None => None,
        };
        match value {
            Some(value) => headers.push((name, value)),
            None => complete = false,
        }
    }
    // Each value takes a byte at least, also an empty one.
    if values > HEADER_BYTES_MAX {
        judge.refuse_size(path, format!("has {values} values; at most {HEADER_BYTES_MAX} are kept"));
        return None;
    }
    if let Err(error) = Response::check_headers(&headers) {
        refuse(judge, path, error);
        return None;
    }
    complete.then_some(headers)
}

fn many(judge: &mut Judge, values: Vec<Field<String>>, at: impl Fn() -> String) -> Option<HeaderValues> {
    let count = values.len();
    let numbered = values.into_iter().enumerate();
    let texts: Vec<String> =
        numbered.filter_map(|(n, value)| judge.required(value, || format!("{}[{n}]", at()), "a string")).collect();
    (texts.len() == count).then_some(HeaderValues::Many(texts))
}

fn body(judge: &mut Judge, body: Field<String>, encoding: Field<String>) -> Option<Body> {
    const ENCODING: &str = "\"base64\", or left out for text";
    let path = "response.body";
    let text = match body {
        Field::Absent => Some(String::new()),
        given => judge.required(given, || path.to_owned(), "a string"),
    };
    let body = match encoding {
        Field::Absent => Body::Text(text?),
        given => {
            let path = "response.body_encoding";
            let encoding = judge.required(given, || path.to_owned(), ENCODING)?;
            if encoding != "base64" {
                judge.refuse(path, format!("must be {ENCODING}, not {:?}", shown(&encoding)));
                return None;
            }
            decode(judge, &text?)?
        }
    };
    Response::check_body(&body).map_err(|error| refuse(judge, path, error)).ok()?;
    Some(body)
}

fn decode(judge: &mut Judge, text: &str) -> Option<Body> {
    match STANDARD.decode(text) {
        Ok(bytes) => Some(Body::Binary(Bytes::from(bytes))),
        Err(error) => {
            judge.refuse(
                "response.body",
                format!("must be base64 in the standard alphabet with padding (RFC 4648, section 4): {error}"),
            );
            None
        }
    }
}

fn refuse(judge: &mut Judge, path: &str, error: ResponseError) {
    let message: String = error.to_string().chars().take(2 * QUOTED_CHARS_MAX).collect();
    match error.is_too_large() {
        true => judge.refuse_size(path, message),
        false => judge.refuse(path, message),
    }
}

/// A response as it was stored.
#[derive(Serialize, ToSchema)]
#[schema(as = Response)]
pub struct ResponseOut {
    status: u16,
    /// By name a string or a list of strings, as it came in.
    #[schema(value_type = Object)]
    headers: HeadersOut,
    body: String,
    /// `base64` where the body came so; absent where it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    body_encoding: Option<&'static str>,
}

struct HeadersOut(Vec<(String, HeaderValues)>);

impl Serialize for HeadersOut {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, values) in &self.0 {
            match values {
                HeaderValues::One(value) => map.serialize_entry(name, value)?,
                HeaderValues::Many(values) => map.serialize_entry(name, values)?,
            }
        }
        map.end()
    }
}

impl From<Response> for ResponseOut {
    fn from(response: Response) -> ResponseOut {
        let (body, body_encoding) = match response.body {
            Body::Text(text) => (text, None),
            Body::Binary(bytes) => (STANDARD.encode(bytes), Some("base64")),
        };
        ResponseOut { status: response.status, headers: HeadersOut(response.headers), body, body_encoding }
    }
}
