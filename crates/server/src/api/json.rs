//! Reading JSON strictly, and telling what is wrong in the caller's words: every field that is missing, of the wrong
//! type or out of range, by its path, with what is allowed.
//!
//! serde would stop at the first wrong type without naming the field, and would take an array for an object. So a
//! member is read as a [`Field`], which keeps a wrong value as a description, an object as an [`Object`], which keeps
//! the names it should not have, and both are judged afterwards. Only malformed JSON ends the reading, with its position.
//! Bodies of other versions' SDKs are read tolerantly: names that are unknown are read over.

use std::{borrow::Cow, fmt, marker::PhantomData, ops::RangeInclusive};

use bytes::Bytes;
use onceward_core::limits::{FieldError, bounds::QUOTED_CHARS_MAX};
use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use super::problem::{Place, Problem};
use crate::bounds::FIELD_ERRORS_MAX;

/// A member of a JSON object.
#[derive(Debug, Default)]
pub enum Field<T> {
    #[default]
    Absent,
    Null,
    Given(T),
    /// Another type than wanted: what was found.
    Wrong(Cow<'static, str>),
}

/// A type that a [`Field`] can hold: takes the kinds of JSON values it is made from, and refuses the others.
pub trait Wanted<'de>: Sized {
    /// Completes "must be …".
    const WHAT: &'static str;

    fn read<D: Deserializer<'de>>(deserializer: D) -> Result<Field<Self>, D::Error> {
        deserializer.deserialize_any(FieldVisitor(PhantomData))
    }

    fn from_bool(_bool: bool) -> Option<Self> {
        None
    }

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

impl<'de> Wanted<'de> for bool {
    const WHAT: &'static str = "true or false";

    fn from_bool(bool: bool) -> Option<Self> {
        Some(bool)
    }
}

/// An object that is kept as it came in, byte for byte.
#[derive(Debug)]
pub struct RawObject(Box<RawValue>);

impl RawObject {
    pub fn text(&self) -> &str {
        self.0.get()
    }

    pub fn into_bytes(self) -> Bytes {
        Bytes::from(String::from(Box::<str>::from(self.0)))
    }

    /// How many objects and lists lie in each other at its deepest place.
    pub fn depth(&self) -> usize {
        let (mut depth, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
        for byte in self.text().bytes() {
            match byte {
                _ if escaped => escaped = false,
                b'\\' if in_string => escaped = true,
                b'"' => in_string = !in_string,
                _ if in_string => {}
                b'{' | b'[' => {
                    depth += 1;
                    deepest = deepest.max(depth);
                }
                b'}' | b']' => depth -= 1,
                _ => {}
            }
        }
        deepest
    }
}

impl<'de> Wanted<'de> for RawObject {
    const WHAT: &'static str = "an object";

    fn read<D: Deserializer<'de>>(deserializer: D) -> Result<Field<Self>, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Ok(match raw.get().as_bytes().first() {
            Some(b'{') => Field::Given(RawObject(raw)),
            Some(b'n') => Field::Null,
            Some(b'[') => Field::Wrong(Cow::Borrowed("a list")),
            Some(b'"') => Field::Wrong(Cow::Borrowed("a string")),
            Some(b't' | b'f') => Field::Wrong(Cow::Borrowed("true or false")),
            _ => Field::Wrong(Cow::Borrowed("a number")),
        })
    }
}

/// An object of one kind of values by name, in the order they came in. Of more than `MAX` only their number is known.
#[derive(Debug)]
pub struct ByName<T, const MAX: usize> {
    pub members: Vec<(String, Field<T>)>,
    pub count: usize,
}

impl<'de, T: Wanted<'de>, const MAX: usize> Wanted<'de> for ByName<T, MAX> {
    const WHAT: &'static str = "an object of strings by name";

    fn from_object<A: MapAccess<'de>>(mut object: A) -> Result<Option<Self>, A::Error> {
        let (mut members, mut count) = (Vec::new(), 0);
        while let Some(name) = object.next_key::<String>()? {
            count += 1;
            if count <= MAX {
                members.push((name, object.next_value()?));
            } else {
                object.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Some(ByName { members, count }))
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

/// The members of an object by name, each a [`Field`]; see [`object!`].
pub trait Members<'de>: Sized {
    /// Reads them all. Names that are unknown, or come a second time, are told to `surplus`.
    fn read<A: MapAccess<'de>>(object: A, surplus: &mut Vec<Surplus>) -> Result<Self, A::Error>;
}

