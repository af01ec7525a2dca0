//! Drawing with plotters. Both axes are linear for it; their marks and labels come from here.
#![expect(clippy::cast_precision_loss, reason = "places in a picture are rounded")]

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::{Chart, Error, Panel, Series, ticks};

const PANEL: (u32, u32) = (720, 460);
/// Above the panels: title, note.
const HEAD: u32 = 64;
const FONT: &str = "sans-serif";
/// What plotters divides a size by when it has no font to look into.
const FONT_SCALE: f64 = 1.24;
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const FAINT: RGBColor = RGBColor(0x66, 0x66, 0x66);
const GRID: RGBColor = RGBColor(0xe2, 0xe2, 0xe2);
/// Colours that people who see few of them can tell apart (after Okabe and Ito), dark enough on white.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x8a, 0x6d, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x33, 0x33, 0x33),
    RGBColor(0x99, 0x00, 0x4c),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

pub(crate) fn svg(chart: &Chart) -> Result<String, Error> {
    if chart.panels.is_empty() {
        return Err(Error::Empty { panel: String::new() });
    }
    let count = chart.panels.len();
    let columns = u32::try_from(count).map_err(refused)?;
    let mut text = String::new();
    {
        let size = (PANEL.0 * columns, PANEL.1 + HEAD);
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE).map_err(refused)?;
        let centre = i32::try_from(size.0 / 2).map_err(refused)?;
        write(&root, &chart.title, (centre, 24), 22, INK, HPos::Center)?;
        write(&root, &chart.note, (centre, 50), 13, FAINT, HPos::Center)?;
        let (_, body) = root.split_vertically(HEAD);
        for (panel, area) in chart.panels.iter().zip(body.split_evenly((1, count))) {
            draw(panel, &area)?;
        }
        root.present().map_err(refused)?;
    }
    Ok(text)
}

fn draw(panel: &Panel, area: &Area<'_>) -> Result<(), Error> {
    let points = || panel.series.iter().flat_map(|series| &series.points);
    let empty = || Error::Empty { panel: panel.title.clone() };
    let least_size = points().map(|point| point.0).min().ok_or_else(empty)?;
    let most_size = points().map(|point| point.0).max().ok_or_else(empty)?;
    let most = points().map(|point| point.1).fold(0.0, f64::max);
    let least = points().map(|point| point.1).fold(most, f64::min);
    // A logarithmic axis has values of every magnitude; its unit suits those in the middle.
    let typical = if panel.logarithmic { (least * most).sqrt() } else { most };
    let (unit, factor) = panel.quantity.unit(typical);

    let sizes = ticks::of_sizes(least_size, most_size);
    let values = if panel.logarithmic {
        ticks::logarithmic(least / factor, most / factor)
    } else {
        ticks::linear(most / factor)
    };
    let height = |value: f64| {
        let value = value / factor;
        if panel.logarithmic { value.log10() } else { value }
    };

    let legend = legend_rows(&panel.series, PANEL.0);
    let legend_height = 18 * u32::try_from(legend.len()).map_err(refused)? + 6;
    let centre = i32::try_from(PANEL.0 / 2).map_err(refused)?;
    write(area, &panel.title, (centre, 12), 16, INK, HPos::Center)?;
    let (_, rest) = area.split_vertically(26);
    let (keys, body) = rest.split_vertically(legend_height);
    draw_legend(&keys, &legend)?;

    let mut axes = ChartBuilder::on(&body)
        .margin(12)
        .margin_right(28)
        .x_label_area_size(48)
        .y_label_area_size(78)
        .build_cartesian_2d(sizes, values)
        .map_err(refused)?;
    let value_label = |mark: &f64| {
        ticks::number_label(if panel.logarithmic { 10_f64.powf(*mark) } else { *mark })
    };
    axes.configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(FAINT)
        .x_label_formatter(&|mark| ticks::size_label(*mark))
        .y_label_formatter(&value_label)
        .x_desc("message size")
        .y_desc(unit)
        .axis_desc_style((FONT, 14.0 * FONT_SCALE).into_font().color(&INK))
        .label_style((FONT, 12.0 * FONT_SCALE).into_font().color(&INK))
        .draw()
        .map_err(refused)?;
    for (index, series) in panel.series.iter().enumerate() {
        let place = |point: &(u64, f64)| ((point.0 as f64).log2(), height(point.1));
        let line: Vec<_> = series.points.iter().map(place).collect();
        let colour = colour(index);
        axes.draw_series(LineSeries::new(line.iter().copied(), colour.stroke_width(2)))
            .map_err(refused)?;
        match index % 3 {
            0 => axes.draw_series(line.iter().map(|at| Circle::new(*at, 4, colour.filled()))),
            1 => {
                axes.draw_series(line.iter().map(|at| TriangleMarker::new(*at, 5, colour.filled())))
            }
            _ => axes.draw_series(line.iter().map(|at| Cross::new(*at, 4, colour.stroke_width(2)))),
        }
        .map_err(refused)?;
    }
    Ok(())
}

