//! Our `perf` beside perftest on rxe, between the guest's two hosts.

use serde_json::Value;

use super::bindings::Bindings;
use super::host::Host;
use super::report::{Column, Report, Table};
use super::{Settings, perftest};
use crate::efa;
use crate::error::{Error, Result};
use crate::progress::{Step, note};

/// What is done.
const VERBS: [&str; 3] = ["write", "read", "send"];

/// Message sizes, each with how it is called and how many messages are measured.
const SIZES: [(u32, &str, u32); 4] =
    [(8, "8 B", 2000), (4096, "4 KiB", 600), (65_536, "64 KiB", 100), (1 << 20, "1 MiB", 20)];

/// Requests outstanding where the rate is measured.
const DEPTH: u32 = 16;

/// Programs of perftest, or ours.
const COLUMNS: [&str; 3] = ["perftest", "perftest, asleep (`-e`)", "ours"];

/// Measures rates, latencies, and the bindings in one guest.
pub(super) fn measure(settings: &Settings<'_>) -> Result<Report> {
    let bindings = Bindings::build(settings)?;
    let perf = settings.workspace.build_release_program("rdma4rs-tools")?.display().to_string();
    let mut host = Host::boot(settings, &efa::Options::default())?;
    let mut rates = table("rate", "messages a second", true);
    let mut latencies = table("latency", "µs, half of the messages", false);
    for verb in VERBS.into_iter().take(settings.few(VERBS.len())) {
        for (size, called, count) in SIZES.into_iter().take(settings.few(SIZES.len())) {
            let row = format!("{verb}, {called}");
            let step = Step::quiet(format!("rxe: {row}"));
            let bandwidth = format!("-x 1 -s {size} -n {count} -t {DEPTH} -Q 1");
            let latency = format!("-x 1 -s {size} -n {}", count / 4 + 10);
            // perftest has no way to sleep while it writes.
            for (column, more) in
                ["", "-e"].iter().enumerate().take(1 + usize::from(verb != "write"))
            {
                step.detail(COLUMNS[column]);
                let mut run = |kind: &str, flags: &str| {
                    let program = format!("ib_{verb}_{kind} {flags} -F {more}");
                    host.run_pair(
                        &format!("{program} -d rxe_a"),
                        &format!("{program} -d rxe_b 10.99.1.1"),
                    )
                };
                let rate = run("bw", &bandwidth).and_then(|output| perftest::rate_of(&output));
                put_or_say(&mut rates, &row, column, rate);
                let latency = run("lat", &latency).and_then(|output| perftest::latency_of(&output));
                put_or_say(&mut latencies, &row, column, latency);
            }
            step.detail(COLUMNS[2]);
            let mut run = |kind: &str, flags: &str| {
                let program = format!("{perf} perf {verb} {kind} {flags}");
                host.run_pair(
                    &format!("{program} -d rxe_a"),
                    &format!("{program} -d rxe_b --json 10.99.1.1"),
                )
            };
            rates.put(&row, 2, ours_of(&run("bw", &bandwidth)?, &["messages_per_second"])?);
            latencies.put(&row, 2, ours_of(&run("lat", &latency)?, &["latency_ns", "p50"])? / 1e3);
            step.done();
        }
    }
    let bindings = bindings.measure(settings, &mut host)?;
    Ok(Report { made_with: host.versions()?, tables: vec![rates, latencies, bindings] })
}

/// Puts a number of others; one that could not be measured is said and left out.
fn put_or_say(table: &mut Table, row: &str, column: usize, value: Result<f64>) {
    match value {
        Ok(value) => table.put(row, column, value),
        Err(error) => note(&format!("{row} is left out for perftest: {error}")),
    }
}

/// A number of the only row in the JSON of our `perf`.
pub(super) fn ours_of(output: &str, path: &[&str]) -> Result<f64> {
    let number = || -> Option<f64> {
        let value: Value = serde_json::from_str(output.get(output.find('{')?..)?).ok()?;
        let row = value.get("rows")?.get(0)?;
        path.iter().try_fold(row, |value, name| value.get(name))?.as_f64()
    };
    number().ok_or_else(|| Error::Format {
        what: "the output of our perf".into(),
        found: output.to_owned(),
    })
}

fn table(id: &str, unit: &str, more_is_better: bool) -> Table {
    Table {
        id: id.into(),
        heading: unit.into(),
        unit: unit.into(),
        more_is_better,
        columns: vec![
            Column::of_others(COLUMNS[0]),
            Column::of_others(COLUMNS[1]),
            Column::ours(COLUMNS[2]),
        ],
        rows: Vec::new(),
    }
}

/// The message size of a row, and what is done with it.
pub(super) fn size_of(row: &str) -> Option<(&str, u32)> {
    let (verb, called) = row.split_once(", ")?;
    let (size, ..) = SIZES.iter().find(|(_, name, _)| *name == called)?;
    Some((verb, *size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_our_perf_prints_is_read() {
        let text = r#"a note
            {"rows": [{"messages_per_second": 25000.5, "latency_ns": {"p50": 42000}}]}"#;
        assert_eq!(ours_of(text, &["messages_per_second"]).unwrap(), 25000.5);
        assert_eq!(ours_of(text, &["latency_ns", "p50"]).unwrap(), 42000.0);
        ours_of(text, &["latency_ns", "p99"]).unwrap_err();
        ours_of("no server", &["messages_per_second"]).unwrap_err();
    }

    #[test]
    fn rows_tell_their_sizes() {
        assert_eq!(size_of("read, 64 KiB"), Some(("read", 65_536)));
        assert_eq!(size_of("read"), None);
    }
}