/// A member that an object should not have.
#[derive(Debug)]
pub struct Surplus {
    name: String,
    message: String,
    /// It is known, and came before.
    twice: bool,
}

/// An object as it came in. Only [`Judge::object`] gives its members out, so that no surplus one goes unnoticed.
#[derive(Debug)]
pub struct Object<T> {
    members: T,
    surplus: Vec<Surplus>,
}

impl<'de, T: Members<'de>> Wanted<'de> for Object<T> {
    const WHAT: &'static str = "an object";

    fn from_object<A: MapAccess<'de>>(object: A) -> Result<Option<Self>, A::Error> {
        let mut surplus = Vec::new();
        Ok(Some(Object { members: T::read(object, &mut surplus)?, surplus }))
    }
}

/// Makes a struct of [`Field`]s readable from an object of these members; one that is named otherwise in JSON with
/// that name.
macro_rules! object {
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $name:literal) => { $name };
    ($type:ident { $($field:ident $(: $name:literal)?),* $(,)? }) => {
        impl<'de> $crate::api::json::Members<'de> for $type {
            fn read<A: serde::de::MapAccess<'de>>(
                mut object: A,
                surplus: &mut Vec<$crate::api::json::Surplus>,
            ) -> Result<Self, A::Error> {
                $(let mut $field = $crate::api::json::Field::Absent;)*
                while let Some($crate::api::json::Name(name)) = object.next_key()? {
                    match name.as_ref() {
                        $($crate::api::json::object!(@name $field $($name)?)
                            if matches!($field, $crate::api::json::Field::Absent) =>
                        {
                            $field = object.next_value()?;
                        })*
                        _ => {
                            object.next_value::<serde::de::IgnoredAny>()?;
                            $crate::api::json::note_surplus(
                                surplus,
                                &name,
                                &[$($crate::api::json::object!(@name $field $($name)?)),*],
                            );
                        }
                    }
                }
                Ok($type { $($field),* })
            }
        }
    };
}
pub(crate) use object;

pub(crate) fn note_surplus(surplus: &mut Vec<Surplus>, name: &str, known: &[&str]) {
    let twice = known.contains(&name);
    // Of each kind by itself: where unknown names are read over, they hide no others.
    if surplus.iter().filter(|surplus| surplus.twice == twice).count() < FIELD_ERRORS_MAX {
        let message = match twice {
            true => DUPLICATE.to_owned(),
            false => format!("is unknown; known are {}", known.join(", ")),
        };
        surplus.push(Surplus { name: shown(name), message, twice });
    }
}

/// What is said of a member that an object has twice.
pub const DUPLICATE: &str = "is there twice";

/// The beginning of a caller's own text, for a message.
pub fn shown(text: &str) -> String {
    text.chars().take(QUOTED_CHARS_MAX).collect()
}

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

impl<'de, T: Wanted<'de>> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::read(deserializer)
    }
}

struct FieldVisitor<T>(PhantomData<T>);

impl<'de, T: Wanted<'de>> Visitor<'de> for FieldVisitor<T> {
    type Value = Field<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::WHAT)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        let wrong = || Field::Wrong(Cow::Borrowed(if value { "true" } else { "false" }));
        Ok(T::from_bool(value).map_or_else(wrong, Field::Given))
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
        Ok(Field::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        Ok(T::from_list(list)?.map_or(Field::Wrong(Cow::Borrowed("a list")), Field::Given))
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<Self::Value, A::Error> {
        Ok(T::from_object(object)?.map_or(Field::Wrong(Cow::Borrowed("an object")), Field::Given))
    }
}

/// Reads a body that must be an object of `T`'s members and no others.
pub fn read_object<T: for<'de> Members<'de>>(body: &[u8], judge: &mut Judge) -> Result<T, Problem> {
    let object = parse(body)?;
    Ok(judge.object(object, ""))
}

/// Reads a body that must be an object of `T`'s members, whatever others it has.
pub fn read_tolerantly<T: for<'de> Members<'de>>(body: &[u8], judge: &mut Judge) -> Result<T, Problem> {
    let object = parse(body)?;
    Ok(judge.tolerant_object(object, ""))
}

