//! What works on this machine and what does not, each no with its remedy.

mod checks;
pub(crate) mod sysfs;

use std::{error::Error, process::ExitCode};

use clap::Args;
use serde_json::json;

use crate::output;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Print JSON.
    #[arg(long)]
    json: bool,
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
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::Note => "note",
            Self::No => "NO",
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
    let checks = checks::all();
    let broken = checks.iter().filter(|check| check.verdict == Verdict::No).count();
    if options.json {
        let list: Vec<_> = checks
            .iter()
            .map(|Check { verdict, what, detail, remedy }| {
                json!({ "verdict": verdict.word(), "what": what, "detail": detail, "remedy": remedy })
            })
            .collect();
        output::json(&json!({ "checks": list, "broken": broken }));
    } else {
        for Check { verdict, what, detail, remedy } in &checks {
            output::line(&format!("{:<5} {what}: {detail}", verdict.word()));
            if !remedy.is_empty() {
                output::line(&format!("        {remedy}"));
            }
        }
        output::line(&match broken {
            0 => "nothing is broken".to_owned(),
            1 => "1 thing is broken".to_owned(),
            count => format!("{count} things are broken"),
        });
    }
    Ok(if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
