//! Tests on the host itself.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::board::{Board, Watch};
use super::{Plan, title};
use crate::channel::CHUNK;
use crate::error::{During, Result};
use crate::process;
use crate::vm::Finished;
use crate::workspace::{Package, Program, cargo};

/// Between two looks at a program that writes nothing.
const TICK: Duration = Duration::from_millis(50);

/// How long output may trail behind the end of its program.
const TRAILING_OUTPUT: Duration = Duration::from_secs(2);

/// The programs with at least one test that the plan's names select; all if it has no names.
pub(super) fn with_matching_tests(plan: &Plan<'_>, programs: Vec<Program>) -> Result<Vec<Program>> {
    let mut chosen = Vec::new();
    for program in programs {
        let mut command = Command::new(&program.file);
        command.args(["--list", "--format=terse"]).args(&plan.names);
        let list = process::output_of(&mut command)?;
        if String::from_utf8_lossy(&list).lines().any(|line| line.ends_with(": test")) {
            chosen.push(program);
        }
    }
    Ok(chosen)
}

/// Runs one test program, as `cargo test` would.
pub(super) fn run_program(plan: &Plan<'_>, program: &Program, board: &mut Board) -> Result<()> {
    let mut command = Command::new(&program.file);
    command.arg("--show-output").args(&plan.names);
    if let Some(package) = plan.workspace.packages.get(program.package) {
        command.current_dir(&package.folder);
        command.envs(package.environment.iter().map(|(name, value)| (name, value)));
    }
    command.env("CARGO", cargo().get_program());
    run(plan, command, &title(plan.workspace, program), board)
}

/// Builds and runs the documentation tests of one package.
pub(super) fn run_doctests(plan: &Plan<'_>, package: &Package, board: &mut Board) -> Result<()> {
    let mut command = cargo();
    command.args(["test", "--doc", "--package", &package.name, "--", "--show-output"]);
    command.args(&plan.names).current_dir(&plan.workspace.root);
    run(plan, command, &format!("{}: documentation tests", package.short_name()), board)
}

fn run(plan: &Plan<'_>, mut command: Command, title: &str, board: &mut Board) -> Result<()> {
    command.envs(plan.environment.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut watch = board.watch(title);
    let mut child = command.spawn().during(|| format!("start {title}"))?;
    let finished = watch_to_the_end(&mut child, plan.timeout, &mut watch)?;
    board.add(watch, &finished);
    Ok(())
}

fn watch_to_the_end(child: &mut Child, limit: Duration, watch: &mut Watch) -> Result<Finished> {
    let started = Instant::now();
    let (sender, pieces) = channel();
    if let Some(output) = child.stdout.take() {
        pass_on(output, false, sender.clone());
    }
    if let Some(errors) = child.stderr.take() {
        pass_on(errors, true, sender.clone());
    }
    drop(sender);

    let mut ended: Option<Instant> = None;
    let mut streams_are_open = true;
    loop {
        match pieces.recv_timeout(TICK) {
            Ok((is_error, bytes)) => watch.output(is_error, &bytes),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                streams_are_open = false;
                thread::sleep(TICK);
            }
        }
        if let Some(status) = child.try_wait().during(|| "wait for a test program".into())? {
            let since = ended.get_or_insert_with(Instant::now);
            // Whatever the program left behind may hold its streams open for ever.
            if !streams_are_open || since.elapsed() > TRAILING_OUTPUT {
                return Ok(Finished::Ended(status.into()));
            }
        } else if started.elapsed() > limit {
            child.kill().during(|| "end a test program".into())?;
            child.wait().during(|| "wait for a test program".into())?;
            return Ok(Finished::Stopped(format!("was stopped after {} s", limit.as_secs())));
        }
    }
}

/// Reads a stream to its end in a thread of its own.
fn pass_on(
    mut reader: impl Read + Send + 'static,
    is_error: bool,
    sender: Sender<(bool, Vec<u8>)>,
) {
    thread::spawn(move || {
        let mut buffer = vec![0; CHUNK];
        while let Ok(count) = reader.read(&mut buffer) {
            let piece = buffer.get(..count).unwrap_or_default().to_vec();
            if count == 0 || sender.send((is_error, piece)).is_err() {
                break;
            }
        }
    });
}
