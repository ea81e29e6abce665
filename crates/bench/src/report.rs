//! How results are printed: a heading for each scenario, a line for each thing measured.

use hdrhistogram::Histogram;

use crate::{generator::Measured, usage::Spent};

pub fn heading(scenario: &str, detail: &str) {
    println!("\n{scenario}  ({detail})");
}

pub fn line(what: &str, value: impl std::fmt::Display) {
    println!("  {what:<34} {value}");
}

pub fn resident(mib: Option<Vec<u64>>) {
    if let Some(mib) = mib {
        let nodes: Vec<String> = mib.iter().map(u64::to_string).collect();
        line("resident MiB of each node", nodes.join("  "));
    }
}

/// `what`: one operation.
pub fn load(what: &str, measured: &Measured, spent: &Spent) {
    let operations = measured.decided();
    line(&format!("{what}s/s"), format!("{:.0}", operations.max(1) as f64 / spent.elapsed.as_secs_f64()));
    latency("p50 / p99 / max ms", &measured.latency_us);
    line("answers by status", statuses(measured));
    self::spent(what, operations, spent);
}

pub fn latency(what: &str, latency_us: &Histogram<u64>) {
    let milliseconds = |quantile| latency_us.value_at_quantile(quantile) as f64 / 1000.0;
    line(what, format!("{:.1} / {:.1} / {:.1}", milliseconds(0.5), milliseconds(0.99), milliseconds(1.0)));
}

/// What so many operations cost.
pub fn spent(what: &str, operations: u64, spent: &Spent) {
    let operations = operations.max(1) as f64;
    line(&format!("fsyncs a {what}, all nodes"), format!("{:.4}", spent.fsyncs / operations));
    line(&format!("log entries a {what}"), format!("{:.4}", spent.entries / operations));
    line(&format!("log bytes a {what}, all nodes"), format!("{:.0}", spent.log_bytes / operations));
    if let Some(cpu) = spent.cpu {
        line(&format!("CPU µs a {what}, all nodes"), format!("{:.1}", cpu.as_secs_f64() * 1e6 / operations));
    }
    line(
        &format!("CPU µs a {what}, generator"),
        format!("{:.1}", spent.generator_cpu.as_secs_f64() * 1e6 / operations),
    );
}

fn statuses(measured: &Measured) -> String {
    let mut parts: Vec<String> = measured.statuses.iter().map(|(status, count)| format!("{status}: {count}")).collect();
    if measured.lost > 0 {
        parts.push(format!("connection lost: {}", measured.lost));
    }
    parts.join(", ")
}
