//! EDN, as far as histories need it: the values that Clojure's reader takes, written so that it reads back the same.
//!
//! Maps keep the order in which they were made. Keywords are made from names that the program chose, never from data.

use std::fmt::{self, Display, Formatter, Write};

use serde_json::Value;

#[derive(Debug, Clone, PartialEq)]
pub enum Edn {
    Nil,
    Bool(bool),
    /// Beyond 64 bits with sign, it is written as a big integer.
    Integer(i128),
    Float(f64),
    String(String),
    Keyword(String),
    Vector(Vec<Edn>),
    Map(Vec<(Edn, Edn)>),
}

impl Edn {
    /// `name` with whatever a keyword cannot hold replaced by `-`.
    pub fn keyword(name: &str) -> Edn {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        Edn::Keyword(name.chars().map(plain).collect())
    }

    pub fn string(text: impl Into<String>) -> Edn {
        Edn::String(text.into())
    }

    /// A map whose keys are keywords.
    pub fn map(fields: impl IntoIterator<Item = (&'static str, Edn)>) -> Edn {
        Edn::Map(fields.into_iter().map(|(name, value)| (Edn::keyword(name), value)).collect())
    }
}

/// What serde made of a type of ours: field names become keywords.
impl From<Value> for Edn {
    fn from(value: Value) -> Edn {
        match value {
            Value::Null => Edn::Nil,
            Value::Bool(truth) => Edn::Bool(truth),
            Value::Number(number) => match number.as_i128() {
                Some(integer) => Edn::Integer(integer),
                None => Edn::Float(number.as_f64().expect("JSON numbers are finite")),
            },
            Value::String(text) => Edn::String(text),
            Value::Array(items) => Edn::Vector(items.into_iter().map(Edn::from).collect()),
            Value::Object(fields) => {
                Edn::Map(fields.into_iter().map(|(name, value)| (Edn::keyword(&name), Edn::from(value))).collect())
            }
        }
    }
}

impl Display for Edn {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Edn::Nil => f.write_str("nil"),
            Edn::Bool(truth) => write!(f, "{truth}"),
            Edn::Integer(integer) if i64::try_from(*integer).is_ok() => write!(f, "{integer}"),
            Edn::Integer(integer) => write!(f, "{integer}N"),
            Edn::Float(float) => write!(f, "{float:?}"),
            Edn::String(text) => write_string(f, text),
            Edn::Keyword(name) => write!(f, ":{name}"),
            Edn::Vector(items) => {
                f.write_char('[')?;
                for (i, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if i == 0 { "" } else { " " })?;
                }
                f.write_char(']')
            }
            Edn::Map(fields) => {
                f.write_char('{')?;
                for (i, (key, value)) in fields.iter().enumerate() {
                    write!(f, "{}{key} {value}", if i == 0 { "" } else { ", " })?;
                }
                f.write_char('}')
            }
        }
    }
}

fn write_string(f: &mut Formatter<'_>, text: &str) -> fmt::Result {
    f.write_char('"')?;
    for c in text.chars() {
        match c {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            '\r' => f.write_str("\\r")?,
            '\t' => f.write_str("\\t")?,
            // One operation is one line, whatever a payload holds.
            c if c.is_control() || c == '\u{2028}' || c == '\u{2029}' => write!(f, "\\u{:04x}", u32::from(c))?,
            c => f.write_char(c)?,
        }
    }
    f.write_char('"')
}