/// Keys that stand beside each other, each with the number of its series and how far right it begins.
type LegendRow<'a> = Vec<(usize, i32, &'a str)>;

fn legend_rows(series: &[Series], width: u32) -> Vec<LegendRow<'_>> {
    const START: i32 = 90;
    let mut rows: Vec<LegendRow<'_>> = vec![Vec::new()];
    let mut next = START;
    for (index, series) in series.iter().enumerate() {
        if series.points.is_empty() {
            continue;
        }
        let length = i32::try_from(series.name.chars().count()).unwrap_or(i32::MAX / 16) * 8 + 44;
        if next > START && i64::from(next) + i64::from(length) > i64::from(width) {
            rows.push(Vec::new());
            next = START;
        }
        if let Some(row) = rows.last_mut() {
            row.push((index, next, &series.name));
        }
        next = next.saturating_add(length);
    }
    rows
}

fn draw_legend(area: &Area<'_>, rows: &[LegendRow<'_>]) -> Result<(), Error> {
    for (row, y) in rows.iter().zip((10..).step_by(18)) {
        for (index, x, name) in row {
            let colour = colour(*index);
            let (x, middle) = (*x, *x + 12);
            let line = PathElement::new(vec![(x, y), (x + 24, y)], colour.stroke_width(2));
            area.draw(&line).map_err(refused)?;
            match index % 3 {
                0 => area.draw(&Circle::new((middle, y), 4, colour.filled())),
                1 => area.draw(&TriangleMarker::new((middle, y), 5, colour.filled())),
                _ => area.draw(&Cross::new((middle, y), 4, colour.stroke_width(2))),
            }
            .map_err(refused)?;
            write(area, name, (x + 30, y), 13, INK, HPos::Left)?;
        }
    }
    Ok(())
}

fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

fn write(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    size: i32,
    colour: RGBColor,
    side: HPos,
) -> Result<(), Error> {
    let style = TextStyle::from((FONT, f64::from(size) * FONT_SCALE).into_font())
        .color(&colour)
        .pos(Pos::new(side, VPos::Center));
    area.draw_text(text, &style, at).map_err(refused)
}

fn refused(error: impl std::fmt::Display) -> Error {
    Error::Draw { problem: error.to_string() }
}

#[cfg(test)]
mod tests {
    use crate::{Chart, Error, Panel, Quantity, Series};

    #[test]
    fn a_chart_has_its_titles_names_units_and_sizes() {
        let series = |name: &str| Series::new(name, [(8, 1e6), (1 << 20, 1.2e10)]);
        let panel = Panel::new("Bandwidth", Quantity::BytesPerSecond)
            .series(series("write"))
            .series(series("read <&>"));
        let chart = Chart::new("title").note("on a device").panel(panel);
        let svg = chart.to_svg().unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        for text in ["title", "on a device", "Bandwidth", "write", "GB/s", "64 B", "1 MiB"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(!svg.contains("<&>"), "{svg}");
    }

    #[test]
    fn nothing_to_draw_is_an_error() {
        let empty = Chart::new("title").to_svg().unwrap_err();
        assert!(matches!(empty, Error::Empty { .. }), "{empty}");
        let unusable = Series::new("none", [(0, 1.0), (8, f64::NAN), (8, 0.0)]);
        let panel = Panel::new("Latency", Quantity::Nanoseconds).series(unusable);
        let error = Chart::new("title").panel(panel).to_svg().unwrap_err();
        assert!(error.to_string().contains("Latency"), "{error}");
    }

    #[test]
    fn one_point_and_many_series_are_drawn() {
        let mut panel = Panel::new("Latency", Quantity::Nanoseconds).logarithmic();
        for number in 0..12 {
            panel = panel.series(Series::new(format!("series number {number}"), [(64, 1500.0)]));
        }
        let svg = Chart::new("title").panel(panel).to_svg().unwrap();
        assert!(svg.contains("series number 11") && svg.contains("µs"), "{svg}");
    }
}
