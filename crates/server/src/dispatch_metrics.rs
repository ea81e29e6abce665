//! The counters of dispatch as metrics. A reading is a snapshot, so each scrape builds its registry anew.

use std::fmt;

use onceward_dispatch::{DispatchStats, LAG_BOUNDS_MS};
use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::{
        MetricType,
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::ConstGauge,
    },
    registry::Registry,
};

/// The reading as a registry of `onceward_webhook_*` metrics.
pub fn registry(stats: &DispatchStats) -> Registry {
    let mut registry = Registry::with_prefix("onceward_webhook");
    let attempts = Family::<[(&str, &str); 1], Counter>::default();
    let outcomes = [
        ("2xx", stats.attempts_2xx),
        ("3xx", stats.attempts_3xx),
        ("4xx", stats.attempts_4xx),
        ("5xx", stats.attempts_5xx),
        ("other", stats.attempts_other),
        ("timed_out", stats.attempts_timed_out),
        ("failed", stats.attempts_failed),
        ("refused", stats.attempts_refused),
        ("crashed", stats.attempts_crashed),
    ];
    for (outcome, count) in outcomes {
        attempts.get_or_create(&[("outcome", outcome)]).inc_by(count);
    }
    registry.register(
        "attempts",
        "Attempts to deliver, by what came of them; refused: by the guard against inner networks",
        attempts,
    );
    let counters = [
        ("reports", "Commands with outcomes of attempts that were applied", stats.reports),
        ("outcomes_recorded", "Outcomes in those commands", stats.outcomes_recorded),
    ];
    for (name, help, value) in counters {
        registry.register(name, help, ConstCounter::new(value));
    }
    let gauges = [
        ("attempts_in_flight", "Attempts under way now", stats.in_flight),
        ("busy_endpoints", "Endpoints that have something due, or had it a moment ago", stats.lanes),
    ];
    for (name, help, value) in gauges {
        registry.register(name, help, ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)));
    }
    registry.register(
        "lag_seconds",
        "From a message's publication to the beginning of its first attempt",
        Lag { counts: stats.lag_counts, sum_us: stats.lag_sum_us },
    );
    registry
}

/// A histogram that was counted elsewhere.
#[derive(Debug)]
struct Lag {
    counts: [u64; LAG_BOUNDS_MS.len() + 1],
    sum_us: u64,
}

impl EncodeMetric for Lag {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let bounds_s = LAG_BOUNDS_MS.iter().map(|bound| *bound as f64 / 1e3).chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds_s.zip(self.counts).collect();
        let count = self.counts.iter().sum();
        encoder.encode_histogram::<NoLabelSet>(self.sum_us as f64 / 1e6, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode_registry;

    use super::*;

    #[test]
    fn the_lag_is_a_histogram_with_cumulative_ranges() {
        let mut stats = DispatchStats { attempts_2xx: 3, lag_sum_us: 1_500_000, ..DispatchStats::default() };
        stats.lag_counts[0] = 2;
        stats.lag_counts[LAG_BOUNDS_MS.len()] = 1;
        let mut text = String::new();
        encode_registry(&mut text, &registry(&stats)).unwrap();
        for line in [
            "onceward_webhook_attempts_total{outcome=\"2xx\"} 3",
            "onceward_webhook_lag_seconds_sum 1.5",
            "onceward_webhook_lag_seconds_count 3",
            "onceward_webhook_lag_seconds_bucket{le=\"0.001\"} 2",
            "onceward_webhook_lag_seconds_bucket{le=\"30.0\"} 2",
            "onceward_webhook_lag_seconds_bucket{le=\"+Inf\"} 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
