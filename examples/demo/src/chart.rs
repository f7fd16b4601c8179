//! The drawing: calls a second over time, one panel for each mode.

use std::path::Path;

use anyhow::anyhow;
use mock_vendor::book::Call;
use mock_vendor::schedule::{Surprise, What};
use plotters::prelude::*;

use crate::run::{Run, VENDOR};

const ACCEPTED: RGBColor = RGBColor(74, 134, 197);
const REFUSED: RGBColor = RGBColor(205, 62, 52);
const FROZEN: RGBColor = RGBColor(226, 232, 240);
const LIMIT: RGBColor = RGBColor(70, 70, 70);
const WIDTH: u32 = 900;
const PANEL: u32 = 190;

/// Calls are counted in pieces of so many seconds.
const PIECE: f64 = 0.5;

/// Draws all runs to one scale.
pub(crate) fn draw(runs: &[Run], path: &Path) -> anyhow::Result<()> {
    let panels = u32::try_from(runs.len())?;
    let area = SVGBackend::new(path, (WIDTH, PANEL * panels + 30)).into_drawing_area();
    let failed = |error: &dyn std::fmt::Display| anyhow!("cannot draw: {error}");
    area.fill(&WHITE).map_err(|error| failed(&error))?;
    let longest = runs.iter().flat_map(|run| &run.calls).map(|call| call.at).fold(1.0, f64::max);
    let most = runs.iter().map(highest).fold(f64::from(VENDOR.rate), f64::max) * 1.1;
    let (legend, area) = area.split_vertically(30);
    draw_legend(&legend).map_err(|error| failed(&*error))?;
    for (panel, run) in area.split_evenly((runs.len(), 1)).iter().zip(runs) {
        draw_panel(panel, run, longest, most).map_err(|error| failed(&*error))?;
    }
    area.present().map_err(|error| failed(&error))?;
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw_legend(area: &Area<'_>) -> Drawn {
    let entries = [
        (FROZEN, "the vendor serves nobody"),
        (ACCEPTED, "calls a second that it accepts"),
        (REFUSED, "that it answers with 429"),
        (LIMIT, "what it allows"),
    ];
    for (place, (colour, text)) in (0_i32..).zip(entries) {
        let x = 60 + place * 205;
        area.draw(&Rectangle::new([(x, 11), (x + 14, 23)], colour.filled()))?;
        area.draw(&Text::new(text, (x + 20, 11), ("sans-serif", 13).into_font()))?;
    }
    Ok(())
}

fn draw_panel(area: &Area<'_>, run: &Run, longest: f64, most: f64) -> Drawn {
    let caption = format!("{}: {}", run.mode, run.mode.about());
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 15))
        .margin(6)
        .x_label_area_size(22)
        .y_label_area_size(44)
        .build_cartesian_2d(0.0..longest, 0.0..most)?;
    chart
        .configure_mesh()
        .disable_mesh()
        .x_labels(12)
        .y_labels(5)
        .x_label_formatter(&|second| format!("{second:.0} s"))
        .y_label_formatter(&|calls| format!("{calls:.0}"))
        .draw()?;
    let ended = run.calls.last().map_or(0.0, |call| call.at);
    let frozen = run.surprises.iter().filter_map(|surprise| match surprise.what {
        What::Freeze(length) => Some((surprise.at.as_secs_f64(), (surprise.at + length).as_secs_f64())),
        What::Rate { .. } => None,
    });
    chart.draw_series(frozen.map(|(from, to)| Rectangle::new([(from, 0.0), (to, most)], FROZEN.filled())))?;
    let pieces = pieces(&run.calls);
    let bar = |at: f64, from: f64, to: f64, colour: RGBColor| Rectangle::new([(at, from), (at + PIECE, to)], colour.filled());
    chart.draw_series(pieces.iter().map(|(at, accepted, _)| bar(*at, 0.0, *accepted, ACCEPTED)))?;
    let refused = pieces.iter().filter(|(_, _, refused)| *refused > 0.0);
    chart.draw_series(refused.map(|(at, accepted, refused)| bar(*at, *accepted, accepted + refused, REFUSED)))?;
    chart.draw_series(LineSeries::new(allowed(&run.surprises, ended), LIMIT.stroke_width(1)))?;
    Ok(())
}

/// The vendor's rate as a line in steps.
fn allowed(surprises: &[Surprise], ended: f64) -> Vec<(f64, f64)> {
    let mut rate = f64::from(VENDOR.rate);
    let mut line = vec![(0.0, rate)];
    for surprise in surprises {
        let at = surprise.at.as_secs_f64();
        let (from, to, until) = match surprise.what {
            What::Rate { times, over } => {
                let from = rate;
                rate = f64::from(VENDOR.rate * times) / f64::from(over);
                (from, rate, at)
            }
            What::Freeze(length) => (rate, 0.0, at + length.as_secs_f64()),
        };
        line.extend([(at, from), (at, to), (until, to), (until, rate)]);
    }
    line.push((ended, rate));
    line
}

/// For each piece of time: when it begins, accepted and refused calls a second.
fn pieces(calls: &[Call]) -> Vec<(f64, f64, f64)> {
    let mut pieces: Vec<(f64, f64, f64)> = Vec::new();
    let mut end = 0.0;
    for call in calls {
        while call.at >= end {
            pieces.push((end, 0.0, 0.0));
            end += PIECE;
        }
        if let Some((_, accepted, refused)) = pieces.last_mut() {
            *(if call.status == 429 { refused } else { accepted }) += 1.0 / PIECE;
        }
    }
    pieces
}

fn highest(run: &Run) -> f64 {
    pieces(&run.calls).into_iter().map(|(_, accepted, refused)| accepted + refused).fold(0.0, f64::max)
}
