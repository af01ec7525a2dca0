//! Our NVMe/RDMA initiator beside the kernel's and rdma4py's, in turns on one target.

use serde_json::Value;

use super::host::{Host, ON_RXE0};
use super::programs::Programs;
use super::report::{Column, Report, Table};
use super::{Settings, python};
use crate::efa;
use crate::error::{Error, Result};
use crate::progress::{Step, note};

const PROGRAM: &str = "nvmeof_bench";
const ADDRESS: &str = "10.99.0.1";
const NQN: &str = "nqn.2024-01.org.example:bench";

/// Sets up the kernel's target over a disk in memory; `$1` is its name, `$2` its address.
const TARGET: &str = include_str!("target.sh");

/// A workload: how its row is called, fio's name of the pattern, bytes, depth.
const WORKLOADS: [(&str, &str, u32, u32); 3] = [
    ("4 KiB random reads, one at a time", "randread", 4096, 1),
    ("4 KiB random reads, depth 32", "randread", 4096, 32),
    ("128 KiB sequential reads, depth 8", "read", 131_072, 8),
];

/// What a workload gave.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Measured {
    /// Operations a second.
    rate: f64,
    /// The median latency in microseconds.
    latency: f64,
}

/// Measures rates and latencies.
pub(super) fn measure(settings: &Settings<'_>) -> Result<Report> {
    let programs = Programs::build(settings.workspace, settings.cache, &[PROGRAM])?;
    let rdma4py = python::fetch(settings);
    let mut host = Host::boot(settings, &efa::Options::default())?;
    host.run(&format!("set -- {NQN} {ADDRESS}\n{TARGET}"))?;
    let columns = || {
        let others = ["the kernel's, fio", "rdma4py's"].map(Column::of_others);
        let [kernel, rdma4py] = others;
        vec![Column::ours("ours, polling"), Column::ours("ours, asleep"), kernel, rdma4py]
    };
    let mut rates = table("nvmeof-rate", "requests a second", true, columns());
    let mut latencies = table("nvmeof-latency", "µs, half of the requests", false, columns());
    let seconds = if settings.quick { 1 } else { 2 };
    let ours = programs.ours(PROGRAM).display().to_string();
    let script = settings.workspace.root.join("benches/python/nvmeof_reads.py");
    let script = script.display();
    for (row, pattern, bytes, depth) in WORKLOADS.into_iter().take(settings.few(WORKLOADS.len())) {
        let step = Step::quiet(format!("nvmeof: {row}"));
        let mut put = |place, measured: Measured| {
            rates.put(row, place, measured.rate);
            latencies.put(row, place, measured.latency);
        };
        let flags = format!("--rw {pattern} --bs {bytes} --iodepth {depth} --runtime {seconds}");
        for (place, more) in ["", "--interrupts"].into_iter().enumerate() {
            put(
                place,
                ours_of(&host.run(&format!("{ON_RXE0} {ours} {ADDRESS} {NQN} {flags} {more}"))?)?,
            );
        }
        put(2, kernel_of(&host.run(&kernel(pattern, bytes, depth, seconds))?)?);
        if rdma4py.is_ok() {
            let words = format!("{ADDRESS} {NQN} {pattern} {bytes} {depth} {seconds}");
            put(3, ours_of(&host.run(&format!("{ON_RXE0} python3 {script} {words}"))?)?);
        }
        step.done();
    }
    if let Err(error) = rdma4py {
        note(&format!("rdma4py is left out: {error}"));
    }
    Ok(Report { made_with: host.versions()?, tables: vec![rates, latencies] })
}

fn table(id: &str, unit: &str, more_is_better: bool, columns: Vec<Column>) -> Table {
    let heading = unit.to_owned();
    Table { id: id.into(), heading, unit: unit.into(), more_is_better, columns, rows: Vec::new() }
}

/// Connects the kernel's initiator, runs fio on its disk, and disconnects.
fn kernel(pattern: &str, bytes: u32, depth: u32, seconds: u32) -> String {
    format!(
        "nvme connect -t rdma -a {ADDRESS} -s 4420 -n {NQN} --nr-io-queues=1 > /dev/null\n\
         sleep 1\n\
         disk=$(find /dev -name 'nvme*n1' | head -n 1)\n\
         fio --name=bench --filename=$disk --direct=1 --ioengine=io_uring --time_based --ramp_time=1 \
         --runtime={seconds} --rw={pattern} --bs={bytes} --iodepth={depth} --lat_percentiles=1 --output-format=json\n\
         nvme disconnect -n {NQN} > /dev/null"
    )
}

/// Reads `… N IOPS, … 50% N, …`, which is what our programs print.
fn ours_of(output: &str) -> Result<Measured> {
    let rate =
        output.split_once(" IOPS").and_then(|(left, _)| left.rsplit(' ').next()?.parse().ok());
    let half =
        output.split_once(" 50% ").and_then(|(_, right)| right.split(',').next()?.parse().ok());
    let measured = rate.zip(half);
    let measured = measured.map(|(rate, latency)| Measured { rate, latency });
    measured.ok_or_else(|| bad("a measurement of NVMe over Fabrics", output))
}

/// Reads fio's JSON.
fn kernel_of(output: &str) -> Result<Measured> {
    let measured = || -> Option<Measured> {
        let start = output.find('{')?;
        let value: Value = serde_json::from_str(output.get(start..)?).ok()?;
        let read = value.get("jobs")?.get(0)?.get("read")?;
        let half = read.get("lat_ns")?.get("percentile")?.get("50.000000")?.as_f64()?;
        Some(Measured { rate: read.get("iops")?.as_f64()?, latency: half / 1e3 })
    };
    measured().ok_or_else(|| bad("the output of fio", output))
}

fn bad(what: &str, output: &str) -> Error {
    Error::Format { what: what.into(), found: output.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_our_programs_print_is_read() {
        let text = "Randread of 4096 bytes, depth 1, 1 queues, 2 s\n read: 7213 IOPS, 28.2 MiB/s, \
                    latency in us: average 130.1, 50% 128.0, 99% 150.0\n";
        assert_eq!(ours_of(text).unwrap(), Measured { rate: 7213.0, latency: 128.0 });
        ours_of("read: failed").unwrap_err();
    }

    #[test]
    fn what_fio_prints_is_read() {
        let text = r#"note: a line before it
            {"jobs": [{"read": {"iops": 5000.5, "lat_ns": {"percentile": {"50.000000": 181000}}}}]}"#;
        assert_eq!(kernel_of(text).unwrap(), Measured { rate: 5000.5, latency: 181.0 });
        kernel_of("{}").unwrap_err();
    }
}
