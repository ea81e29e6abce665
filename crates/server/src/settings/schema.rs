//! How settings are declared and read: one declaration gives a setting its name, type, default and range; reading
//! collects every fault instead of stopping at the first, and names each setting in full (`http.tls.cert`).
//!
//! In goes a TOML value, out comes a typed section or a list of faults. Nothing here knows which settings exist.

use std::{fmt::Display, net::SocketAddr, ops::RangeInclusive, path::PathBuf};

use serde::Deserialize;
use toml::{Table, Value};

/// What is wrong with a setting, in a sentence that begins with its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault(pub String);

/// How a value is written where there is only text: in an environment variable or behind `--set`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notation {
    /// Taken as it stands.
    Text,
    /// As in the TOML file: a number, a boolean, an array of tables.
    Toml,
}

/// A setting that exists.
#[derive(Debug, Clone)]
pub struct Declared {
    /// `section.name`; for a setting inside an array of tables the array's name stands for its elements.
    pub name: String,
    pub notation: Notation,
}

/// A value that can be a setting, or a section of them.
pub trait Setting: Sized {
    /// Reads what stands at `path`; `None` when there is a fault that leaves nothing to go on with.
    fn read(value: Value, path: &str, faults: &mut Vec<Fault>) -> Option<Self>;

    /// The value as it would stand in the file, secrets hidden; `None` when it isn't set.
    fn show(&self) -> Option<Value>;

    /// Adds the settings at and below `path`.
    fn declare(path: &str, declared: &mut Vec<Declared>);
}

/// A secret from the configuration: never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(hidden)")
    }
}

/// Settings of one value, by what their text is and how they are printed.
macro_rules! leaf {
    ($($type:ty, $notation:ident, $what:literal, $show:expr;)*) => {$(
        impl Setting for $type {
            fn read(value: Value, path: &str, faults: &mut Vec<Fault>) -> Option<Self> {
                read_leaf(value, path, $what, faults)
            }

            fn show(&self) -> Option<Value> {
                let show: fn(&$type) -> Value = $show;
                Some(show(self))
            }

            fn declare(path: &str, declared: &mut Vec<Declared>) {
                declared.push(Declared { name: path.to_owned(), notation: Notation::$notation });
            }
        }
    )*};
}

leaf! {
    bool, Toml, "true or false", |value| Value::Boolean(*value);
    u16, Toml, "an integer from 0 to 65535", |value| Value::Integer(i64::from(*value));
    u32, Toml, "an integer from 0 to 4294967295", |value| Value::Integer(i64::from(*value));
    u64, Toml, "a non-negative integer", |value| Value::Integer(i64::try_from(*value).unwrap_or(i64::MAX));
    String, Text, "a string", |value| Value::String(value.clone());
    PathBuf, Text, "a path", |value| Value::String(value.display().to_string());
    SocketAddr, Text, "an address like 127.0.0.1:4001", |value| Value::String(value.to_string());
}

fn read_leaf<T: for<'de> Deserialize<'de>>(value: Value, path: &str, what: &str, faults: &mut Vec<Fault>) -> Option<T> {
    let found = brief(&value);
    match T::deserialize(value) {
        Ok(read) => Some(read),
        Err(_) => {
            faults.push(Fault(format!("{path} must be {what}, not {found}")));
            None
        }
    }
}

impl Setting for Secret {
    fn read(value: Value, path: &str, faults: &mut Vec<Fault>) -> Option<Self> {
        match value {
            Value::String(text) => Some(Secret(text)),
            // What was found may be the secret in another type: it isn't repeated.
            _ => {
                faults.push(Fault(format!("{path} must be a string")));
                None
            }
        }
    }

    fn show(&self) -> Option<Value> {
        Some(Value::String("(hidden)".to_owned()))
    }

    fn declare(path: &str, declared: &mut Vec<Declared>) {
        declared.push(Declared { name: path.to_owned(), notation: Notation::Text });
    }
}

impl<T: Setting> Setting for Option<T> {
    fn read(value: Value, path: &str, faults: &mut Vec<Fault>) -> Option<Self> {
        T::read(value, path, faults).map(Some)
    }

    fn show(&self) -> Option<Value> {
        self.as_ref().and_then(T::show)
    }

    fn declare(path: &str, declared: &mut Vec<Declared>) {
        T::declare(path, declared);
    }
}

impl<T: Setting> Setting for Vec<T> {
    fn read(value: Value, path: &str, faults: &mut Vec<Fault>) -> Option<Self> {
        let Value::Array(elements) = value else {
            faults.push(Fault(format!("{path} must be an array of tables ([[{path}]])")));
            return None;
        };
        let read = elements.into_iter().enumerate().map(|(at, value)| T::read(value, &format!("{path}[{at}]"), faults));
        // Every element is read, so that all faults are told; one that cannot be read spoils the array.
        read.collect::<Vec<_>>().into_iter().collect()
    }

    fn show(&self) -> Option<Value> {
        Some(Value::Array(self.iter().filter_map(T::show).collect()))
    }

    fn declare(path: &str, declared: &mut Vec<Declared>) {
        declared.push(Declared { name: path.to_owned(), notation: Notation::Toml });
        T::declare(path, declared);
    }
}

/// A setting that is a list of values, where `Vec` is an array of tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List<T>(pub Vec<T>);

