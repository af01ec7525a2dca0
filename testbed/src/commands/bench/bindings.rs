//! Writes on rxe through C, our crates and other bindings: the same program each time.

use std::path::Path;
use std::process::Command;

use super::host::{Host, ON_RXE0};
use super::programs::Programs;
use super::report::{Column, Table};
use super::{Settings, python};
use crate::apt;
use crate::error::Result;
use crate::process::output_of;
use crate::progress::{Step, note};

const PROGRAM: &str = "data_path_cost";

const ROWS: [(&str, &[&str]); 4] = [
    ("8 bytes, one at a time", &["--mode", "single", "--iters", "1000"]),
    ("8 bytes, batch of 64", &["--mode", "batch", "--iters", "6400"]),
    ("4096 bytes, one at a time", &["--mode", "single", "--size", "4096", "--iters", "400"]),
    ("4096 bytes, batch of 64", &["--mode", "batch", "--size", "4096", "--iters", "1280"]),
];

/// The programs that are there to be measured, by column.
#[derive(Debug)]
pub(super) struct Bindings {
    commands: Vec<(Column, String)>,
}

impl Bindings {
    /// Builds and fetches them. One of others that cannot be had is said and left out.
    pub(super) fn build(settings: &Settings<'_>) -> Result<Self> {
        let programs = Programs::build(settings.workspace, settings.cache, &[PROGRAM])?;
        let show = |path: &Path| path.display().to_string();
        let mut commands = vec![
            (Column::of_others("C"), show(&programs.twin(PROGRAM))),
            (Column::ours("ours"), show(&programs.ours(PROGRAM))),
        ];
        match build_sideway(settings) {
            Ok(program) => commands.push((Column::of_others("sideway"), program)),
            Err(error) => note(&format!("sideway is left out: {error}")),
        }
        match python::fetch(settings) {
            Ok(()) => {
                let script = show(&settings.workspace.root.join("benches/python/writes.py"));
                commands.push((Column::of_others("rdma4py"), format!("python3 {script}")));
            }
            Err(error) => note(&format!("rdma4py is left out: {error}")),
        }
        Ok(Self { commands })
    }

    pub(super) fn measure(&self, settings: &Settings<'_>, host: &mut Host) -> Result<Table> {
        let mut table = Table {
            id: "bindings".into(),
            heading: "writes on rxe".into(),
            unit: "ns per write".into(),
            more_is_better: false,
            columns: self.commands.iter().map(|(column, _)| column.clone()).collect(),
            rows: Vec::new(),
        };
        for (row, flags) in ROWS.iter().take(settings.few(ROWS.len())) {
            let step = Step::quiet(format!("writes on rxe: {row}"));
            for (place, (column, command)) in self.commands.iter().enumerate() {
                step.detail(&column.name);
                let output = host.run(&format!("{ON_RXE0} {command} {}", flags.join(" ")))?;
                if let Some(cost) = parse(&output) {
                    table.put(row, place, cost);
                }
            }
            step.done();
        }
        Ok(table)
    }
}

/// The number behind `ns_per_op=`.
fn parse(output: &str) -> Option<f64> {
    output.split_once("ns_per_op=")?.1.split_whitespace().next()?.parse().ok()
}

/// Builds the program in `benches/sideway`, which is no member of the workspace.
fn build_sideway(settings: &Settings<'_>) -> Result<String> {
    apt::require("cmake", settings.cache)?;
    apt::require_libclang(settings.cache)?;
    let target = settings.workspace.target.join("bench/sideway");
    let include = output_of(Command::new("cc").arg("-print-file-name=include"))?;
    let include = String::from_utf8_lossy(&include);
    let mut cargo = crate::workspace::cargo();
    cargo.args(["build", "--quiet", "--release", "--locked", "--target-dir"]).arg(&target);
    cargo.current_dir(settings.workspace.root.join("benches/sideway"));
    // Debian's libclang alone has none of the compiler's own headers.
    cargo.env("BINDGEN_EXTRA_CLANG_ARGS", format!("-isystem {}", include.trim()));
    output_of(&mut cargo)?;
    Ok(target.join("release/bench-sideway").display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_is_read_wherever_it_stands() {
        assert_eq!(parse("C dev=rxe0 ns_per_op=42326.4\n"), Some(42326.4));
        assert_eq!(parse("rdma4py ns_per_op=1.5 more"), Some(1.5));
        assert_eq!(parse("failed"), None);
    }
}
