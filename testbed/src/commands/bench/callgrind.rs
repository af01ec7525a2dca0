//! Instructions of a program by whose they are, as valgrind's callgrind counts them.

use std::path::Path;
use std::process::Command;

use crate::error::{Error, Result};
use crate::process::{self, read_lossy};

/// The device in software stands where rdma-core's libraries would, and has the name by which it was loaded first.
const DEVICE: [&str; 2] = ["libibverbs.so", "libefa.so"];

/// How many instructions were executed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Count {
    /// By all.
    pub(crate) total: u64,
    /// By the device and what it calls.
    pub(crate) device: u64,
}

/// Instructions per operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Cost {
    /// Of the program and its libraries.
    pub(crate) program: f64,
    /// Of the device.
    pub(crate) device: f64,
}

/// What one operation of a program costs: the difference between runs of `operations` and twice as many,
/// so that neither start nor end is in it.
///
/// `command` makes the command for a number of operations; its environment is kept.
#[expect(clippy::cast_precision_loss, reason = "counts of instructions have less than 52 bits")]
pub(crate) fn cost_of(
    folder: &Path,
    operations: u32,
    command: impl Fn(u32) -> Command,
) -> Result<Cost> {
    let once = count(folder, &command(operations))?;
    let twice = count(folder, &command(2 * operations))?;
    let each = |less: u64, more: u64| (more as f64 - less as f64) / f64::from(operations);
    let device = each(once.device, twice.device);
    // What is further behind the point is how starts differ.
    let rounded = |cost: f64| (cost * 10.0).round() / 10.0;
    Ok(Cost { program: rounded(each(once.total, twice.total) - device), device: rounded(device) })
}

fn count(folder: &Path, command: &Command) -> Result<Count> {
    let file = folder.join("callgrind.out");
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--quiet"]);
    valgrind.arg(format!("--callgrind-out-file={}", file.display()));
    valgrind.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            valgrind.env(name, value);
        }
    }
    process::output_of(&mut valgrind)?;
    parse(&read_lossy(&file)).ok_or_else(|| Error::Format {
        what: file.display().to_string(),
        found: "no profile of callgrind".into(),
    })
}

/// Adds up a profile. Calls come as `calls=…` and a line with their inclusive cost; `ob=` is the object of
/// what follows and `cob=` that of the next callee, where it is another one.
fn parse(profile: &str) -> Option<Count> {
    let mut count = Count::default();
    let mut objects: Vec<(String, bool)> = Vec::new();
    let mut is_device = false;
    let mut callee_is_device = None;
    let mut is_call = false;
    for line in profile.lines() {
        if let Some(object) = line.strip_prefix("ob=") {
            is_device = is_of_device(&mut objects, object);
        } else if let Some(object) = line.strip_prefix("cob=") {
            callee_is_device = Some(is_of_device(&mut objects, object));
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            let cost: u64 = line.split(' ').nth(1).unwrap_or("0").parse().ok()?;
            if !is_call {
                count.total += cost;
            } else if !is_device && callee_is_device == Some(true) {
                count.device += cost;
            }
            if is_call {
                callee_is_device = None;
                is_call = false;
            }
        }
    }
    profile.contains("events: Ir").then_some(count)
}

/// Whether an object is the device's. Its name comes once, behind its number in parentheses.
fn is_of_device(objects: &mut Vec<(String, bool)>, object: &str) -> bool {
    let (number, name) = object.split_once(' ').unwrap_or((object, ""));
    if !name.is_empty() {
        objects.push((number.to_owned(), DEVICE.iter().any(|device| name.contains(device))));
    }
    objects.iter().any(|(other, is_device)| other == number && *is_device)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program (10 by itself) that calls the device twice (100 and 20) and libc once (7); the device calls
    /// itself and libc.
    const PROFILE: &str = "\
# callgrind format
positions: line
events: Ir

ob=(1) /tmp/program
fl=(1) main.c
fn=(1) main
4 6
+1 4
cob=(2) /tmp/libibverbs.so.1
cfn=(2) ibv_post_send
calls=2 10
* 100
cob=(2)
cfn=(3)
calls=1 11
-2 20
cob=(3) /lib/libc.so.6
cfn=(4)
calls=1 1
9 7

ob=(2)
fn=(2)
10 90
cfn=(5)
calls=1 12
10 15
cob=(3)
cfn=(4)
calls=1 1
10 5
fn=(5)
12 10

ob=(3)
fn=(4)
1 12
";

    #[test]
    fn what_the_device_calls_is_the_devices() {
        assert_eq!(parse(PROFILE), Some(Count { total: 10 + 90 + 10 + 12, device: 120 }));
        assert_eq!(parse("no profile"), None);
    }
}
