//! What the targets share: picking a reader by the input's first byte, the law of whatever can be read, and a bound on
//! memory.

mod memory;

use std::fmt::Debug;

use onceward_core::codec;
use serde::{Serialize, de::DeserializeOwned};

pub use self::memory::assert_bounded;

/// Memory for reading an input that isn't a frame: sequences reserve up to a megabyte on the word of their length, and
/// values are larger than the bytes that say them.
pub const fn memory_bytes_max(input: &[u8]) -> usize {
    (4 << 20) + 128 * input.len()
}

/// Gives the input to the reader that its first byte names. Readers are only ever added at the end: the seeds name
/// them by number.
pub fn dispatch(readers: &[fn(&[u8])], input: &[u8]) {
    if let Some((&reader, bytes)) = input.split_first() {
        readers[usize::from(reader) % readers.len()](bytes);
    }
}

/// What can be read survives being written and read again.
pub fn assert_survives<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) {
    if let Ok(value) = codec::decode::<T>(bytes) {
        assert_eq!(codec::decode::<T>(&codec::encode(&value)).as_ref(), Ok(&value));
    }
}
