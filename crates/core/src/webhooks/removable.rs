//! How a patch that may remove something is spelled: MessagePack has one word for "leave it" and "remove it", so that
//! what is to be there instead stands in a list, which has one item or none.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

pub(super) fn serialize<T: Serialize, S: Serializer>(patch: &Option<Option<T>>, to: S) -> Result<S::Ok, S::Error> {
    patch.as_ref().map(Option::as_slice).serialize(to)
}

pub(super) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Option<T>>, D::Error> {
    let Some(mut values) = Option::<Vec<T>>::deserialize(from)? else { return Ok(None) };
    let value = values.pop();
    if values.is_empty() {
        Ok(Some(value))
    } else {
        Err(D::Error::invalid_length(values.len() + 1, &"one value or none"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{decode, encode};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Patch(#[serde(with = "super")] Option<Option<u32>>);

    #[test]
    fn leaving_removing_and_setting_survive_their_bytes() {
        for patch in [Patch(None), Patch(Some(None)), Patch(Some(Some(7)))] {
            assert_eq!(decode::<Patch>(&encode(&patch)).as_ref(), Ok(&patch));
        }
        assert!(decode::<Patch>(&encode(&vec![7, 8])).is_err());
    }
}
