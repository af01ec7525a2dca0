//! Our `perf` beside perftest over SRD, on the model of an EFA device.
//!
//! The model works beside the guest and costs it no instructions, so that what is counted is what programs,
//! provider and waiting cost. Times of one message mean nothing there and are not measured.

use super::host::Host;
use super::report::{Column, Report, Table};
use super::verbs::ours_of;
use super::{Settings, perftest};
use crate::efa;
use crate::error::Result;
use crate::progress::Step;

const VERBS: [&str; 3] = ["send", "write", "read"];
const SIZES: [(u32, &str); 2] = [(8, "8 B"), (4096, "4 KiB")];

/// How often each program is run. The model is not bound to the guest's clock: the best run counts.
const ROUNDS: usize = 3;

/// Measures rates.
pub(super) fn measure(settings: &Settings<'_>) -> Result<Report> {
    let perf = settings.workspace.build_release_program("rdma4rs-tools")?.display().to_string();
    let mut host = Host::boot(settings, &efa::Options::with_devices(2))?;
    let unit = "messages a second";
    let mut table = Table {
        id: "srd".into(),
        heading: unit.into(),
        unit: unit.into(),
        more_is_better: true,
        columns: vec![Column::of_others("perftest"), Column::ours("ours")],
        rows: Vec::new(),
    };
    let count = if settings.quick { 200 } else { 4000 };
    for verb in VERBS.into_iter().take(settings.few(VERBS.len())) {
        for (size, called) in SIZES {
            let step = Step::quiet(format!("SRD: {verb}, {called}"));
            let flags = format!("-c SRD -s {size} -n {count} -t 16 -Q 1");
            let theirs = format!("ib_{verb}_bw {flags} -x 0");
            let ours = format!("{perf} perf {verb} bw {flags}");
            let (mut best_of_theirs, mut best_of_ours) = (0.0_f64, 0.0_f64);
            for _ in 0..if settings.quick { 1 } else { ROUNDS } {
                let output = host.run_here(
                    &format!("{theirs} -d efa_0"),
                    &format!("{theirs} -d efa_1 127.0.0.1"),
                )?;
                best_of_theirs = best_of_theirs.max(perftest::rate_of(&output)?);
                // Two ranks of one machine take two devices by themselves.
                let output = host.run_here(&ours, &format!("{ours} --json 127.0.0.1"))?;
                best_of_ours = best_of_ours.max(ours_of(&output, &["messages_per_second"])?);
            }
            let row = format!("{verb}, {called}");
            table.put(&row, 0, best_of_theirs);
            table.put(&row, 1, best_of_ours);
            step.done();
        }
    }
    Ok(Report { made_with: host.versions()?, tables: vec![table] })
}
