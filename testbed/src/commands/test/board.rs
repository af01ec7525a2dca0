//! Collects what test programs report, shows it as it comes, and adds it up.

use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::Instant;

use crate::commands::run::describe;
use crate::libtest::{Lines, Parser, Tally, Verdict};
use crate::process::tail;
use crate::progress::Step;
use crate::vm::Finished;

/// Lines of a program's output that are shown when it ended badly.
const SHOWN_LINES: usize = 60;

/// The sum over all programs.
#[derive(Debug)]
pub(super) struct Board {
    verbose: bool,
    tally: Tally,
    failed: Vec<String>,
}

impl Board {
    /// An empty board; a verbose one shows all output.
    pub(super) fn new(verbose: bool) -> Self {
        Self { verbose, tally: Tally::default(), failed: Vec::new() }
    }

    /// Whether no test was counted yet.
    pub(super) fn is_empty(&self) -> bool {
        self.tally.is_empty()
    }

    /// Counts one failure that is no test's: a crash, a hang, leftovers, a build that failed.
    pub(super) fn trouble(&mut self, title: &str, what: &str) {
        println!("FAILED {title}: {what}");
        self.tally.failed += 1;
        self.failed.push(title.to_owned());
    }

    /// Begins to watch a program.
    pub(super) fn watch(&self, title: &str) -> Watch {
        Watch {
            title: title.to_owned(),
            started: Instant::now(),
            step: Step::quiet(title),
            parser: Parser::default(),
            lines: Lines::default(),
            output: Vec::new(),
            verbose: self.verbose,
        }
    }

    /// Adds what a program reported until it ended.
    pub(super) fn add(&mut self, watch: Watch, finished: &Finished) {
        let Watch { title, started, step, mut parser, lines, output, .. } = watch;
        drop(step);
        let rest = lines.rest();
        if !rest.is_empty() {
            parser.line(&rest);
        }
        let report = parser.finish();
        let seconds = started.elapsed().as_secs_f64();
        if !report.tally.is_empty() {
            println!("{title}: {} ({seconds:.1} s)", report.tally);
        }
        for (name, reason) in &report.skips {
            println!("    skipped {name}: {reason}");
        }
        for (name, text) in &report.failures {
            println!("    FAILED {name}");
            for line in text.lines() {
                println!("        {line}");
            }
            self.failed.push(format!("{title}: {name}"));
        }
        self.tally.add(report.tally);

        let ending = match finished {
            Finished::Ended(exit) => describe(exit),
            Finished::Stopped(why) => why.clone(),
        };
        let good = *finished == Finished::Ended(crate::channel::Exit::Code(0));
        let trouble = if !report.complete {
            let during =
                report.unfinished.map(|test| format!(" during {test}")).unwrap_or_default();
            Some(format!("it {ending}{during}, without a result line"))
        } else if !good && report.tally.failed == 0 {
            Some(format!("it {ending}, though no test failed"))
        } else {
            None
        };
        if let Some(trouble) = trouble {
            let text = String::from_utf8_lossy(&output).into_owned();
            self.trouble(&title, &format!("{trouble}; its output ends with"));
            println!("{}", tail(&text, SHOWN_LINES));
        }
    }

    /// Prints the closing line, as the last one, and turns it into an exit code.
    pub(super) fn close(self) -> ExitCode {
        if !self.failed.is_empty() {
            println!("\nfailed:");
            for name in &self.failed {
                println!("    {name}");
            }
        }
        println!("{}", self.tally);
        // The exit code tells it too if standard output is gone.
        stdout().flush().unwrap_or_default();
        if self.tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// A program being watched.
#[derive(Debug)]
pub(super) struct Watch {
    title: String,
    started: Instant,
    step: Step,
    parser: Parser,
    lines: Lines,
    output: Vec<u8>,
    verbose: bool,
}

impl Watch {
    /// Takes what the program wrote to one of its streams.
    pub(super) fn output(&mut self, is_error: bool, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
        if self.verbose {
            stdout().write_all(bytes).unwrap_or_default();
        }
        if is_error {
            return;
        }
        let Self { parser, lines, step, .. } = self;
        lines.push(bytes, |line| {
            if let Some((name, verdict)) = parser.line(line) {
                let word = match verdict {
                    Verdict::Passed => "passed",
                    Verdict::Failed => "FAILED",
                    Verdict::Ignored => "ignored",
                };
                step.detail(&format!("{word} {name}"));
            }
        });
        // A test that runs alone is announced by a line without an end.
        if let Some(name) = lines.rest().strip_prefix("test ").and_then(|l| l.split_once(" ... ")) {
            step.detail(&format!("running {}", name.0));
        }
    }
}
