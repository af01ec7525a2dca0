//! What is told of the results: a table, JSON, a chart.

use std::{fs, path::PathBuf};

use example_support::AnyError;
use rdma4rs_chart::{Chart, Panel, Quantity, Series};
use serde_json::Value;

use super::options::Options;
use crate::output;

/// Columns of the table, with their widths.
const BANDWIDTH: [(&str, usize); 6] =
    [("bytes", 10), ("messages", 12), ("MB/s", 12), ("Gb/s", 10), ("messages/s", 14), ("lost", 8)];
const LATENCY: [(&str, usize); 9] = [
    ("bytes", 10),
    ("messages", 12),
    ("min µs", 10),
    ("50 %", 10),
    ("90 %", 10),
    ("99 %", 10),
    ("99.9 %", 10),
    ("max", 10),
    ("mean", 10),
];
/// How long the longest bar of a histogram is.
const BAR: u64 = 50;

/// The report of one run, told as it comes.
pub(crate) struct Report {
    about: Value,
    rows: Vec<Value>,
    /// The metric of the table's last head.
    head: String,
    json: bool,
    histogram: bool,
    plot: Option<PathBuf>,
    /// Whether this rank tells anything.
    shown: bool,
}

impl Report {
    pub(crate) fn new(about: Value, options: &Options, shown: bool) -> Self {
        Self {
            about,
            rows: Vec::new(),
            head: String::new(),
            json: options.json,
            histogram: options.histogram,
            plot: options.plot.clone(),
            shown,
        }
    }

    /// What is measured, and between whom.
    pub(crate) fn begin(&self) {
        let warning = self.warning();
        if !self.shown {
            return;
        }
        if self.json {
            if let Some(warning) = warning {
                output::note(&warning);
            }
            return;
        }
        output::line(&self.title());
        output::line(&self.conditions());
        if let Some(warning) = warning {
            output::line(&warning);
        }
    }

    /// A result.
    pub(crate) fn row(&mut self, row: Value) {
        if self.shown && !self.json {
            let metric = text(&row, "metric");
            if self.head != metric {
                let columns: &[(&str, usize)] =
                    if metric == "latency" { &LATENCY } else { &BANDWIDTH };
                output::line("");
                output::line(&cells(columns.iter().map(|(name, width)| ((*name).into(), *width))));
                self.head = metric.to_owned();
            }
            if metric == "latency" {
                self.latency(&row);
            } else {
                bandwidth(&row);
            }
        }
        self.rows.push(row);
    }

    /// What can be told only when all is known.
    pub(crate) fn end(mut self) -> Result<(), AnyError> {
        if !self.shown {
            return Ok(());
        }
        let rows = std::mem::take(&mut self.rows);
        if let Some(file) = &self.plot {
            let svg = self.chart(&rows).to_svg()?;
            fs::write(file, svg).map_err(|error| format!("{}: {error}", file.display()))?;
        }
        if self.json {
            self.about["rows"] = Value::Array(rows);
            output::json(&self.about);
        }
        Ok(())
    }

    fn title(&self) -> String {
        let about = &self.about;
        let metric = match text(about, "metric") {
            "both" => "bandwidth and latency",
            one => one,
        };
        let end = |device: &Value| format!("{} of {}", text(device, "name"), text(device, "host"));
        format!(
            "{} {metric}, {} through {}, {} to {}",
            text(about, "test"),
            text(about, "transport"),
            text(about, "back_end"),
            end(&about["device"]),
            end(&about["peer"]),
        )
    }

    fn conditions(&self) -> String {
        let options = &self.about["options"];
        let number = |name: &str| options[name].as_u64().unwrap_or(0);
        let mut words = Vec::new();
        if text(&self.about, "metric") != "latency" {
            let pairs = number("queue_pairs");
            let plural = if pairs == 1 { "" } else { "s" };
            words.push(format!("{pairs} queue pair{plural}"));
            words.push(format!("{} requests deep", number("tx_depth")));
            words.push(format!("{} behind a doorbell", number("post_list")));
        }
        words.push(format!("up to {} bytes inline", number("inline")));
        words.push(format!("memory of the {}", text(options, "memory")));
        if options["bidirectional"] == true {
            words.push("both directions".to_owned());
        }
        if options["events"] == true {
            words.push("asleep between completions".to_owned());
        }
        words.join(", ")
    }

    /// What figures of software devices are worth.
    fn warning(&self) -> Option<String> {
        let (device, peer) = (&self.about["device"], &self.about["peer"]);
        let name = text(device, "name");
        let process = "software in this process";
        if text(device, "kind") == process {
            return Some(format!(
                "{name} is a device in software inside this process: its figures mean nothing for hardware \
                 (`rdma4rs doctor` says what a real one lacks)"
            ));
        }
        let soft = [device, peer].iter().any(|side| text(side, "kind") != "hardware");
        soft.then(|| {
            format!("{name} is a device in software of the kernel: its figures mean nothing for hardware")
        })
    }

