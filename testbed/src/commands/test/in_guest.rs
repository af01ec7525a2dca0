//! Tests in the guest, and the look at its kernel after each of them.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::board::Board;
use super::{Plan, title};
use crate::cache::Cache;
use crate::commands::{boot_with_efa, job, set};
use crate::efa;
use crate::error::{Result, chain};
use crate::vm::{Finished, Guest, Limits};
use crate::workspace::Program;

/// A test program that writes nothing for so long hangs, even in an emulated guest on a busy host.
const SILENCE: Duration = Duration::from_secs(240);

/// Objects of programs that just ended may take a moment to go.
const SETTLING: Duration = Duration::from_secs(10);

/// Runs the programs one after the other, in one guest as long as they need the same devices. A guest
/// that broke is replaced by a new one.
pub(super) fn run_programs(
    plan: &Plan<'_>,
    programs: &[Program],
    cache: &Cache,
    board: &mut Board,
) {
    let mut guest: Option<Watched> = None;
    for (index, program) in programs.iter().enumerate() {
        let title = format!("{} (in the guest)", title(plan.workspace, program));
        let package = plan.workspace.packages.get(program.package);
        let efa = package
            .map(|package| efa::Options::of_test(&program.target, &package.folder))
            .unwrap_or_default();
        let watched = match guest.take().filter(|watched| watched.efa == efa) {
            Some(watched) => watched,
            None => match Watched::boot(plan, cache, efa) {
                Ok(watched) => watched,
                Err(error) => {
                    let count = programs.len() - index;
                    let what = format!("{count} test programs could not run: {}", chain(&error));
                    board.trouble("the guest", &what);
                    return;
                }
            },
        };
        guest = run_program(plan, program, &title, watched, board);
    }
}

/// Runs one program. Hands the guest back if it is as good as before.
fn run_program(
    plan: &Plan<'_>,
    program: &Program,
    title: &str,
    mut watched: Watched,
    board: &mut Board,
) -> Option<Watched> {
    let file = program.file.display().to_string();
    // One test at a time: what the kernel says belongs to that test, and a hang has a name.
    let mut command = vec![file, "--show-output".into(), "--test-threads=1".into()];
    command.extend(plan.names.iter().cloned());
    let mut job = job(command);
    if let Some(package) = plan.workspace.packages.get(program.package) {
        job.directory = package.folder.display().to_string();
        job.environment.extend(package.environment.iter().cloned());
    }
    watched.efa.announce(&mut job);
    for (name, value) in &plan.environment {
        set(&mut job, name, value);
    }

    let mut watch = board.watch(title);
    let limits = Limits { total: plan.timeout, silence: SILENCE };
    match watched.guest.run(job, limits, |is_error, bytes| watch.output(is_error, bytes)) {
        Ok(finished) => {
            let hung = matches!(finished, Finished::Stopped(_));
            board.add(watch, &finished);
            match watched.look() {
                Ok(complaints) => {
                    for complaint in complaints {
                        board.trouble(title, &complaint);
                    }
                    (!hung).then_some(watched)
                }
                Err(error) => {
                    board.trouble(title, &chain(&error));
                    None
                }
            }
        }
        Err(error) => {
            board.add(watch, &Finished::Stopped("took the guest with it".into()));
            println!("{}", chain(&error));
            None
        }
    }
}

/// A guest whose kernel is looked at.
#[derive(Debug)]
struct Watched {
    guest: Guest,
    /// The EFA devices that it has.
    efa: efa::Options,
    resources: String,
}

impl Watched {
    fn boot(plan: &Plan<'_>, cache: &Cache, efa: efa::Options) -> Result<Self> {
        let mut guest = boot_with_efa(cache, plan.workspace, plan.memory, &efa)?;
        let resources = resources(&mut guest)?;
        query(&mut guest, &["dmesg", "--clear"])?;
        Ok(Self { guest, efa, resources })
    }

    /// What is wrong since the last look: RDMA objects left behind, warnings of the kernel.
    fn look(&mut self) -> Result<Vec<String>> {
        let mut complaints = Vec::new();
        let deadline = Instant::now() + SETTLING;
        loop {
            let now = resources(&mut self.guest)?;
            if now == self.resources {
                break;
            }
            if Instant::now() > deadline {
                let before = std::mem::replace(&mut self.resources, now.clone());
                complaints
                    .push(format!("RDMA objects were left behind\nbefore:\n{before}after:\n{now}"));
                break;
            }
            sleep(Duration::from_millis(300));
        }
        let log = query(&mut self.guest, &["dmesg", "--read-clear"])?;
        if log.lines().any(is_warning) {
            complaints.push(format!("the kernel warned\n{log}"));
        }
        Ok(complaints)
    }
}

/// The RDMA objects of programs. The kernel's own, such as the completion queues that it keeps for its
/// NVMe target and initiator, stay as long as their device.
fn resources(guest: &mut Guest) -> Result<String> {
    let all = "for kind in ctx pd mr cq srq qp cm_id; do rdma resource show $kind; done";
    Ok(of_programs(&query(guest, &["sh", "-c", all])?))
}

/// The lines about objects that a process has; those of the kernel name no process.
fn of_programs(objects: &str) -> String {
    objects.lines().filter(|line| line.contains(" pid ")).map(|line| format!("{line}\n")).collect()
}

fn query(guest: &mut Guest, words: &[&str]) -> Result<String> {
    guest.query(job(words.iter().map(|word| (*word).to_owned()).collect()))
}

/// Whether a line of the kernel's log is one that a healthy kernel does not write.
fn is_warning(line: &str) -> bool {
    const SIGNS: [&str; 10] = [
        "WARNING: ",
        "BUG: ",
        "Oops: ",
        "Call Trace:",
        "UBSAN: ",
        "KASAN: ",
        "refcount_t: ",
        "INFO: task ",
        "RESOURCE LEAK",
        "unregister_netdevice: waiting for",
    ];
    SIGNS.iter().any(|sign| line.contains(sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_the_kernel_are_not_those_of_programs() {
        let of_kernel = "dev rxe0 cqn 2 cqe 1023 users 1 poll-ctx WORKQUEUE comm [ib_core]\n";
        let of_program = "dev rxe0 cqn 5 cqe 63 users 1 pid 163 comm kernel_rc\n";
        assert_eq!(of_programs(&format!("{of_kernel}{of_program}")), of_program);
    }

    #[test]
    fn warnings_are_told_from_the_rest_of_the_log() {
        assert!(is_warning(
            "[   12.5] WARNING: CPU: 0 PID: 77 at drivers/infiniband/sw/rxe/rxe_pool.c:1"
        ));
        assert!(is_warning("[ 9.0] restrack: ---- BUG: RESOURCE LEAK DETECTED ----"));
        assert!(is_warning("[ 200.1] INFO: task kernel_rc:91 blocked for more than 120 seconds."));
        assert!(!is_warning("[ 3.2] rdma_rxe: loaded"));
        assert!(!is_warning("[ 9.1] traps: a.out[77] general protection fault ip:401136"));
    }
}
