//! Programs of the host, run with their output kept for the error message.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::error::{During, Error, Result};
use crate::progress::Step;

/// Lines of a failed program's output that its error shows.
const TAIL_LINES: usize = 25;

/// Runs `command` to its end with all output in the file `log`, its last line shown by `step`.
pub(crate) fn run_logged(command: &mut Command, log: &Path, step: &Step) -> Result<()> {
    let shown = describe(command);
    let output = File::create(log).during(|| format!("create {}", log.display()))?;
    let errors = output.try_clone().during(|| format!("share {}", log.display()))?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .spawn()
        .during(|| format!("start `{shown}`"))?;
    loop {
        if let Some(status) = child.try_wait().during(|| format!("wait for `{shown}`"))? {
            if status.success() {
                return Ok(());
            }
            let tail = tail(&read_lossy(log), TAIL_LINES);
            return Err(Error::Command { command: shown, status, tail });
        }
        if let Some(line) = read_lossy(log).lines().rfind(|line| !line.trim().is_empty()) {
            step.detail(line);
        }
        sleep(Duration::from_millis(200));
    }
}

/// Runs `command` to its end and hands back what it wrote to standard output.
pub(crate) fn output_of(command: &mut Command) -> Result<Vec<u8>> {
    let shown = describe(command);
    let output = command.stdin(Stdio::null()).output().during(|| format!("start `{shown}`"))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(Error::Command { command: shown, status: output.status, tail: tail(&text, TAIL_LINES) })
}

/// The last `count` lines of `text`.
pub(crate) fn tail(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines.get(lines.len().saturating_sub(count)..).unwrap_or_default().join("\n")
}

/// A file's text with anything that is not UTF-8 replaced; empty when it cannot be read.
pub(crate) fn read_lossy(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// Whether a program of this name stands in one of the folders of `PATH`.
pub(crate) fn is_installed(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// The first words of a command line, for messages.
fn describe(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().take(4).map(|word| word.to_string_lossy().into_owned()));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_keeps_the_last_lines() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a", 5), "a");
        assert_eq!(tail("", 5), "");
    }

    #[test]
    fn a_failed_program_shows_what_it_wrote() {
        let error = output_of(Command::new("sh").args(["-c", "echo no luck >&2; exit 3"]));
        let text = error.unwrap_err().to_string();
        assert!(text.contains("no luck") && text.contains('3'), "{text}");
    }
}
