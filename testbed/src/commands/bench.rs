//! `cargo testbed bench`: our programs beside those of others, and the tables of the documents.
//!
//! Each part measures something of its own and writes `docs/benchmarks/PART.json`, from which the tables in
//! the documents are made; the last file is kept and compared with the new one.

mod bindings;
mod callgrind;
mod chart;
mod comparison;
mod cost;
mod host;
mod markdown;
mod nvmeof;
mod perftest;
mod programs;
mod python;
mod report;
mod scaling;
mod srd;
mod verbs;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Args, ValueEnum};

use self::report::Report;
use crate::apt;
use crate::cache::Cache;
use crate::error::{During, Error, Result};
use crate::process::output_of;
use crate::progress::note;
use crate::workspace::Workspace;

/// The documents that have tables of ours.
const DOCUMENTS: [&str; 3] = ["README.md", "docs/src/benchmarks.md", "nvmeof/README.md"];

/// Where the reports are.
const REPORTS: &str = "docs/benchmarks";

/// Where the charts are.
const PICTURES: &str = "docs/src/images";

/// Options of `bench`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// What to measure; everything if nothing is named.
    parts: Vec<Part>,

    /// Measure little, to see that it works: reports go to cargo's target folder, and documents stay as they are.
    #[arg(long)]
    quick: bool,

    /// Percent by which a number of ours may be worse than in the last report.
    #[arg(long, default_value_t = 5.0)]
    threshold: f64,

    /// Measure nothing: only make the tables of the documents from the reports.
    #[arg(long, conflicts_with = "quick")]
    render: bool,
}

/// What can be measured by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Instructions of our code beside C, on the device in software.
    Cost,
    /// The same where there are many queue pairs, regions, requests or threads.
    Scaling,
    /// `perf` beside perftest, and our crates beside other bindings, on rxe in the guest.
    Verbs,
    /// `perf` beside perftest over SRD, on the model of an EFA device in the guest.
    Srd,
    /// Our NVMe/RDMA initiator beside the kernel's and rdma4py's, on the kernel's target in the guest.
    Nvmeof,
}

/// What every part needs to know.
#[derive(Debug)]
struct Settings<'a> {
    workspace: &'a Workspace,
    cache: &'a Cache,
    quick: bool,
}

impl Settings<'_> {
    /// How many of `all` cases to measure.
    fn few(&self, all: usize) -> usize {
        if self.quick { all.min(2) } else { all }
    }

    /// How many operations a program is counted over.
    fn operations(&self) -> u32 {
        if self.quick { 640 } else { 6400 }
    }
}

/// Measures, writes reports and documents, and fails if something of ours became worse.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let (workspace, cache) = (Workspace::find()?, Cache::open()?);
    if options.render {
        render(&workspace.root)?;
        return Ok(ExitCode::SUCCESS);
    }
    let settings = Settings { workspace: &workspace, cache: &cache, quick: options.quick };
    let folder = if options.quick {
        workspace.target.join("bench/reports")
    } else {
        workspace.root.join(REPORTS)
    };
    let parts =
        if options.parts.is_empty() { Part::value_variants() } else { options.parts.as_slice() };
    let mut worse = 0;
    for part in parts {
        let report = part.measure(&settings)?;
        for table in &report.tables {
            println!("\n{}, {}\n\n{}", table.id, table.unit, markdown::render(table));
        }
        let path = folder.join(part.name()).with_extension("json");
        if let Some(before) = Report::read(&path)? {
            for change in comparison::changes(&before, &report, options.threshold) {
                println!("{}", change.describe());
                worse += u32::from(change.is_worse);
            }
        }
        report.write(&path)?;
    }
    if !options.quick {
        render(&workspace.root)?;
    }
    println!("{worse} numbers of ours are worse than before by more than {} %", options.threshold);
    Ok(if worse == 0 || options.quick { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Part {
    fn measure(self, settings: &Settings<'_>) -> Result<Report> {
        if matches!(self, Self::Cost | Self::Scaling) {
            apt::require("valgrind", settings.cache)?;
        }
        match self {
            Self::Cost => cost::measure(settings),
            Self::Scaling => scaling::measure(settings),
            Self::Verbs => verbs::measure(settings),
            Self::Srd => srd::measure(settings),
            Self::Nvmeof => nvmeof::measure(settings),
        }
    }

    /// The name of its report.
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// Makes the charts, and the tables of all documents, from the reports.
fn render(root: &Path) -> Result<()> {
    let reports = reports(root)?;
    for table in reports.iter().flat_map(|report| &report.tables) {
        if let Some(chart) = chart::of_table(table) {
            let (name, svg) = chart.map_err(|error| Error::Format {
                what: format!("the chart of `{}`", table.id),
                found: error.to_string(),
            })?;
            let path = root.join(PICTURES).join(name);
            fs::write(&path, svg).during(|| format!("write {}", path.display()))?;
        }
    }
    for path in DOCUMENTS.map(|name| root.join(name)) {
        let text = read(&path)?;
        let renewed = renewed(&text, &reports)
            .map_err(|found| Error::Format { what: path.display().to_string(), found })?;
        if renewed != text {
            fs::write(&path, renewed).during(|| format!("write {}", path.display()))?;
            note(&format!("renewed the tables of {}", path.display()));
        }
    }
    Ok(())
}

/// All reports that there are.
fn reports(root: &Path) -> Result<Vec<Report>> {
    let paths: Vec<PathBuf> = Part::value_variants()
        .iter()
        .map(|part| root.join(REPORTS).join(part.name()).with_extension("json"))
        .collect();
    let reports = paths.iter().map(|path| Report::read(path)).collect::<Result<Vec<_>>>()?;
    Ok(reports.into_iter().flatten().collect())
}

/// A document with the tables of the reports in their places; a place without a table is an error.
fn renewed(document: &str, reports: &[Report]) -> std::result::Result<String, String> {
    let mut text = document.to_owned();
    for place in markdown::places(document) {
        let table = reports.iter().find_map(|report| report.table(place));
        text = markdown::put(&text, table.ok_or_else(|| format!("no report has `{place}`"))?)?;
    }
    Ok(text)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).during(|| format!("read {}", path.display()))
}

/// The first line that each program prints about its version.
fn versions(programs: &[&str]) -> Vec<(String, String)> {
    let version = |program: &&str| {
        let output = output_of(Command::new(program).arg("--version")).unwrap_or_default();
        let text = String::from_utf8_lossy(&output);
        let line = text.lines().next().unwrap_or("unknown").to_owned();
        ((*program).to_owned(), line)
    };
    programs.iter().map(version).collect()
}

#[cfg(test)]
mod tests {
    use super::report::tests::report;
    use super::*;

    #[test]
    fn the_tables_of_all_documents_are_those_of_the_reports() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let reports = reports(&root).unwrap();
        for path in DOCUMENTS.map(|name| root.join(name)) {
            let text = read(&path).unwrap();
            let message = "is not made from its report: `cargo testbed bench --render`";
            assert_eq!(renewed(&text, &reports).unwrap(), text, "{} {message}", path.display());
        }
    }

    #[test]
    fn a_place_needs_a_report() {
        let document = "<!-- bench: write -->\n<!-- end of bench -->\n";
        assert!(renewed(document, &[]).unwrap_err().contains("`write`"));
        assert!(renewed(document, &[report(1.0)]).unwrap().contains("perftest"));
    }
}
