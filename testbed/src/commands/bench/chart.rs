//! The charts of the documents, by message size.

use rdma4rs_chart::{Chart, Error, Panel, Quantity, Series};

use super::report::Table;
use super::verbs::size_of;

/// What every chart says of its numbers.
const NOTE: &str =
    "one emulated processor, a clock that counts instructions: compare, but take no number alone";

/// A chart for a table that has one: the name of its file, and its text.
pub(super) fn of_table(table: &Table) -> Option<Result<(&'static str, String), Error>> {
    let (file, title, quantity) = match table.id.as_str() {
        "rate" => ("bandwidth.svg", "Bandwidth on rxe by message size", Quantity::BytesPerSecond),
        "latency-mean" => {
            ("latency.svg", "Mean latency on rxe by message size", Quantity::Nanoseconds)
        }
        _ => return None,
    };
    let mut chart = Chart::new(title).note(NOTE);
    for verb in verbs_of(table) {
        let mut panel = Panel::new(verb, quantity).logarithmic();
        for series in series_of(table, verb, |size, value| match quantity {
            Quantity::BytesPerSecond => value * f64::from(size),
            // The table has microseconds.
            _ => value * 1e3,
        }) {
            panel = panel.series(series);
        }
        chart = chart.panel(panel);
    }
    Some(chart.to_svg().map(|svg| (file, titled(&svg, title))))
}

fn verbs_of(table: &Table) -> Vec<&str> {
    let mut verbs: Vec<&str> =
        table.rows.iter().filter_map(|row| Some(size_of(&row.name)?.0)).collect();
    verbs.dedup();
    verbs
}

/// One series of a verb for each column.
fn series_of(table: &Table, verb: &str, value_of: impl Fn(u32, f64) -> f64) -> Vec<Series> {
    let series = table.columns.iter().enumerate().map(|(place, column)| {
        let points = table.rows.iter().filter_map(|row| {
            let (_, size) = size_of(&row.name).filter(|(other, _)| *other == verb)?;
            let value = row.values.get(place).copied().flatten()?;
            Some((size.into(), value_of(size, value)))
        });
        Series::new(column.name.replace('`', ""), points)
    });
    series.collect()
}

/// The picture with a title for those who cannot see it.
fn titled(svg: &str, title: &str) -> String {
    match svg.split_once('>') {
        Some((head, rest)) => format!("{head}>\n<title>{title}</title>{rest}"),
        None => svg.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn tables_by_message_size_have_a_chart_with_a_title() {
        let mut table = report(1.0).tables.remove(0);
        assert!(of_table(&table).is_none());
        table.id = "rate".into();
        table.rows.clear();
        table.put("write, 8 B", 0, 1000.0);
        table.put("write, 4 KiB", 1, 900.0);
        let (file, svg) = of_table(&table).unwrap().unwrap();
        assert_eq!(file, "bandwidth.svg");
        for words in ["<title>Bandwidth on rxe", "write", "perftest", "ours", "kB/s"] {
            assert!(svg.contains(words), "{words}");
        }
        assert!(svg.trim_end().ends_with("</svg>"));
    }
}
