//! Reads what Rust's test programs print.
//!
//! The machine-readable format of libtest is not stable, so this reads the lines for people, as they
//! come. The counts are taken from the result line; the other lines give names, reasons and output. A
//! program without a result line crashed.

use std::mem;

/// The word with which a test says that it could not run; a reason follows.
const SKIPPED: &str = "skipped: ";

/// How one test ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Failed,
    Ignored,
}

/// A sum of tests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
}

impl Tally {
    /// Adds another sum.
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// Whether nothing was counted.
    pub(crate) fn is_empty(self) -> bool {
        self == Self::default()
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// What one test program reported.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// The counts, tests that skipped themselves counted as skipped.
    pub(crate) tally: Tally,
    /// Names of the tests that failed, with what they wrote.
    pub(crate) failures: Vec<(String, String)>,
    /// Names of the tests that skipped themselves, with their reasons.
    pub(crate) skips: Vec<(String, String)>,
    /// Whether every announced run ended with a result line.
    pub(crate) complete: bool,
    /// The test that was running when the output ended, if the program ran one at a time.
    pub(crate) unfinished: Option<String>,
}

/// Where in the output the reader is.
#[derive(Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Results,
    /// In the captured output of a test; `passed` tells the section.
    Output { name: String, passed: bool },
}

/// Reads the output of one program, line by line.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    place: Place,
    passed_section: bool,
    lines_seen: Tally,
    from_results: Tally,
    runs: usize,
    results: usize,
    running: Option<String>,
    captured: String,
    failed_names: Vec<String>,
    failures: Vec<(String, String)>,
    skips: Vec<(String, String)>,
}

impl Parser {
    /// Takes the next line, without its end. Tells how a test ended if the line says so.
    pub(crate) fn line(&mut self, line: &str) -> Option<(String, Verdict)> {
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" ----")) {
            self.end_output();
            let name = name.strip_suffix(" stdout").unwrap_or(name);
            self.place = Place::Output { name: name.to_owned(), passed: self.passed_section };
            return None;
        }
        if is_run_start(line) {
            self.end_output();
            self.passed_section = false;
            self.runs += 1;
            return None;
        }
        if let Some(tally) = parse_result(line) {
            self.end_output();
            self.results += 1;
            self.running = None;
            self.from_results.add(tally);
            return None;
        }
        match line {
            "successes:" | "failures:" => {
                self.end_output();
                self.passed_section = line == "successes:";
                None
            }
            _ if self.place == Place::Results => self.result(line),
            _ => {
                self.captured.push_str(line);
                self.captured.push('\n');
                None
            }
        }
    }

    /// The sum of what was read.
    pub(crate) fn finish(mut self) -> Report {
        self.end_output();
        let complete = self.results > 0 && self.results >= self.runs;
        let mut tally = if complete { self.from_results } else { self.lines_seen };
        let skipped = self.skips.len().min(tally.passed);
        tally.passed -= skipped;
        tally.skipped += skipped;
        for name in mem::take(&mut self.failed_names) {
            if !self.failures.iter().any(|(known, _)| *known == name) {
                self.failures.push((name, String::new()));
            }
        }
        Report {
            tally,
            failures: self.failures,
            skips: self.skips,
            complete,
            unfinished: if complete { None } else { self.running },
        }
    }

    /// A line `test NAME ... VERDICT`. When tests run one at a time the verdict may come late, with
    /// other output in between.
    fn result(&mut self, line: &str) -> Option<(String, Verdict)> {
        let (name, verdict) = match line.strip_prefix("test ").and_then(|l| l.split_once(" ... ")) {
            Some((name, rest)) => match verdict(rest) {
                Some(verdict) => (name.to_owned(), verdict),
                None => {
                    self.running = Some(name.to_owned());
                    return None;
                }
            },
            None => {
                let verdict = verdict(line)?;
                (self.running.clone()?, verdict)
            }
        };
        self.running = None;
        match verdict {
            Verdict::Passed => self.lines_seen.passed += 1,
            Verdict::Ignored => self.lines_seen.skipped += 1,
            Verdict::Failed => {
                self.lines_seen.failed += 1;
                self.failed_names.push(name.clone());
            }
        }
        Some((name, verdict))
    }

    fn end_output(&mut self) {
        let text = mem::take(&mut self.captured);
        if let Place::Output { name, passed } = mem::take(&mut self.place) {
            if !passed {
                self.failures.push((name, text.trim_end().to_owned()));
            } else if let Some(reason) = text.lines().find_map(|line| line.strip_prefix(SKIPPED)) {
                self.skips.push((name, reason.to_owned()));
            }
        }
    }
}

