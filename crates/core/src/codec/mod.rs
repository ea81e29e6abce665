//! Bytes: versioned MessagePack for values, fixed layouts for keys.
//!
//! What is written here is read by other nodes and by later versions, so the golden files of this crate pin it. Decoding
//! takes any bytes whatsoever and answers a value or an error; it knows nothing of what the values mean.

pub mod keys;

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

/// The first byte of every encoded value.
pub const FORMAT_VERSION: u8 = 1;
/// Nesting of a value at the most; the deepest of our types needs about half of it.
pub const DEPTH_MAX: usize = 32;
/// Room for a bucket's row or a single check without growing.
const CAPACITY_GUESS_BYTES: usize = 96;

/// Why bytes are not a value of the wanted type.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DecodeError {
    #[error("no bytes at all")]
    Empty,
    #[error("format version {0}; this program reads version {FORMAT_VERSION}")]
    UnknownVersion(u8),
    #[error("malformed: {0}")]
    Malformed(String),
    #[error("{0} bytes left over behind the value")]
    TrailingBytes(usize),
}

/// MessagePack behind one version byte: structs as arrays of their fields in order, variants by name.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Bytes {
    let mut bytes = Vec::with_capacity(CAPACITY_GUESS_BYTES);
    bytes.push(FORMAT_VERSION);
    rmp_serde::encode::write(&mut bytes, value).expect("our types are plain data and a Vec takes every byte");
    Bytes::from(bytes)
}

/// Reads what [`encode`] wrote, all of it.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    let (&version, body) = bytes.split_first().ok_or(DecodeError::Empty)?;
    if version != FORMAT_VERSION {
        return Err(DecodeError::UnknownVersion(version));
    }
    let mut deserializer = rmp_serde::Deserializer::new(body);
    deserializer.set_max_depth(DEPTH_MAX);
    let value = T::deserialize(&mut deserializer).map_err(|error| DecodeError::Malformed(error.to_string()))?;
    match deserializer.get_ref().len() {
        0 => Ok(value),
        left => Err(DecodeError::TrailingBytes(left)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_survives_its_bytes_and_nothing_else_passes() {
        let value = (u128::MAX, u64::MAX, String::from("ü"), Some(-1_i64), vec![1_u8, 2]);
        let bytes = encode(&value);
        assert_eq!(decode::<(u128, u64, String, Option<i64>, Vec<u8>)>(&bytes), Ok(value));

        assert_eq!(decode::<u64>(&[]), Err(DecodeError::Empty));
        assert_eq!(decode::<u64>(&[9, 1]), Err(DecodeError::UnknownVersion(9)));
        assert_eq!(decode::<u64>(&[FORMAT_VERSION, 1, 1]), Err(DecodeError::TrailingBytes(1)));
        assert!(matches!(decode::<u64>(&[FORMAT_VERSION, 0xcf, 1]), Err(DecodeError::Malformed(_))));
    }

    #[test]
    fn deep_nesting_is_refused() {
        // A list that holds itself is the cheapest way to make a reader recurse.
        #[derive(Debug, serde::Deserialize)]
        struct Nested(#[allow(dead_code)] Vec<Nested>);
        let mut bytes = vec![0x91; 100_000];
        bytes[0] = FORMAT_VERSION;
        assert!(matches!(decode::<Nested>(&bytes), Err(DecodeError::Malformed(_))));
    }
}
