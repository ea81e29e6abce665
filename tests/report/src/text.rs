//! Times and amounts as people read them.

/// Three digits and a unit: `870 µs`, `12.3 ms`, `4.05 s`.
pub fn duration(us: u64) -> String {
    let (value, unit) = match us {
        0..1_000 => (us as f64, "µs"),
        1_000..1_000_000 => (us as f64 / 1e3, "ms"),
        _ => (us as f64 / 1e6, "s"),
    };
    let digits = match value {
        v if v >= 99.95 || v.fract() == 0.0 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {unit}")
}

/// Minutes and seconds since the start of the run.
pub fn clock(us: u64) -> String {
    let seconds = us / 1_000_000;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

/// As [`clock`], with milliseconds.
pub fn clock_ms(us: u64) -> String {
    format!("{}.{:03}", clock(us), us / 1000 % 1000)
}

/// A duration as one says it: `9 min 58 s`.
pub fn long(us: u64) -> String {
    let seconds = us.div_ceil(1_000_000);
    match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds} s"),
        (minutes, 0) => format!("{minutes} min"),
        (minutes, seconds) => format!("{minutes} min {seconds} s"),
    }
}

/// A window of a policy: `1 h`, `20 s`, `250 ms`.
pub fn window(us: u64) -> String {
    const MINUTE_US: u64 = 60_000_000;
    match us {
        us if us > 0 && us.is_multiple_of(60 * MINUTE_US) => format!("{} h", us / MINUTE_US / 60),
        us if us > 0 && us.is_multiple_of(MINUTE_US) => format!("{} min", us / MINUTE_US),
        us => duration(us),
    }
}

/// A time of RFC 3339 without fractions of a second.
pub fn to_the_second(rfc3339: &str) -> String {
    match rfc3339.split_once('.') {
        Some((seconds, rest)) => format!("{seconds}{}", rest.trim_start_matches(|c: char| c.is_ascii_digit())),
        None => rfc3339.to_owned(),
    }
}

/// `1 call`, `2 calls`.
pub fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// Digits in groups of three.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    grouped
}
