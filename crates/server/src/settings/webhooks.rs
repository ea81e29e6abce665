//! `[webhooks]`: how messages are delivered, and how long they are kept.

use std::time::Duration;

use onceward_core::webhooks::bounds::RETENTION_DAYS_DEFAULT;
use onceward_dispatch::{Cidr, DispatchConfig, Guard};
use toml::Value;

use super::schema::{Declared, Fault, List, Notation, Setting, brief, section};

const SECOND_MS: u64 = 1_000;
const HOUR_MS: u64 = 3_600 * SECOND_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

/// Longer schedules try a receiver more often than anybody looks at it.
pub(super) const RETRIES_MAX: usize = 32;
pub(super) const RETRY_PAUSE_MS_MAX: u64 = 7 * DAY_MS;

section! {
    WebhookSettings {
        /// The pauses between attempts, each jittered by a fifth; a delivery is given up when the attempt behind the last
        /// one fails.
        retry_schedule_ms: List<u64> = List(vec![
            5 * SECOND_MS, 300 * SECOND_MS, 1_800 * SECOND_MS, 2 * HOUR_MS, 5 * HOUR_MS, 10 * HOUR_MS, 14 * HOUR_MS,
            20 * HOUR_MS, 24 * HOUR_MS,
        ]);
        /// Of one attempt: name, connection, TLS, head and body.
        timeout_ms: u32 = 15_000, in 100..=120_000;
        /// An endpoint that fails for so long is disabled.
        disable_after_ms: u64 = 5 * DAY_MS, in SECOND_MS..=365 * DAY_MS;
        /// Messages, their payloads and attempts.
        retention_days: u32 = RETENTION_DAYS_DEFAULT as u32, in 1..=3_650;
        /// Attempts of this node at one time.
        in_flight_max: u32 = 1_024, in 16..=65_536;
        /// Ranges of addresses that may be reached although they aren't public.
        allow_private: List<Cidr> = List(Vec::new());
        /// Endpoints must have an https URL.
        https_only: bool = false;
    }
}

impl WebhookSettings {
    pub fn retention(&self) -> Duration {
        Duration::from_millis(u64::from(self.retention_days) * DAY_MS)
    }

    pub fn retention_us(&self) -> u64 {
        u64::from(self.retention_days) * DAY_MS * 1_000
    }

    /// What the dispatchers of this node go by.
    pub fn dispatch(&self) -> DispatchConfig {
        DispatchConfig {
            schedule: self.retry_schedule_ms.0.iter().copied().map(Duration::from_millis).collect(),
            timeout: Duration::from_millis(u64::from(self.timeout_ms)),
            disable_after: Duration::from_millis(self.disable_after_ms),
            retention: self.retention(),
            in_flight_max: self.in_flight_max as usize,
            guard: Guard { allow: self.allow_private.0.clone(), https_only: self.https_only },
            authorities: Vec::new(),
        }
    }
}

impl Setting for Cidr {
    fn read(value: Value, path: &str, faults: &mut Vec<Fault>) -> Option<Self> {
        let range = value.as_str().and_then(|text| text.parse::<Cidr>().ok());
        if range.is_none() {
            let found = brief(&value);
            faults.push(Fault(format!("{path} must be a range of addresses like \"10.1.0.0/16\", not {found}")));
        }
        range
    }

    fn show(&self) -> Option<Value> {
        Some(Value::String(self.to_string()))
    }

    fn declare(path: &str, declared: &mut Vec<Declared>) {
        declared.push(Declared { name: path.to_owned(), notation: Notation::Toml });
    }
}
