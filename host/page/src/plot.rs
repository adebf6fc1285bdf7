//! Plots of an evaluation, as shapes of SVG.

use crate::format::reward;

/// Width and height of a plot, and its margins: left, right, top, bottom.
const SIZE: [f64; 2] = [420.0, 190.0];
const MARGIN: [f64; 4] = [38.0, 10.0, 12.0, 30.0];

/// Number of bars of a distribution.
const BINS: usize = 20;

/// A distribution of rewards.
#[derive(Clone, Debug, Default)]
pub(crate) struct Histogram {
    /// The bars.
    pub bars: Vec<PlotBar>,
    /// The labels of the axis of rewards.
    pub labels: Vec<PlotLabel>,
    /// The label of the highest bar.
    pub highest: usize,
}

/// A bar of a plot.
#[derive(Clone, Debug)]
pub(crate) struct PlotBar {
    pub x: String,
    pub y: String,
    pub width: String,
    pub height: String,
    pub title: String,
    /// The address of the rows.
    pub link: String,
}

/// A label of an axis.
#[derive(Clone, Debug)]
pub(crate) struct PlotLabel {
    pub x: String,
    pub text: String,
}

/// A curve with a point for each k.
#[derive(Clone, Debug, Default)]
pub(crate) struct Curve {
    /// The points of the line.
    pub line: String,
    /// The points.
    pub points: Vec<PlotPoint>,
}

/// A point of a curve, with its standard error.
#[derive(Clone, Debug)]
pub(crate) struct PlotPoint {
    pub x: String,
    pub y: String,
    pub low: String,
    pub high: String,
    pub label: String,
    pub title: String,
}

fn scaled(part: f64, axis: usize) -> f64 {
    let (before, after) = (MARGIN[2 * axis], MARGIN[2 * axis + 1]);
    before + part * (SIZE[axis] - before - after)
}

/// Returns the distribution of these rewards. `link` returns the address of the rows between two rewards.
pub(crate) fn histogram(rewards: &[f64], link: impl Fn(f64, f64) -> String) -> Histogram {
    let (low, high) = rewards.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), reward| {
        (low.min(*reward), high.max(*reward))
    });
    if rewards.is_empty() {
        return Histogram::default();
    }
    // Most rewards are from 0 to 1, and then the axis is, too.
    let (low, high) = if low >= 0.0 && high <= 1.0 { (0.0, 1.0) } else { (low, high) };
    let span = if high > low { high - low } else { 1.0 };
    let mut counts = [0_usize; BINS];
    for reward in rewards {
        let bin = ((reward - low) / span * BINS as f64) as usize;
        counts[bin.min(BINS - 1)] += 1;
    }
    let highest = counts.iter().copied().max().unwrap_or(1).max(1);
    let edge = |bin: usize| low + span * bin as f64 / BINS as f64;
    let bars = counts.iter().enumerate().filter(|(_, count)| **count > 0).map(|(bin, count)| {
        let (left, right) = (scaled(bin as f64 / BINS as f64, 0), scaled((bin + 1) as f64 / BINS as f64, 0));
        let top = scaled(1.0 - *count as f64 / highest as f64, 1);
        let (from, to) = (edge(bin), edge(bin + 1));
        PlotBar {
            x: format!("{:.1}", left + 1.0),
            y: format!("{top:.1}"),
            width: format!("{:.1}", right - left - 2.0),
            height: format!("{:.1}", scaled(1.0, 1) - top),
            title: format!("{} to {}: {count}", reward(from), reward(to)),
            link: link(from, to),
        }
    });
    let bars: Vec<PlotBar> = bars.collect();
    let labels = [0.0, 0.25, 0.5, 0.75, 1.0]
        .map(|part| PlotLabel { x: format!("{:.1}", scaled(part, 0)), text: reward(low + span * part) });
    Histogram { bars, labels: labels.to_vec(), highest }
}

/// Returns the curve of pass@k: for each k the estimate and its standard error.
pub(crate) fn curve(points: &[(usize, f64, Option<f64>)]) -> Curve {
    let last = points.len().saturating_sub(1).max(1) as f64;
    let place = |at: usize| if points.len() == 1 { 0.5 } else { at as f64 / last };
    let y = |value: f64| format!("{:.1}", scaled(1.0 - value.clamp(0.0, 1.0), 1));
    let shown: Vec<PlotPoint> = points
        .iter()
        .enumerate()
        .map(|(at, (k, estimate, error))| {
            let error_shown = error.map(|error| format!(" ± {}", reward(error))).unwrap_or_default();
            let error = error.unwrap_or(0.0);
            PlotPoint {
                x: format!("{:.1}", scaled(0.04 + place(at) * 0.92, 0)),
                y: y(*estimate),
                low: y(estimate - error),
                high: y(estimate + error),
                label: k.to_string(),
                title: format!("pass@{k}: {}{error_shown}", reward(*estimate)),
            }
        })
        .collect();
    let line = shown.iter().map(|point| format!("{},{}", point.x, point.y)).collect::<Vec<_>>().join(" ");
    Curve { line, points: shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reward_is_in_one_bar() {
        let plot = histogram(&[0.0, 0.01, 0.5, 1.0, 1.0, 1.0], |from, to| format!("{from}-{to}"));
        let counts: Vec<&str> = plot.bars.iter().map(|bar| bar.title.rsplit(": ").next().unwrap()).collect();
        assert_eq!((counts, plot.highest), (vec!["2", "1", "3"], 3));
        assert_eq!(plot.bars[0].link, "0-0.05");
        let negative = histogram(&[-3.0, 5.0], |_, _| String::new());
        assert_eq!((negative.labels[0].text.as_str(), negative.labels[4].text.as_str()), ("-3", "5"));
        assert_eq!(histogram(&[7.0], |_, _| String::new()).bars.len(), 1);
        assert!(histogram(&[], |_, _| String::new()).bars.is_empty());
    }

    #[test]
    fn a_curve_has_a_point_for_each_k() {
        let curve = curve(&[(1, 0.5, Some(0.1)), (2, 0.75, None)]);
        assert_eq!(curve.points[0].title, "pass@1: 0.5 ± 0.1");
        assert_eq!(curve.line.split(' ').count(), 2);
        assert!(curve.points[0].low.parse::<f64>().unwrap() > curve.points[0].y.parse::<f64>().unwrap());
    }
}