impl<T: Setting> Setting for List<T> {
    fn read(value: Value, path: &str, faults: &mut Vec<Fault>) -> Option<Self> {
        let Value::Array(elements) = value else {
            faults.push(Fault(format!("{path} must be a list ([…])")));
            return None;
        };
        let read = elements.into_iter().enumerate().map(|(at, value)| T::read(value, &format!("{path}[{at}]"), faults));
        read.collect::<Vec<_>>().into_iter().collect::<Option<Vec<T>>>().map(List)
    }

    fn show(&self) -> Option<Value> {
        Some(Value::Array(self.0.iter().filter_map(T::show).collect()))
    }

    fn declare(path: &str, declared: &mut Vec<Declared>) {
        declared.push(Declared { name: path.to_owned(), notation: Notation::Toml });
    }
}

/// Declares a setting of a few named values.
macro_rules! choice {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$doc])* $variant),* }

        impl $name {
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text),* }
            }
        }

        impl $crate::settings::schema::Setting for $name {
            fn read(value: toml::Value, path: &str, faults: &mut Vec<$crate::settings::schema::Fault>) -> Option<Self> {
                match value.as_str() {
                    $(Some($text) => return Some($name::$variant),)*
                    _ => {}
                }
                let allowed = [$(concat!("\"", $text, "\"")),*].join(" or ");
                let found = $crate::settings::schema::brief(&value);
                faults.push($crate::settings::schema::Fault(format!("{path} must be {allowed}, not {found}")));
                None
            }

            fn show(&self) -> Option<toml::Value> {
                Some(toml::Value::String(self.as_str().to_owned()))
            }

            fn declare(path: &str, declared: &mut Vec<$crate::settings::schema::Declared>) {
                declared.push($crate::settings::schema::Declared {
                    name: path.to_owned(),
                    notation: $crate::settings::schema::Notation::Text,
                });
            }
        }
    };
}

/// Declares a section: `name: type = default;`, with `in low..=high` where not every value of the type makes sense.
macro_rules! section {
    ($(#[$meta:meta])* $name:ident {
        $($(#[$doc:meta])* $field:ident: $type:ty = $default:expr $(, in $range:expr)?;)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone)]
        pub struct $name { $($(#[$doc])* pub $field: $type),* }

        impl Default for $name {
            fn default() -> Self {
                $name { $($field: $default),* }
            }
        }

        impl $crate::settings::schema::Setting for $name {
            fn read(value: toml::Value, path: &str, faults: &mut Vec<$crate::settings::schema::Fault>) -> Option<Self> {
                let mut table = $crate::settings::schema::table(value, path, faults)?;
                let mut section = $name::default();
                $(
                    let field = $crate::settings::schema::join(path, stringify!($field));
                    if let Some(value) = table.remove(stringify!($field))
                        && let Some(value) = <$type as $crate::settings::schema::Setting>::read(value, &field, faults)
                    {
                        $($crate::settings::schema::check_range(&value, $range, &field, faults);)?
                        section.$field = value;
                    }
                )*
                $crate::settings::schema::refuse_unknown(&table, path, &[$(stringify!($field)),*], faults);
                Some(section)
            }

            fn show(&self) -> Option<toml::Value> {
                let mut table = toml::Table::new();
                $(
                    if let Some(value) = $crate::settings::schema::Setting::show(&self.$field) {
                        table.insert(stringify!($field).to_owned(), value);
                    }
                )*
                Some(toml::Value::Table(table))
            }

            fn declare(path: &str, declared: &mut Vec<$crate::settings::schema::Declared>) {
                $(
                    let field = $crate::settings::schema::join(path, stringify!($field));
                    <$type as $crate::settings::schema::Setting>::declare(&field, declared);
                )*
            }
        }
    };
}

pub(crate) use {choice, section};

pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

pub(crate) fn table(value: Value, path: &str, faults: &mut Vec<Fault>) -> Option<Table> {
    match value {
        Value::Table(table) => Some(table),
        // What was found may be a secret in the wrong place: it isn't repeated.
        _ => {
            faults.push(Fault(format!("{path} must be a table ([{path}])")));
            None
        }
    }
}

pub(crate) fn check_range<T: PartialOrd + Display>(
    value: &T,
    range: RangeInclusive<T>,
    path: &str,
    faults: &mut Vec<Fault>,
) {
    if !range.contains(value) {
        faults.push(Fault(format!("{path} must be from {} to {}, not {value}", range.start(), range.end())));
    }
}

pub(crate) fn refuse_unknown(table: &Table, path: &str, known: &[&str], faults: &mut Vec<Fault>) {
    for name in table.keys() {
        let full = join(path, name);
        let hint = match nearest(name, known) {
            Some(near) => format!("did you mean {}?", join(path, near)),
            None => format!("known here: {}", known.join(", ")),
        };
        faults.push(Fault(format!("{full} is not a setting; {hint}")));
    }
}

/// A value as a fault quotes it.
pub(crate) fn brief(value: &Value) -> String {
    match value {
        Value::Table(_) => "a table".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        other => other.to_string(),
    }
}

/// The known name that was probably meant: at most a third of its letters differ.
pub(crate) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let (near, distance) =
        known.iter().map(|known| (*known, edits(name, known))).min_by_key(|(_, distance)| *distance)?;
    (distance * 3 <= near.len().max(3)).then_some(near)
}

/// Levenshtein distance in bytes.
fn edits(left: &str, right: &str) -> usize {
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.bytes().enumerate() {
            let substituted = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}
