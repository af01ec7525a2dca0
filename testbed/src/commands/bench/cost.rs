//! The cost of an operation, of a message and of SRD: our programs and their twins in C, natively.

use std::path::Path;
use std::process::Command;

use super::callgrind::cost_of;
use super::programs::Programs;
use super::report::{Column, Report, Table};
use super::{Settings, versions};
use crate::error::Result;
use crate::progress::Step;

/// A row: its name, and the flags of the programs.
type Case = (&'static str, &'static [&'static str]);

const OPERATIONS: [Case; 6] = [
    ("write, one at a time", &["--mode", "single"]),
    ("write, inline", &["--mode", "single", "--inline"]),
    ("write with immediate, receive posted", &["--mode", "single", "--op", "write-imm"]),
    ("batch of 64 writes", &["--mode", "batch"]),
    ("batch of 64, inline", &["--mode", "batch", "--inline"]),
    ("batch of 64 with immediate, receives posted", &["--mode", "batch", "--op", "write-imm"]),
];

const MESSAGES: [Case; 8] = [
    ("datagram, one at a time", &["--mode", "single", "--ud"]),
    ("datagram, batch of 64", &["--mode", "batch", "--ud"]),
    ("datagram into a shared receive queue, one at a time", &["--mode", "single", "--ud", "--srq"]),
    ("datagram into a shared receive queue, batch of 64", &["--mode", "batch", "--ud", "--srq"]),
    ("reliable send, one at a time", &["--mode", "single"]),
    ("reliable send, batch of 64", &["--mode", "batch"]),
    ("reliable send into a shared receive queue, one at a time", &["--mode", "single", "--srq"]),
    ("reliable send into a shared receive queue, batch of 64", &["--mode", "batch", "--srq"]),
];

/// With the number of operations in a round.
const SRD: [(Case, u32); 6] = [
    (("write, one at a time", &["--op", "write"]), 1),
    (("write, batch of 16", &["--op", "write"]), 16),
    (("write, batch of 64", &["--op", "write"]), 64),
    (("receive and send, one at a time", &["--op", "receive"]), 1),
    (("receive and send, batch of 16", &["--op", "receive"]), 16),
    (("receive and send, batch of 64", &["--op", "receive"]), 64),
];

/// Requests that own their buffers have no twin in C.
const OWNED: [Case; 4] = [
    ("polled, one at a time", &["--depth", "1"]),
    ("polled, 64 outstanding", &["--depth", "64"]),
    ("awaited with tokio, one at a time", &["--depth", "1", "--tokio"]),
    ("awaited with tokio, by each of 64 tasks", &["--depth", "64", "--tokio"]),
];

/// A way to post and to poll: its name in C and in ours, and the flag that selects it.
type Way = (&'static str, &'static str, &'static [&'static str]);

const WAYS: [Way; 3] = [
    ("C, `ibv_wr_*`", "ours", &[]),
    ("C, `ibv_post_send`", "ours, `Classic`", &["--basic"]),
    ("C, `ibv_start_poll`", "ours, `Poller`", &["--poller"]),
];

/// Measures the tables.
pub(super) fn measure(settings: &Settings<'_>) -> Result<Report> {
    let names = ["data_path_cost", "message_cost", "efa_data_path_cost", "owned_cost"];
    let programs = Programs::build(settings.workspace, settings.cache, &names)?;
    let device = programs.device(settings.workspace)?;
    let bench = Bench { settings, programs: &programs, device: &device };
    let mut operations = table("operation", "", &WAYS);
    bench.fill(&mut operations, "data_path_cost", &OPERATIONS, &WAYS)?;
    let mut messages = table("message", "a message, receive posted", &WAYS[..2]);
    bench.fill(&mut messages, "message_cost", &MESSAGES, &WAYS[..2])?;
    let mut srd = table("srd-cost", "64 bytes over SRD", &WAYS[..1]);
    bench.fill_srd(&mut srd)?;
    let owned = bench.owned()?;
    Ok(Report {
        made_with: versions(&["rustc", "cc", "valgrind"]),
        tables: vec![operations, messages, srd, owned],
    })
}

/// The programs and what they run on.
struct Bench<'a> {
    settings: &'a Settings<'a>,
    programs: &'a Programs,
    device: &'a Path,
}

impl Bench<'_> {
    fn fill(&self, table: &mut Table, name: &str, cases: &[Case], ways: &[Way]) -> Result<()> {
        for (row, flags) in cases.iter().take(self.settings.few(cases.len())) {
            let step = Step::quiet(format!("{name}: {row}"));
            for (place, (_, _, more)) in ways.iter().enumerate() {
                self.pair(table, name, row, place, |command, count| {
                    command.args(*flags).args(*more).args(["--warmup", "64"]);
                    command.args(["--iters", &count.to_string()]);
                })?;
            }
            step.done();
        }
        Ok(())
    }

    fn fill_srd(&self, table: &mut Table) -> Result<()> {
        for ((row, flags), depth) in SRD.iter().take(self.settings.few(SRD.len())) {
            let step = Step::quiet(format!("SRD: {row}"));
            self.pair(table, "efa_data_path_cost", row, 0, |command, count| {
                command.args(*flags).args(["--depth", &depth.to_string()]);
                command.args(["--rounds", &(count / depth).to_string()]);
                command.env("SOFT_DEVICE_KIND", "efa");
            })?;
            step.done();
        }
        Ok(())
    }

    fn owned(&self) -> Result<Table> {
        let mut table = table("owned", "a write that owns its buffer", &[]);
        table.columns.push(Column::ours("ours"));
        for (row, flags) in OWNED.iter().take(self.settings.few(OWNED.len())) {
            let step = Step::quiet(format!("owned buffers: {row}"));
            let program = self.programs.ours("owned_cost");
            let cost = self.cost(&program, |command, count| {
                command.args(*flags).args(["--iters", &count.to_string()]);
            })?;
            table.put(row, 0, cost);
            step.done();
        }
        Ok(table)
    }

    /// Counts the program in C and ours, for two columns beside each other.
    fn pair(
        &self,
        table: &mut Table,
        name: &str,
        row: &str,
        place: usize,
        prepare: impl Fn(&mut Command, u32),
    ) -> Result<()> {
        let programs = [self.programs.twin(name), self.programs.ours(name)];
        for (column, program) in programs.iter().enumerate() {
            table.put(row, 2 * place + column, self.cost(program, &prepare)?);
        }
        Ok(())
    }

    /// Instructions of a program for one operation; `prepare` says how it does so many.
    fn cost(&self, program: &Path, prepare: impl Fn(&mut Command, u32)) -> Result<f64> {
        let cost = cost_of(&self.programs.folder, self.settings.operations(), |count| {
            let mut command = Command::new(program);
            prepare(&mut command, count);
            command.env("LD_LIBRARY_PATH", self.device);
            command
        })?;
        Ok(cost.program)
    }
}

fn table(id: &str, heading: &str, ways: &[Way]) -> Table {
    let columns = ways.iter().flat_map(|(c, ours, _)| [Column::of_others(c), Column::ours(ours)]);
    Table {
        id: id.into(),
        heading: heading.into(),
        unit: "instructions".into(),
        more_is_better: false,
        columns: columns.collect(),
        rows: Vec::new(),
    }
}
