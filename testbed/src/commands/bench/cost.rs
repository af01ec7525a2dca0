//! The cost of an operation and of a message: our programs and their twins in C, natively.

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

/// A way to post and to poll: its name in C and in ours, and the flag that selects it.
type Way = (&'static str, &'static str, &'static [&'static str]);

const WAYS: [Way; 3] = [
    ("C, `ibv_wr_*`", "ours", &[]),
    ("C, `ibv_post_send`", "ours, `Classic`", &["--basic"]),
    ("C, `ibv_start_poll`", "ours, `Poller`", &["--poller"]),
];

/// Measures both tables.
pub(super) fn measure(settings: &Settings<'_>) -> Result<Report> {
    let programs =
        Programs::build(settings.workspace, settings.cache, &["data_path_cost", "message_cost"])?;
    let device = programs.device(settings.workspace)?;
    let measure = |table: &mut Table, name: &str, cases: &[Case], ways: &[Way]| -> Result<()> {
        for (row, flags) in cases.iter().take(settings.few(cases.len())) {
            let step = Step::quiet(format!("{name}: {row}"));
            for (place, (_, _, more)) in ways.iter().enumerate() {
                for (column, program) in
                    [programs.twin(name), programs.ours(name)].iter().enumerate()
                {
                    let cost = cost_of(&programs.folder, settings.operations(), |count| {
                        let mut command = Command::new(program);
                        command.args(*flags).args(*more).args(["--warmup", "64"]);
                        command.args(["--iters", &count.to_string()]);
                        command.env("LD_LIBRARY_PATH", &device);
                        command
                    })?;
                    table.put(row, 2 * place + column, cost.program);
                }
            }
            step.done();
        }
        Ok(())
    };
    let mut operations = table("operation", "", &WAYS);
    measure(&mut operations, "data_path_cost", &OPERATIONS, &WAYS)?;
    let mut messages = table("message", "a message, receive posted", &WAYS[..2]);
    measure(&mut messages, "message_cost", &MESSAGES, &WAYS[..2])?;
    Ok(Report {
        made_with: versions(&["rustc", "cc", "valgrind"]),
        tables: vec![operations, messages],
    })
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