fn verdict(text: &str) -> Option<Verdict> {
    let word = text.split([' ', ',']).next().unwrap_or_default();
    match word {
        "ok" => Some(Verdict::Passed),
        "FAILED" => Some(Verdict::Failed),
        "ignored" => Some(Verdict::Ignored),
        _ => None,
    }
}

/// `running N tests`
fn is_run_start(line: &str) -> bool {
    let count = line
        .strip_prefix("running ")
        .and_then(|rest| rest.strip_suffix(" tests").or_else(|| rest.strip_suffix(" test")));
    count.is_some_and(|count| count.parse::<usize>().is_ok())
}

/// `test result: ok. 1 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.00s`
fn parse_result(line: &str) -> Option<Tally> {
    let counts = line.strip_prefix("test result: ")?.split_once(". ")?.1;
    let count = |what: &str| -> Option<usize> {
        counts.split("; ").find_map(|part| part.strip_suffix(what)?.trim().parse().ok())
    };
    Some(Tally {
        passed: count(" passed")?,
        failed: count(" failed")?,
        skipped: count(" ignored").unwrap_or(0),
    })
}

/// Cuts a stream of bytes into lines.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    /// Adds bytes and hands `each` the lines that are whole now, without their ends.
    pub(crate) fn push(&mut self, bytes: &[u8], mut each: impl FnMut(&str)) {
        self.rest.extend_from_slice(bytes);
        while let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            each(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']));
        }
    }

    /// What came after the last whole line; for output that ended, or a test that is running.
    pub(crate) fn rest(&self) -> String {
        String::from_utf8_lossy(&self.rest).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Report {
        let mut parser = Parser::default();
        for line in text.lines() {
            parser.line(line);
        }
        parser.finish()
    }

    #[test]
    fn passes_failures_and_skips_are_told_apart() {
        let report = read(
            "
running 4 tests
test tests::a ... ok
test tests::b ... FAILED
test tests::c - should panic ... ok
test tests::d ... ignored, needs a moon

successes:

---- tests::a stdout ----
some talk
skipped: no device

successes:
    tests::a
    tests::c

failures:

---- tests::b stdout ----

thread 'tests::b' panicked at src/lib.rs:1:1:
skipped: is not what this is

failures:
    tests::b

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
",
        );
        assert_eq!(report.tally, Tally { passed: 1, failed: 1, skipped: 2 });
        assert_eq!(report.skips, [("tests::a".into(), "no device".into())]);
        assert_eq!(report.failures.len(), 1);
        assert!(report.failures[0].1.contains("panicked"));
        assert!(report.complete);
    }

    #[test]
    fn a_crash_is_seen_and_the_running_test_named() {
        let report = read("running 3 tests\ntest a ... ok\ntest b ... ");
        assert!(!report.complete);
        assert_eq!(report.tally, Tally { passed: 1, failed: 0, skipped: 0 });
        assert_eq!(report.unfinished.as_deref(), Some("b"));
        assert!(!read("").complete);
    }

    #[test]
    fn verdicts_after_foreign_output_are_found() {
        let report = read(
            "running 2 tests\ntest a ... noise of a child\nok\ntest b ... more\nFAILED\n\
             test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out",
        );
        assert_eq!(report.tally, Tally { passed: 1, failed: 1, skipped: 0 });
        assert_eq!(report.failures, [("b".into(), String::new())]);
    }

    #[test]
    fn several_runs_in_one_output_are_added_and_each_needs_its_result() {
        let one = "running 1 test\ntest a ... ok\n\n\
                   test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0s\n";
        assert_eq!(read(&one.repeat(2)).tally.passed, 2);
        assert!(!read(&format!("{one}running 1 test\n")).complete);
        assert!(read("running 0 tests\n\ntest result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 5 filtered out; finished in 0.00s").complete);
    }

    #[test]
    fn lines_are_cut_from_any_pieces() {
        let mut lines = Lines::default();
        let mut seen = Vec::new();
        for piece in ["a\nb", "c\r\n", "d"] {
            lines.push(piece.as_bytes(), |line| seen.push(line.to_owned()));
        }
        assert_eq!(seen, ["a", "bc"]);
        assert_eq!(lines.rest(), "d");
    }

    #[test]
    fn the_closing_line_has_its_form() {
        let tally = Tally { passed: 3, failed: 0, skipped: 1 };
        assert_eq!(tally.to_string(), "3 passed, 0 failed, 1 skipped");
    }
}
