//! Reading JSON strictly, and telling what is wrong in the caller's words: every field that is missing, of the wrong
//! type or out of range, by its path, with what is allowed.
//!
//! serde would stop at the first wrong type without naming the field, and would take an array for an object. So a
//! member is read as a [`Field`], which keeps a wrong value as a description, and judged afterwards. Unknown and
//! duplicate members and malformed JSON end the reading at once, with their position.

use std::{borrow::Cow, fmt, marker::PhantomData};

use onceward_core::limits::FieldError;
use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use super::problem::Problem;

/// A member of a JSON object.
#[derive(Debug, Default)]
pub enum Field<T> {
    #[default]
    Absent,
    Given(T),
    /// Another type than wanted: what was found.
    Wrong(Cow<'static, str>),
}

/// A type that a [`Field`] can hold: takes the kinds of JSON values it is made from, and refuses the others.
pub trait Wanted<'de>: Sized {
    /// Completes "must be …".
    const WHAT: &'static str;

    fn from_text(_text: &str) -> Option<Self> {
        None
    }

    fn from_integer(_integer: u64) -> Option<Self> {
        None
    }

    fn from_list<A: SeqAccess<'de>>(mut list: A) -> Result<Option<Self>, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn from_object<A: MapAccess<'de>>(mut object: A) -> Result<Option<Self>, A::Error> {
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}

impl<'de> Wanted<'de> for String {
    const WHAT: &'static str = "a string";

    fn from_text(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }
}

impl<'de> Wanted<'de> for u64 {
    const WHAT: &'static str = "a whole number";

    fn from_integer(integer: u64) -> Option<Self> {
        Some(integer)
    }
}

impl<'de, T: Wanted<'de>> Wanted<'de> for Vec<Field<T>> {
    const WHAT: &'static str = "a list";

    fn from_list<A: SeqAccess<'de>>(mut list: A) -> Result<Option<Self>, A::Error> {
        let mut elements = Vec::with_capacity(list.size_hint().unwrap_or(1));
        while let Some(element) = list.next_element()? {
            elements.push(element);
        }
        Ok(Some(elements))
    }
}

/// Reads a struct of [`Field`]s from an object of these members, each once, and no others.
macro_rules! object {
    ($type:ident { $($field:ident),* $(,)? }) => {
        impl<'de> $crate::api::json::Wanted<'de> for $type {
            const WHAT: &'static str = "an object";

            fn from_object<A: serde::de::MapAccess<'de>>(mut object: A) -> Result<Option<Self>, A::Error> {
                $(let mut $field = $crate::api::json::Field::Absent;)*
                while let Some($crate::api::json::Name(name)) = object.next_key()? {
                    match name.as_ref() {
                        $(stringify!($field) if matches!($field, $crate::api::json::Field::Absent) => {
                            $field = object.next_value()?;
                        })*
                        _ => return Err($crate::api::json::surplus(&name, &[$(stringify!($field)),*])),
                    }
                }
                Ok(Some($type { $($field),* }))
            }
        }
    };
}
pub(crate) use object;

/// A member's name, borrowed from the body unless it has escapes.
pub(crate) struct Name<'de>(pub Cow<'de, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(NameVisitor)
    }
}

struct NameVisitor;

impl<'de> Visitor<'de> for NameVisitor {
    type Value = Name<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E: Error>(self, name: &'de str) -> Result<Self::Value, E> {
        Ok(Name(Cow::Borrowed(name)))
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(Name(Cow::Owned(name.to_owned())))
    }
}

const UNKNOWN: &str = "unknown field `";
const DUPLICATE: &str = "duplicate field `";

/// A member that an object has twice, or that it doesn't have.
pub(crate) fn surplus<E: Error>(name: &str, known: &[&str]) -> E {
    if known.contains(&name) {
        return duplicate(name);
    }
    E::custom(format!("{UNKNOWN}{name}`, known are {}", known.join(", ")))
}

pub(crate) fn duplicate<E: Error>(name: &str) -> E {
    E::custom(format!("{DUPLICATE}{name}`"))
}

impl<'de, T: Wanted<'de>> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FieldVisitor(PhantomData))
    }
}

struct FieldVisitor<T>(PhantomData<T>);

