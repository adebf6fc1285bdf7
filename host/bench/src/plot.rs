//! The report as a chart: throughput and latency by number in flight.

use plotters::coord::Shift;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;

use super::report::{Figures, Report};

const SIZE: (u32, u32) = (1100, 480);

/// One colour for each server, also distinguishable for people with red-green colour blindness.
const COLOURS: [RGBColor; 2] = [RGBColor(0, 90, 181), RGBColor(220, 110, 20)];

/// A percentile: its name, the width of its line and its value.
type Percentile = (&'static str, u32, fn(&Figures) -> Option<f64>);

const PERCENTILES: [Percentile; 3] =
    [("p50", 3, |it| it.p50_ms), ("p95", 2, |it| it.p95_ms), ("p99", 1, |it| it.p99_ms)];

type Panel<'a, 'b> = DrawingArea<SVGBackend<'a>, Shift>;

/// Error of drawing the chart.
pub(super) type PlotError = DrawingAreaErrorKind<std::io::Error>;

/// A line of a panel.
struct PlotLine {
    name: String,
    colour: RGBColor,
    width: u32,
    points: Vec<(f64, f64)>,
}

/// Draws the report as an SVG document.
pub(super) fn svg(report: &Report) -> Result<String, PlotError> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let about = format!(
            "generation {}, model {} ms, {} {}, medians of {}",
            report.generation,
            report.model_latency_ms,
            report.turns,
            if report.turns == 1 { "turn" } else { "turns" },
            report.rounds
        );
        let root = root.titled(&about, ("sans-serif", 18))?;
        let (left, right) = root.split_horizontally(SIZE.0 / 2);
        panel(&left, "rollouts a second", lines_of_rates(report))?;
        panel(&right, "latency in milliseconds", lines_of_latencies(report))?;
        root.present()?;
    }
    Ok(text)
}

fn lines_of_rates(report: &Report) -> Vec<PlotLine> {
    let line = |(at, name): (usize, String)| PlotLine {
        name,
        colour: COLOURS[at % COLOURS.len()],
        width: 3,
        points: points(report, at, |it| Some(it.rollouts_per_sec)),
    };
    names(report).into_iter().enumerate().map(line).collect()
}

fn lines_of_latencies(report: &Report) -> Vec<PlotLine> {
    let lines = |(at, name): (usize, String)| {
        PERCENTILES.map(|(percentile, width, figure)| PlotLine {
            name: format!("{name} {percentile}"),
            colour: COLOURS[at % COLOURS.len()],
            width,
            points: points(report, at, figure),
        })
    };
    names(report).into_iter().enumerate().flat_map(lines).collect()
}

fn names(report: &Report) -> Vec<String> {
    report.targets.iter().map(|target| target.name.clone()).collect()
}

/// Returns the points of one server's figure. Values that are not positive cannot be drawn on a logarithmic
/// axis.
fn points(report: &Report, server: usize, figure: fn(&Figures) -> Option<f64>) -> Vec<(f64, f64)> {
    let point = |level: &super::report::Level| {
        let value = figure(&level.servers.get(server)?.median).filter(|value| *value > 0.0)?;
        Some((level.in_flight as f64, value))
    };
    let mut points: Vec<(f64, f64)> = report.levels.iter().filter_map(point).collect();
    points.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    points
}

/// Returns the range of the values with a margin.
fn range(values: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
    let (least, greatest) = values
        .fold((f64::INFINITY, 0.0_f64), |(least, greatest), value| (least.min(value), greatest.max(value)));
    if greatest <= 0.0 { 1.0..10.0 } else { least / 1.5..greatest * 1.5 }
}

fn panel(area: &Panel<'_, '_>, title: &str, lines: Vec<PlotLine>) -> Result<(), PlotError> {
    let all = || lines.iter().flat_map(|line| line.points.iter().copied());
    let across = range(all().map(|(x, _)| x));
    let up = range(all().map(|(_, y)| y));
    let mut chart = ChartBuilder::on(area)
        .margin(14)
        .caption(title, ("sans-serif", 17))
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(across.log_scale(), up.log_scale())?;
    chart
        .configure_mesh()
        .x_desc("rollouts in flight")
        .label_style(("sans-serif", 13))
        .axis_desc_style(("sans-serif", 14))
        .x_label_formatter(&|x| number(*x))
        .y_label_formatter(&|y| number(*y))
        .light_line_style(BLACK.mix(0.06))
        .bold_line_style(BLACK.mix(0.15))
        .draw()?;
    for PlotLine { name, colour, width, points } in lines {
        let style = colour.stroke_width(width);
        chart
            .draw_series(LineSeries::new(points.iter().copied(), style))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], style));
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 2 + width, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font(("sans-serif", 13))
        .legend_area_size(26)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}

fn number(value: f64) -> String {
    match value {
        value if value >= 10_000.0 => format!("{:.0}k", value / 1000.0),
        value if value >= 10.0 => format!("{value:.0}"),
        value => format!("{:.2}", value).trim_end_matches('0').trim_end_matches('.').to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_labels_are_rounded_for_people() {
        fn check(value: f64, expected: &str) {
            assert_eq!(number(value), expected);
        }
        check(0.25, "0.25");
        check(1.0, "1");
        check(64.0, "64");
        check(1000.0, "1000");
        check(20_000.0, "20k");
    }

    #[test]
    fn a_range_has_a_margin_and_is_never_empty() {
        assert_eq!(range([].into_iter()), 1.0..10.0);
        let one = range([3.0].into_iter());
        assert!(one.start < 3.0 && one.end > 3.0);
    }
}
