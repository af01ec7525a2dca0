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

/// How often each program runs: the turns that the scheduler gives differ.
const RUNS: u32 = 3;

/// Who is measured: perftest and ours, each polling and asleep between completions (`-e`).
const COLUMNS: [&str; 4] = ["perftest", "ours", "perftest `-e`", "ours `-e`"];

/// Where the column of ours is, from that of perftest that waits in the same way.
const OURS: usize = 1;

/// What is measured of the programs, each a table.
struct Tables {
    rates: Table,
    medians: Table,
    means: Table,
}

/// Measures rates, latencies, and the bindings in one guest.
pub(super) fn measure(settings: &Settings<'_>) -> Result<Report> {
    let bindings = Bindings::build(settings)?;
    let perf = settings.workspace.build_release_program("rdma4rs-tools")?.display().to_string();
    let mut host = Host::boot(settings, &efa::Options::default())?;
    let mut tables = Tables {
        rates: table("rate", "messages a second", true),
        medians: table("latency", "µs, half of the messages", false),
        means: table("latency-mean", "µs, the mean", false),
    };
    for verb in VERBS.into_iter().take(settings.few(VERBS.len())) {
        for (size, called, count) in SIZES.into_iter().take(settings.few(SIZES.len())) {
            let row = format!("{verb}, {called}");
            let step = Step::quiet(format!("rxe: {row}"));
            for (column, waiting) in [(0, ""), (2, "-e")] {
                let bandwidth = format!("-x 1 -s {size} -n {count} -t {DEPTH} -Q 1 {waiting}");
                let latency = format!("-x 1 -s {size} -n {} {waiting}", count / 4 + 10);
                // perftest has no way to sleep while it writes.
                if verb != "write" || waiting.is_empty() {
                    step.detail(COLUMNS[column]);
                    tables.perftest(&mut host, column, &row, verb, [&bandwidth, &latency]);
                }
                step.detail(COLUMNS[column + OURS]);
                let program = format!("{perf} perf {verb}");
                tables.ours(&mut host, column + OURS, &row, &program, [&bandwidth, &latency])?;
            }
            step.done();
        }
    }
    let bindings = bindings.measure(settings, &mut host)?;
    let Tables { rates, medians, means } = tables;
    Ok(Report { made_with: host.versions()?, tables: vec![rates, medians, means, bindings] })
}

impl Tables {
    /// Fills a row's cells of perftest; one that could not be measured is said and left out.
    fn perftest(
        &mut self,
        host: &mut Host,
        column: usize,
        row: &str,
        verb: &str,
        [bandwidth, latency]: [&str; 2],
    ) {
        let mut run = |kind: &str, flags: &str| {
            let program = format!("ib_{verb}_{kind} {flags} -F");
            host.run_pair(&format!("{program} -d rxe_a"), &format!("{program} -d rxe_b 10.99.1.1"))
        };
        let left_out = |error: Error| note(&format!("{row} is left out for perftest: {error}"));
        match average(|| Ok([perftest::rate_of(&run("bw", bandwidth)?)?])) {
            Ok([rate]) => self.rates.put(row, column, rate),
            Err(error) => left_out(error),
        }
        match average(|| perftest::latency_of(&run("lat", latency)?)) {
            Ok(latency) => self.put_latency(row, column, latency),
            Err(error) => left_out(error),
        }
    }

    /// Fills a row's cells of ours.
    fn ours(
        &mut self,
        host: &mut Host,
        column: usize,
        row: &str,
        program: &str,
        [bandwidth, latency]: [&str; 2],
    ) -> Result<()> {
        let mut run = |kind: &str, flags: &str| {
            let program = format!("{program} {kind} {flags}");
            host.run_pair(
                &format!("{program} -d rxe_a"),
                &format!("{program} -d rxe_b --json 10.99.1.1"),
            )
        };
        let [rate] = average(|| Ok([ours_of(&run("bw", bandwidth)?, &["messages_per_second"])?]))?;
        self.rates.put(row, column, rate);
        let latency = average(|| {
            let output = run("lat", latency)?;
            let of = |name| Ok::<_, Error>(ours_of(&output, &["latency_ns", name])? / 1e3);
            Ok([of("p50")?, of("mean")?])
        })?;
        self.put_latency(row, column, latency);
        Ok(())
    }

    fn put_latency(&mut self, row: &str, column: usize, [median, mean]: [f64; 2]) {
        self.medians.put(row, column, median);
        self.means.put(row, column, mean);
    }
}

/// The means of what several runs give.
fn average<const N: usize>(mut run: impl FnMut() -> Result<[f64; N]>) -> Result<[f64; N]> {
    let mut sums = [0.0; N];
    for _ in 0..RUNS {
        let numbers = run()?;
        for (sum, number) in sums.iter_mut().zip(numbers) {
            *sum += number / f64::from(RUNS);
        }
    }
    Ok(sums)
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
            Column::ours(COLUMNS[1]),
            Column::of_others(COLUMNS[2]),
            Column::ours(COLUMNS[3]),
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
