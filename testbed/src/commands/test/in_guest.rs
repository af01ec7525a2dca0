//! Tests in the guest, and the look at its kernel after each of them.

use std::path::PathBuf;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use super::board::Board;
use super::{Plan, title};
use crate::cache::Cache;
use crate::channel::Job;
use crate::commands::{as_rank, boot_pair, boot_with_efa, job, set};
use crate::efa;
use crate::error::{Result, chain};
use crate::machine::Place;
use crate::rdma_core::{Release, use_libraries};
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
    let mut kept: Option<Watched> = None;
    for (index, program) in programs.iter().enumerate() {
        let needs = Needs::of(plan, program);
        let mut libraries = vec![None];
        match needs.efa.libraries(cache) {
            Ok(others) => libraries.extend(others.into_iter().map(Some)),
            Err(error) => board.trouble("another rdma-core", &chain(&error)),
        }
        for libraries in libraries {
            let watched = match kept.take().filter(|watched| watched.needs == needs) {
                Some(watched) => watched,
                None => match Watched::boot(plan, cache, needs.clone()) {
                    Ok(watched) => watched,
                    Err(error) => {
                        let count = programs.len() - index;
                        let what =
                            format!("{count} test programs could not run: {}", chain(&error));
                        board.trouble("the guest", &what);
                        return;
                    }
                },
            };
            kept = run_program(plan, program, libraries.as_ref(), watched, board);
        }
    }
}

/// What a test program must be given.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Needs {
    /// EFA devices.
    efa: efa::Options,
    /// Two machines.
    pair: bool,
}

impl Needs {
    fn of(plan: &Plan<'_>, program: &Program) -> Self {
        let package = plan.workspace.packages.get(program.package);
        let name = &program.target;
        let efa = package.map(|package| efa::Options::of_test(name, &package.folder));
        Self { efa: efa.unwrap_or_default(), pair: efa::Options::test_is_of_a_pair(name) }
    }
}

/// Runs one program, in each machine of a pair, with the root's rdma-core or with that in a folder. Hands the
/// machines back if they are as good as before.
fn run_program(
    plan: &Plan<'_>,
    program: &Program,
    libraries: Option<&(Release, PathBuf)>,
    mut watched: Watched,
    board: &mut Board,
) -> Option<Watched> {
    let title = title(plan.workspace, program);
    let title = |rank: usize| {
        let place = match watched.needs.pair {
            true => format!("in guest {rank} of two"),
            false => "in the guest".into(),
        };
        match libraries {
            Some((release, _)) => format!("{title} ({place}, {})", release.name()),
            None => format!("{title} ({place})"),
        }
    };
    let titles: Vec<_> = (0..watched.guests.len()).map(title).collect();
    let limits = Limits { total: plan.timeout, silence: SILENCE };
    let ends: Vec<_> = thread::scope(|scope| {
        let mut running = Vec::new();
        for (rank, guest) in watched.guests.iter_mut().enumerate() {
            let mut job = test_job(plan, program, &watched.needs.efa);
            if let Some((_, folder)) = libraries {
                use_libraries(folder, &mut job);
            }
            if watched.needs.pair {
                as_rank(rank, Place::First.address(), &mut job);
            }
            let mut watch = board.watch(&titles[rank]);
            running.push(scope.spawn(move || {
                let finished =
                    guest.run(job, limits, |is_error, bytes| watch.output(is_error, bytes));
                (watch, finished)
            }));
        }
        running.into_iter().map(thread::ScopedJoinHandle::join).collect()
    });

    let (mut lost, mut hung) = (false, false);
    for (end, title) in ends.into_iter().zip(&titles) {
        match end {
            Ok((watch, Ok(finished))) => {
                hung |= matches!(finished, Finished::Stopped(_));
                board.add(watch, &finished);
            }
            Ok((watch, Err(error))) => {
                lost = true;
                board.add(watch, &Finished::Stopped("took the guest with it".into()));
                println!("{}", chain(&error));
            }
            Err(_) => {
                lost = true;
                board.trouble(title, "the thread that watched it panicked");
            }
        }
    }
    if lost || watched.needs.efa.breaks_kernel {
        return None;
    }
    match watched.look() {
        Ok(complaints) => {
            for (rank, complaint) in complaints {
                board.trouble(titles.get(rank).map_or("", String::as_str), &complaint);
            }
            (!hung).then_some(watched)
        }
        Err(error) => {
            board.trouble(titles.first().map_or("", String::as_str), &chain(&error));
            None
        }
    }
}

/// A test program as a job.
fn test_job(plan: &Plan<'_>, program: &Program, efa: &efa::Options) -> Job {
    let file = program.file.display().to_string();
    // One test at a time: what the kernel says belongs to that test, and a hang has a name.
    let mut command = vec![file, "--show-output".into(), "--test-threads=1".into()];
    command.extend(plan.names.iter().cloned());
    let mut job = job(command);
    if let Some(package) = plan.workspace.packages.get(program.package) {
        job.directory = package.folder.display().to_string();
        job.environment.extend(package.environment.iter().cloned());
    }
    efa.announce(&mut job);
    for (name, value) in &plan.environment {
        set(&mut job, name, value);
    }
    job
}

/// A guest whose kernel is looked at, or two.
#[derive(Debug)]
struct Watched {
    guests: Vec<Guest>,
    /// What they were given.
    needs: Needs,
    /// The RDMA objects in each.
    resources: Vec<String>,
}

impl Watched {
    fn boot(plan: &Plan<'_>, cache: &Cache, needs: Needs) -> Result<Self> {
        let (workspace, memory) = (plan.workspace, plan.memory);
        let mut guests = if needs.pair {
            boot_pair(cache, workspace, memory, &needs.efa)?
        } else {
            vec![boot_with_efa(cache, workspace, memory, &needs.efa)?]
        };
        let mut resources = Vec::new();
        for guest in &mut guests {
            resources.push(resources_of(guest)?);
            query(guest, &["dmesg", "--clear"])?;
        }
        Ok(Self { guests, needs, resources })
    }

    /// What is wrong since the last look, and with which guest: RDMA objects left behind, warnings of the
    /// kernel.
    fn look(&mut self) -> Result<Vec<(usize, String)>> {
        let mut complaints = Vec::new();
        let guests = self.guests.iter_mut().zip(&mut self.resources);
        for (rank, (guest, resources)) in guests.enumerate() {
            let deadline = Instant::now() + SETTLING;
            loop {
                let now = resources_of(guest)?;
                if now == *resources {
                    break;
                }
                if Instant::now() > deadline {
                    let before = std::mem::replace(resources, now.clone());
                    let what =
                        format!("RDMA objects were left behind\nbefore:\n{before}after:\n{now}");
                    complaints.push((rank, what));
                    break;
                }
                sleep(Duration::from_millis(300));
            }
            let log = query(guest, &["dmesg", "--read-clear"])?;
            if log.lines().any(is_warning) {
                complaints.push((rank, format!("the kernel warned\n{log}")));
            }
        }
        Ok(complaints)
    }
}

/// The RDMA objects of programs. The kernel's own, such as the completion queues that it keeps for its
/// NVMe target and initiator, stay as long as their device.
fn resources_of(guest: &mut Guest) -> Result<String> {
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
