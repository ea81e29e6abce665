//! Plots that stretch: shapes are SVG in a box of 1000 × 100 that takes whatever room there is, texts are HTML beside it.
//!
//! Nothing here needs a script. All plots of a page share one axis of time, from 0 to 1 of the run.

use std::fmt::Write;

use maud::{Markup, html};

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 100.0;

/// Where a value stands on the vertical axis, 0 at the bottom to 1 at the top.
#[derive(Clone)]
pub struct Scale {
    kind: Kind,
    low: f64,
    high: f64,
    pub ticks: Vec<(f64, String)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Linear,
    Logarithmic,
}

impl Scale {
    /// From 0 to a round number that is at least `most`.
    pub fn linear(most: f64, unit: &str) -> Scale {
        let step = round_up((most / 3.0).max(0.001));
        let count = (most / step).ceil().max(1.0);
        let ticks = (0..=count as u32).map(|i| f64::from(i) * step);
        let ticks = ticks.map(|value| (value, format!("{}{unit}", short(value)))).collect();
        Scale { kind: Kind::Linear, low: 0.0, high: count * step, ticks }
    }

    /// Decades of microseconds around `least` to `most`.
    pub fn decades_us(least: f64, most: f64) -> Scale {
        let low = least.max(1.0).log10().floor();
        let high = most.max(10.0).log10().ceil().max(low + 1.0);
        let ticks = (low as i32..=high as i32).map(|power| 10f64.powi(power));
        let ticks = ticks.map(|value| (value, crate::text::duration(value as u64))).collect();
        Scale { kind: Kind::Logarithmic, low: 10f64.powf(low), high: 10f64.powf(high), ticks }
    }

    pub fn place(&self, value: f64) -> f64 {
        let share = match self.kind {
            Kind::Linear => (value - self.low) / (self.high - self.low),
            Kind::Logarithmic => (value.max(self.low) / self.low).log10() / (self.high / self.low).log10(),
        };
        share.clamp(0.0, 1.0)
    }
}

/// 1, 2 or 5 times a power of ten.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0].into_iter().map(|digit| digit * power).find(|&round| round >= value).unwrap_or(10.0 * power)
}

fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{} M", v / 1e6),
        v if v >= 10e3 => format!("{} k", v / 1e3),
        v => format!("{}", (v * 1e3).round() / 1e3),
    }
}

/// What the axis of time and the shapes of a plot are drawn on.
pub struct Plot {
    pub title: &'static str,
    /// A sentence for who does not see it.
    pub described: String,
    /// Colour class and name.
    pub legend: Vec<(&'static str, &'static str)>,
    pub scale: Scale,
    pub shapes: Vec<Shape>,
    /// A class that says how high it is.
    pub size: &'static str,
}

pub struct Shape {
    pub class: &'static str,
    path: String,
}

impl Shape {
    /// Through points of (time, height), both 0 to 1; a gap where there is no height.
    pub fn line(class: &'static str, points: impl IntoIterator<Item = (f64, Option<f64>)>) -> Shape {
        let (mut path, mut pen_down) = (String::new(), false);
        for (x, y) in points {
            if let Some(y) = y {
                let command = if pen_down { 'L' } else { 'M' };
                put(&mut path, command, x, y);
                // A point alone is still to be seen.
                path.push_str(if pen_down { "" } else { "h.8" });
            }
            pen_down = y.is_some();
        }
        Shape { class, path }
    }

    /// Between two heights from each step to the next: a column for each step, without gaps. `None` where it is empty.
    pub fn columns(class: &'static str, width: f64, heights: impl IntoIterator<Item = (f64, f64)>) -> Shape {
        let mut path = String::new();
        for (i, (low, high)) in heights.into_iter().enumerate().filter(|(_, (low, high))| high > low) {
            let x = i as f64 * width;
            // Whatever happened is to be seen, be it one in a thousand.
            let high = high.max(low + 0.012);
            put(&mut path, 'M', x.min(1.0), low);
            let _ = write!(path, "V{}H{}V{}z", vertical(high), horizontal((x + width).min(1.0)), vertical(low));
        }
        Shape { class, path }
    }
}

fn put(path: &mut String, command: char, x: f64, y: f64) {
    let _ = write!(path, "{command}{} {}", horizontal(x), vertical(y));
}

fn horizontal(x: f64) -> f64 {
    (x * WIDTH * 10.0).round() / 10.0
}

fn vertical(y: f64) -> f64 {
    ((1.0 - y) * HEIGHT * 100.0).round() / 100.0
}

impl Plot {
    /// `under` are bands and marks that every plot of the page has.
    pub fn draw(&self, under: &Markup, ticks: &[(f64, String)]) -> Markup {
        html! {
            figure class={ "plot " (self.size) } {
                figcaption {
                    b { (self.title) }
                    span .legend { @for (class, name) in &self.legend { span { i class={ "key " (class) } {} (name) } } }
                }
                div .frame {
                    div .scale aria-hidden="true" {
                        @for (value, label) in &self.scale.ticks {
                            span style={ "bottom:" (percent(self.scale.place(*value))) } { (label) }
                        }
                    }
                    div .area role="img" aria-label=(self.described) {
                        (under)
                        svg viewBox="0 0 1000 100" preserveAspectRatio="none" aria-hidden="true" {
                            @for (value, _) in &self.scale.ticks {
                                @let y = vertical(self.scale.place(*value));
                                path .grid d={ "M0 " (y) "H1000" } {}
                            }
                            @for shape in &self.shapes { path class=(shape.class) d=(shape.path) {} }
                        }
                        div .cursor {}
                    }
                }
                (time_axis(ticks))
            }
        }
    }
}

/// `ticks` are places, 0 to 1, and what to write there.
pub fn time_axis(ticks: &[(f64, String)]) -> Markup {
    html! {
        div .times aria-hidden="true" {
            @for (place, label) in ticks { span style={ "left:" (percent(*place)) } { (label) } }
        }
    }
}

pub fn percent(share: f64) -> String {
    format!("{}%", (share * 10_000.0).round() / 100.0)
}

/// About six round times up to the end.
pub fn time_ticks(end_us: u64) -> Vec<(f64, String)> {
    const STEPS_S: [u64; 14] = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200];
    let end_s = end_us as f64 / 1e6;
    let step_s = STEPS_S.into_iter().find(|&step_s| end_s / step_s as f64 <= 8.0).unwrap_or(14_400);
    (0..)
        .map(|i| i * step_s)
        .take_while(|&at_s| at_s as f64 <= end_s)
        .map(|at_s| (at_s as f64 / end_s, crate::text::clock(at_s * 1_000_000)))
        .collect()
}