fn parse<T: for<'de> Members<'de>>(body: &[u8]) -> Result<Object<T>, Problem> {
    let invalid = |detail| Problem::invalid(detail).in_place(Place::Body);
    let found = match serde_json::from_str(text(body).map_err(invalid)?) {
        Ok(Field::Given(object)) => return Ok(object),
        Ok(Field::Wrong(found)) => found,
        Ok(Field::Null) => Cow::Borrowed("null"),
        Ok(Field::Absent) => unreachable!("a value was read"),
        // Of wrong types a field keeps account, so what is left is syntax: told with its position.
        Err(error) => return Err(invalid(format!("the body is not valid JSON: {error}"))),
    };
    Err(invalid(format!("the body must be a JSON object, not {found}")))
}

fn text(body: &[u8]) -> Result<&str, String> {
    if body.is_empty() {
        return Err("the body is empty; it must be a JSON object".to_owned());
    }
    std::str::from_utf8(body).map_err(|error| format!("the body is not UTF-8: byte {} is wrong", error.valid_up_to()))
}

/// Judges fields one after the other and collects what is wrong.
#[derive(Debug, Default)]
pub struct Judge {
    place: Place,
    errors: Vec<FieldError>,
    /// What is well-formed, but more than is taken.
    too_large: Vec<FieldError>,
}

impl Judge {
    /// Of fields that are not the body's.
    pub fn of(place: Place) -> Judge {
        Judge { place, ..Judge::default() }
    }

    /// Notes what is wrong with a field.
    pub fn refuse(&mut self, path: impl Into<String>, message: impl Into<String>) {
        // A large body can be wrong in thousands of places, of which no more are told anyway.
        if self.errors.len() < FIELD_ERRORS_MAX {
            self.errors.push(FieldError { field: path.into(), message: message.into() });
        }
    }

    /// Notes a field that is well-formed, but more than is taken. If nothing is wrong but that, it is `too_large`.
    pub fn refuse_size(&mut self, path: impl Into<String>, message: impl Into<String>) {
        if self.too_large.len() < FIELD_ERRORS_MAX {
            self.too_large.push(FieldError { field: path.into(), message: message.into() });
        }
    }

    /// The members of an object; surplus ones are refused. `at` is the object's own path, empty or ending in a dot.
    pub fn object<T>(&mut self, object: Object<T>, at: &str) -> T {
        for Surplus { name, message, .. } in object.surplus {
            self.refuse(format!("{at}{name}"), message);
        }
        object.members
    }

    /// The members of an object whose unknown ones are read over; one that is there twice is refused.
    pub fn tolerant_object<T>(&mut self, mut object: Object<T>, at: &str) -> T {
        object.surplus.retain(|surplus| surplus.twice);
        self.object(object, at)
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
            Field::Null => {
                self.refuse(path(), format!("must be {allowed}, not null"));
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

    /// The value of a field that may be left out or be `null`, which means the same.
    pub fn nullable<'de, T: Wanted<'de>>(
        &mut self,
        field: Field<T>,
        path: impl Fn() -> String,
        allowed: &str,
    ) -> Option<T> {
        match field {
            Field::Null => None,
            given => self.optional(given, path, allowed),
        }
    }

    /// A string of 1 to `bytes_max` bytes; `allowed` says so.
    pub fn text(
        &mut self,
        field: Field<String>,
        path: impl Fn() -> String,
        bytes_max: usize,
        allowed: &str,
    ) -> Option<String> {
        let text = self.required(field, &path, allowed)?;
        let fits = (1..=bytes_max).contains(&text.len());
        if !fits {
            self.refuse(path(), format!("must be {allowed}, not {}", text.len()));
        }
        fits.then_some(text)
    }

    /// A whole number within `range`; `allowed` says so.
    pub fn number(
        &mut self,
        field: Field<u64>,
        path: impl Fn() -> String,
        range: RangeInclusive<u64>,
        allowed: &str,
    ) -> Option<u64> {
        let number = self.required(field, &path, allowed)?;
        let fits = range.contains(&number);
        if !fits {
            self.refuse(path(), format!("must be {allowed}, not {number}"));
        }
        fits.then_some(number)
    }

    /// What was read, when nothing was wrong. It is `None` only where a refused field left it incomplete.
    pub fn verdict<T>(mut self, read: Option<T>) -> Result<T, Problem> {
        match read {
            Some(read) if self.errors.is_empty() && self.too_large.is_empty() => Ok(read),
            _ if self.errors.is_empty() && !self.too_large.is_empty() => Err(Problem::too_large_fields(self.too_large)),
            _ => {
                self.errors.append(&mut self.too_large);
                Err(Problem::invalid_fields(self.errors).in_place(self.place))
            }
        }
    }
}