impl<'de, T: Wanted<'de>> Visitor<'de> for FieldVisitor<T> {
    type Value = Field<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::WHAT)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Field::Wrong(Cow::Borrowed(if value { "true" } else { "false" })))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(T::from_integer(value).map_or_else(|| Field::Wrong(Cow::Owned(value.to_string())), Field::Given))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Field::Wrong(Cow::Owned(value.to_string())))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Field::Wrong(Cow::Owned(format!("{value:?}"))))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
        Ok(T::from_text(value).map_or(Field::Wrong(Cow::Borrowed("a string")), Field::Given))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Field::Wrong(Cow::Borrowed("null")))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        Ok(T::from_list(list)?.map_or(Field::Wrong(Cow::Borrowed("a list")), Field::Given))
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<Self::Value, A::Error> {
        Ok(T::from_object(object)?.map_or(Field::Wrong(Cow::Borrowed("an object")), Field::Given))
    }
}

/// Reads a body that must be an object of `T`'s members.
pub fn read_object<T: for<'de> Wanted<'de>>(body: &[u8]) -> Result<T, Problem> {
    match serde_json::from_str(text(body)?).map_err(malformed)? {
        Field::Given(object) => Ok(object),
        Field::Wrong(found) => Err(Problem::invalid(format!("the body must be a JSON object, not {found}"))),
        Field::Absent => unreachable!("a value was read"),
    }
}

/// The body as text.
pub fn text(body: &[u8]) -> Result<&str, Problem> {
    if body.is_empty() {
        return Err(Problem::invalid("the body is empty; it must be a JSON object"));
    }
    std::str::from_utf8(body)
        .map_err(|error| Problem::invalid(format!("the body is not UTF-8: byte {} is wrong", error.valid_up_to())))
}

/// What serde_json has to say: syntax with its position, or an unknown or duplicate member by its name.
pub fn malformed(error: serde_json::Error) -> Problem {
    let message = shortened(error.to_string());
    if !error.is_data() {
        return Problem::invalid(format!("the body is not valid JSON: {message}"));
    }
    let field = [UNKNOWN, DUPLICATE]
        .iter()
        .find_map(|start| message.strip_prefix(start)?.split_once('`').map(|(name, _)| name.to_owned()));
    let errors = field.map(|field| FieldError { field, message: message.clone() }).into_iter().collect();
    Problem { errors, ..Problem::invalid(message) }
}

/// A caller's own text, quoted in a message, may be as long as its body.
const MESSAGE_CHARS_MAX: usize = 400;

fn shortened(mut message: String) -> String {
    if let Some((end, _)) = message.char_indices().nth(MESSAGE_CHARS_MAX) {
        let position = message.rfind(" at line ").map(|at| message.split_off(at)).unwrap_or_default();
        message.truncate(end);
        message.push('…');
        message.push_str(&position);
    }
    message
}

/// Judges fields one after the other and collects what is wrong.
#[derive(Debug, Default)]
pub struct Judge {
    errors: Vec<FieldError>,
}

impl Judge {
    pub fn refuse(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.errors.push(FieldError { field: path.into(), message: message.into() });
    }

    /// The value of a field that must be there; `allowed` completes "must be …".
    pub fn required<'de, T: Wanted<'de>>(
        &mut self,
        field: Field<T>,
        path: impl Fn() -> String,
        allowed: &str,
    ) -> Option<T> {
        match field {
            Field::Given(value) => Some(value),
            Field::Absent => {
                self.refuse(path(), format!("is missing; it must be {allowed}"));
                None
            }
            Field::Wrong(found) => {
                self.refuse(path(), format!("must be {allowed}, not {found}"));
                None
            }
        }
    }

    /// The value of a field that may be left out, but not be `null`.
    pub fn optional<'de, T: Wanted<'de>>(
        &mut self,
        field: Field<T>,
        path: impl Fn() -> String,
        allowed: &str,
    ) -> Option<T> {
        match field {
            Field::Absent => None,
            given => self.required(given, path, allowed),
        }
    }

    /// `Ok` when nothing was wrong.
    pub fn verdict(self) -> Result<(), Problem> {
        if self.errors.is_empty() { Ok(()) } else { Err(Problem::invalid_fields(self.errors)) }
    }
}
