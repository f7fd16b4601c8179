//! The bars in the README: calls a second at pipeline 50.

use std::fmt::Write as _;
use std::path::Path;

use crate::Outcome;
use crate::report::thousands;
use crate::throughput::Figure;

const WIDTH: f64 = 760.0;
const LABEL: f64 = 190.0;
const BAR: f64 = 20.0;
const GAP: f64 = 8.0;

/// Ours, and what they are compared with.
const SHOWN: [(&str, &str); 8] = [
    ("GET", "#9aa4b2"),
    ("INCR", "#9aa4b2"),
    ("TB.CONSUME, denied", "#2f7ed8"),
    ("TB.CONSUME, allowed", "#2f7ed8"),
    ("CL.THROTTLE, denied", "#e08e3c"),
    ("CL.THROTTLE, allowed", "#e08e3c"),
    ("script, denied", "#c2526b"),
    ("script, allowed", "#c2526b"),
];

pub(crate) fn write(figures: &[Figure], file: &Path) -> Outcome<()> {
    let find = |name: &str| figures.iter().find(|figure| figure.contender.name == name);
    let shown: Vec<_> = SHOWN.iter().filter_map(|(name, colour)| Some((find(name)?, *colour))).collect();
    let most = shown.iter().map(|(figure, _)| figure.per_second).fold(1.0, f64::max);
    let height = GAP + shown.len() as f64 * (BAR + GAP);
    // A background of its own, so that it can be read on dark pages too.
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <title>Calls a second of one server core, pipeline 50</title>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    for (i, (figure, colour)) in shown.iter().enumerate() {
        let top = GAP + i as f64 * (BAR + GAP);
        let width = figure.per_second / most * (WIDTH - LABEL - 90.0);
        let base = top + BAR - 5.0;
        writeln!(
            svg,
            "<text x=\"{:.0}\" y=\"{base:.0}\" text-anchor=\"end\" fill=\"#1f2933\">{}</text>",
            LABEL - 8.0,
            figure.contender.name
        )?;
        writeln!(svg, "<rect x=\"{LABEL:.0}\" y=\"{top:.0}\" width=\"{width:.1}\" height=\"{BAR:.0}\" fill=\"{colour}\"/>")?;
        writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{base:.0}\" fill=\"#1f2933\">{}</text>",
            LABEL + width + 6.0,
            thousands(figure.per_second)
        )?;
    }
    Ok(std::fs::write(file, svg + "</svg>\n")?)
}
