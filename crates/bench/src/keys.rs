//! Keys of one width, so that they can be written into a request in place, and a small generator to draw them with.

/// `k` and nine digits.
pub const KEY_BYTES: usize = 10;

/// The bytes of [`key`].
pub fn write_key(number: u32, into: &mut [u8]) {
    let mut rest = number;
    for digit in into[1..KEY_BYTES].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    into[0] = b'k';
}

pub fn key(number: u32) -> String {
    format!("k{number:09}")
}

/// Xorshift: even enough to spread keys, and hardly any work.
pub struct Draw(u64);

impl Draw {
    pub fn new(seed: u64) -> Draw {
        Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (((self.0 >> 32) * u64::from(bound)) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_in_place_and_keys_as_text_are_the_same() {
        for number in [0, 7, 123_456_789, 999_999_999] {
            let mut bytes = [0; KEY_BYTES];
            write_key(number, &mut bytes);
            assert_eq!(bytes, key(number).as_bytes());
        }
    }
}