    fn latency(&self, row: &Value) {
        let times = ["min", "p50", "p90", "p99", "p99_9", "max", "mean"];
        let times = times.map(|name| {
            let nanoseconds = row["latency_ns"][name].as_f64().unwrap_or(f64::NAN);
            format!("{:.2}", nanoseconds / 1e3)
        });
        let row_cells = [whole(row, "size"), whole(row, "iterations")].into_iter().chain(times);
        output::line(&cells(row_cells.zip(LATENCY.map(|(_, width)| width))));
        if self.histogram {
            for bar in bars(&row["histogram_ns"]) {
                output::line(&bar);
            }
        }
    }

    fn chart(&self, rows: &[Value]) -> Chart {
        let series = |metric: &str, name: &str, value: &dyn Fn(&Value) -> f64| {
            let rows = rows.iter().filter(|row| text(row, "metric") == metric);
            let points = rows.map(|row| (row["size"].as_u64().unwrap_or(0), value(row)));
            Series::new(name, points)
        };
        let test = text(&self.about, "test");
        let mut note = self.conditions();
        if let Some(warning) = self.warning() {
            note = warning;
        }
        let mut chart = Chart::new(self.title()).note(note);
        if rows.iter().any(|row| text(row, "metric") == "bandwidth") {
            let rate = |row: &Value| row["bytes_per_second"].as_f64().unwrap_or(0.0);
            let panel = Panel::new("Bandwidth", Quantity::BytesPerSecond);
            chart = chart.panel(panel.series(series("bandwidth", test, &rate)));
        }
        if rows.iter().any(|row| text(row, "metric") == "latency") {
            let mut panel = Panel::new("Latency", Quantity::Nanoseconds).logarithmic();
            for (key, name) in [("p50", "median"), ("p99", "99 %")] {
                let time = |row: &Value| row["latency_ns"][key].as_f64().unwrap_or(0.0);
                panel = panel.series(series("latency", &format!("{test}, {name}"), &time));
            }
            chart = chart.panel(panel);
        }
        chart
    }
}

fn bandwidth(row: &Value) {
    let rate = row["bytes_per_second"].as_f64().unwrap_or(f64::NAN);
    let messages = row["messages_per_second"].as_f64().unwrap_or(f64::NAN);
    let lost = row["lost"].as_u64().map_or_else(|| "-".to_owned(), |lost| lost.to_string());
    let row_cells = [
        whole(row, "size"),
        whole(row, "messages"),
        format!("{:.2}", rate / 1e6),
        format!("{:.3}", rate * 8.0 / 1e9),
        format!("{messages:.0}"),
        lost,
    ];
    output::line(&cells(row_cells.into_iter().zip(BANDWIDTH.map(|(_, width)| width))));
}

/// One line for each bucket.
fn bars(histogram: &Value) -> Vec<String> {
    let buckets: Vec<[u64; 3]> = serde_json::from_value(histogram.clone()).unwrap_or_default();
    let most = buckets.iter().map(|bucket| bucket[2]).max().unwrap_or(1).max(1);
    let bar = |[from, below, count]: [u64; 3]| {
        let length = usize::try_from(count * BAR / most).unwrap_or(0);
        let (from, below) = (microseconds(from), microseconds(below));
        format!("{from:>12} to {below:>10} µs {count:>10} {}", "#".repeat(length))
    };
    buckets.into_iter().map(bar).collect()
}

#[expect(clippy::cast_precision_loss, reason = "to be read by people")]
fn microseconds(nanoseconds: u64) -> String {
    format!("{:.3}", nanoseconds as f64 / 1e3)
}

fn cells(cells: impl Iterator<Item = (String, usize)>) -> String {
    let line: String = cells.map(|(cell, width)| format!("{cell:>width$}")).collect();
    line.trim_end().to_owned()
}

fn whole(row: &Value, name: &str) -> String {
    row[name].as_u64().unwrap_or(0).to_string()
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_longest_bar_belongs_to_the_fullest_bucket() {
        let bars = bars(&json!([[1000, 1250, 2], [1250, 1500, 100]]));
        assert_eq!(bars.len(), 2);
        assert!(bars[1].ends_with(&"#".repeat(50)) && bars[0].ends_with(" 2 #"), "{bars:?}");
        assert!(bars[0].contains("1.000 to      1.250 µs"), "{bars:?}");
    }
}
