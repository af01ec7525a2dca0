//! What works on this machine and what does not, each no with its remedy.

mod cards;
mod checks;
mod device;
mod flow_control;
mod gpu;
mod kernel;
mod libraries;
mod locked_memory;
pub(crate) mod machine;
mod netlink;
pub(crate) mod network;
mod nvme;
mod pci;
mod port;

use std::{error::Error, process::ExitCode};

use clap::Args;
use ibverbs::DeviceSelector;
use serde_json::{Value, json};

use crate::output;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Only these devices: NAME or NAME:PORT, several with commas between them, with ^ in front to exclude and = for whole names.
    #[arg(short = 'd', long = "device", env = "RDMA_DEVICE", default_value = "")]
    device: DeviceSelector,
    /// Ask the NVMe over RDMA discovery service there, at port 4420 if none is given; may be repeated.
    #[arg(long = "nvmeof", value_name = "HOST[:PORT]")]
    nvmeof: Vec<String>,
}

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// As it should be.
    Yes,
    /// Worth knowing; nothing fails for it.
    Note,
    /// Something will not work.
    No,
    /// Not looked at, for a reason that is another line's, or none of this machine's business.
    Skipped,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::Note => "note",
            Self::No => "NO",
            Self::Skipped => "skip",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Check {
    verdict: Verdict,
    what: String,
    detail: String,
    remedy: String,
}

impl Check {
    pub(crate) fn yes(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(Verdict::Yes, what, detail, "")
    }

    pub(crate) fn note(
        what: impl Into<String>,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::new(Verdict::Note, what, detail, remedy)
    }

    pub(crate) fn no(
        what: impl Into<String>,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::new(Verdict::No, what, detail, remedy)
    }

    /// The reason ends a sentence that begins with "not looked at, because".
    pub(crate) fn skipped(what: impl Into<String>, reason: &str) -> Self {
        Self::new(Verdict::Skipped, what, format!("not looked at, because {reason}"), "")
    }

    fn new(
        verdict: Verdict,
        what: impl Into<String>,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { verdict, what: what.into(), detail: detail.into(), remedy: remedy.into() }
    }
}

pub(crate) fn run(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    let checks = checks::all(&machine::Machine::this(), options);
    if options.json {
        output::json(&for_programs(&checks));
    } else {
        for line in for_people(&checks) {
            output::line(&line);
        }
    }
    let is_broken = count(&checks, Verdict::No) > 0;
    Ok(if is_broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn count(checks: &[Check], verdict: Verdict) -> usize {
    checks.iter().filter(|check| check.verdict == verdict).count()
}

fn for_programs(checks: &[Check]) -> Value {
    let list: Vec<_> = checks
        .iter()
        .map(|Check { verdict, what, detail, remedy }| {
            json!({ "verdict": verdict.word(), "what": what, "detail": detail, "remedy": remedy })
        })
        .collect();
    let (broken, skipped) = (count(checks, Verdict::No), count(checks, Verdict::Skipped));
    json!({ "checks": list, "broken": broken, "skipped": skipped })
}

fn for_people(checks: &[Check]) -> Vec<String> {
    let mut lines = Vec::new();
    for Check { verdict, what, detail, remedy } in checks {
        lines.push(format!("{:<5} {what}: {detail}", verdict.word()));
        if !remedy.is_empty() {
            lines.push(format!("        {remedy}"));
        }
    }
    let broken = match count(checks, Verdict::No) {
        0 => "nothing is broken".to_owned(),
        1 => "1 thing is broken".to_owned(),
        count => format!("{count} things are broken"),
    };
    let skipped = match count(checks, Verdict::Skipped) {
        0 => String::new(),
        1 => ", 1 was not looked at".to_owned(),
        count => format!(", {count} were not looked at"),
    };
    lines.push(broken + &skipped);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_from_another_line_does_not_count_as_broken() {
        let checks = [
            Check::no("libibverbs", "not there", "install it"),
            Check::skipped("RDMA devices", "libibverbs is not there"),
            Check::yes("locked memory", "unlimited"),
        ];
        let expected = [
            "NO    libibverbs: not there",
            "        install it",
            "skip  RDMA devices: not looked at, because libibverbs is not there",
            "yes   locked memory: unlimited",
            "1 thing is broken, 1 was not looked at",
        ];
        assert_eq!(for_people(&checks), expected);
        let json = for_programs(&checks);
        assert_eq!((&json["broken"], &json["skipped"]), (&json!(1), &json!(1)));
        assert_eq!(json["checks"][1]["verdict"], "skip");
    }
}
