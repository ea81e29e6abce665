//! Instants as the API writes them: RFC 3339 in UTC with milliseconds (<https://www.rfc-editor.org/rfc/rfc3339>). They
//! are for people; nothing is judged by them.

use std::fmt;

use serde::{Serialize, Serializer};
use time::OffsetDateTime;

/// The last millisecond that RFC 3339, with its four digits of a year, can write.
const WALL_MS_MAX: u64 = 253_402_300_799_999;

/// Milliseconds since 1970 by some node's wall clock, which may be wrong by any amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instant(u64);

impl Instant {
    pub fn of_wall_ms(wall_ms: u64) -> Instant {
        Instant(wall_ms.min(WALL_MS_MAX))
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, ms) = ((self.0 / 1_000) as i64, self.0 % 1_000);
        let at = OffsetDateTime::from_unix_timestamp(seconds).expect("it lies before the year 10000");
        let (year, month, day) = at.to_calendar_date();
        let (hour, minute, second) = at.to_hms();
        write!(f, "{year:04}-{:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z", u8::from(month))
    }
}

impl Serialize for Instant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wall_clock_has_an_instant() {
        for (wall_ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (1_767_323_045_006, "2026-01-02T03:04:05.006Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59.999Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
            (253_402_300_800_000, "9999-12-31T23:59:59.999Z"),
            (u64::MAX, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(Instant::of_wall_ms(wall_ms).to_string(), text);
        }
    }
}
