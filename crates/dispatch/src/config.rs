//! What an operator may set of dispatch.

use std::time::Duration;

use tokio_rustls::rustls::pki_types::CertificateDer;

use crate::guard::Guard;

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

#[derive(Debug, Clone)]
pub struct DispatchConfig {
    /// The pauses between attempts; a delivery is given up when the attempt behind the last one fails.
    pub schedule: Vec<Duration>,
    /// Of one attempt: name, connection, TLS, head and body.
    pub timeout: Duration,
    /// An endpoint that fails for so long is disabled.
    pub disable_after: Duration,
    /// How long messages to operational endpoints are kept.
    pub retention: Duration,
    /// Attempts of this node at one time; failing endpoints have at most half of them.
    pub in_flight_max: usize,
    pub guard: Guard,
    /// Certificates that are trusted beside the public authorities'.
    pub authorities: Vec<CertificateDer<'static>>,
}

impl Default for DispatchConfig {
    fn default() -> DispatchConfig {
        let minutes = |count: u32| Duration::from_secs(60) * count;
        DispatchConfig {
            schedule: vec![
                Duration::from_secs(5),
                minutes(5),
                minutes(30),
                2 * HOUR,
                5 * HOUR,
                10 * HOUR,
                14 * HOUR,
                20 * HOUR,
                24 * HOUR,
            ],
            timeout: Duration::from_secs(15),
            disable_after: 5 * DAY,
            retention: 90 * DAY,
            in_flight_max: 1_024,
            guard: Guard::default(),
            authorities: Vec::new(),
        }
    }
}
