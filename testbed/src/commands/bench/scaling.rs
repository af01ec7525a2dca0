//! The cost of a write where there are many of something, natively.

use std::process::Command;

use super::callgrind::{Cost, cost_of};
use super::programs::Programs;
use super::report::{Column, Report, Table};
use super::{Settings, versions};
use crate::error::Result;
use crate::progress::Step;

const PROGRAM: &str = "scaling_cost";

/// What there are many of, the flag that says how many, and the numbers.
const LADDERS: [(&str, &str, &[u32]); 4] = [
    ("queue pairs", "--queue-pairs", &[1, 4, 16, 64, 256, 1024]),
    ("regions", "--regions", &[1, 10, 100, 1000, 10_000]),
    ("writes behind one doorbell", "--depth", &[1, 4, 16, 64, 256]),
    ("polling threads", "--threads", &[1, 2, 4, 8]),
];

/// Writes that are counted; every queue pair and every region takes part in some.
const WRITES: u32 = 20_480;

/// Measures the table.
pub(super) fn measure(settings: &Settings<'_>) -> Result<Report> {
    let programs = Programs::build(settings.workspace, settings.cache, &[PROGRAM])?;
    let device = programs.device(settings.workspace)?;
    let mut table = Table {
        id: "scaling".into(),
        heading: "a write of 8 bytes, with".into(),
        unit: "instructions".into(),
        more_is_better: false,
        columns: vec![Column::ours("ours"), Column::of_others("the device in software")],
        rows: Vec::new(),
    };
    let writes = if settings.quick { 2048 } else { WRITES };
    for (what, flag, numbers) in LADDERS {
        for number in numbers.iter().take(settings.few(numbers.len())) {
            let row = format!("{what}: {number}");
            let step = Step::quiet(row.as_str());
            let Cost { program, device } = cost_of(&programs.folder, writes, |count| {
                let mut command = Command::new(programs.ours(PROGRAM));
                command.args([flag, &number.to_string(), "--iters", &count.to_string()]);
                command.env("LD_LIBRARY_PATH", &device);
                command
            })?;
            table.put(&row, 0, program);
            table.put(&row, 1, device);
            step.done();
        }
    }
    Ok(Report { made_with: versions(&["rustc", "valgrind"]), tables: vec![table] })
}
