//! `cargo testbed demo`: an example between two hosts, and the packets it sent.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::run::describe;
use super::{as_rank, boot, job, on_host};
use crate::cache::Cache;
use crate::channel::{Exit, Message};
use crate::error::{Error, Result};
use crate::libtest::Lines;
use crate::progress::note;
use crate::vm::{Event, Guest};
use crate::workspace::Workspace;

/// The example that is shown.
const EXAMPLE: &str = "write_with_imm";

/// The two hosts, in the order of their ranks.
const HOSTS: [&str; 2] = ["a", "b"];

/// Where rank 0 listens.
const FIRST_ADDRESS: &str = "10.99.1.1";

/// From the start of the ranks to the end of both.
const LIMIT: Duration = Duration::from_secs(120);

/// How long a rank may go on after the other one failed.
const GRACE: Duration = Duration::from_secs(10);

/// Builds the example, runs it as two ranks, and shows what the devices counted.
pub(crate) fn run() -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    let programs = workspace.build_examples(Some(EXAMPLE))?;
    let Some(program) = programs.first() else {
        return Err(Error::Format { what: "cargo's build".into(), found: "no example".into() });
    };
    let file = program.file.display().to_string();
    let mut guest = boot(&Cache::open()?, &workspace, None)?;

    let before = counters(&mut guest)?;
    let succeeded = run_ranks(&mut guest, &file)?;
    let after = counters(&mut guest)?;

    println!();
    let crossed = show_counters(&before, &after);
    if !crossed {
        note("error: the counters do not show packets in both directions");
    }
    Ok(if succeeded && crossed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs both ranks to their ends, their lines marked with the rank and the host.
fn run_ranks(guest: &mut Guest, file: &str) -> Result<bool> {
    let mut ranks = Vec::new();
    for (rank, host) in HOSTS.into_iter().enumerate() {
        let mut job = on_host(host, job(vec![file.to_owned()]));
        as_rank(rank, FIRST_ADDRESS, &mut job);
        let prefix = format!("[rank {rank} on host {host}]");
        ranks.push(Rank { job: guest.start(job)?, prefix, lines: Lines::default(), exit: None });
    }

    let mut deadline = Instant::now() + LIMIT;
    while ranks.iter().any(|rank| rank.exit.is_none()) {
        match guest.next_event()? {
            Event::Output { job, bytes, .. } => {
                if let Some(rank) = ranks.iter_mut().find(|rank| rank.job == job) {
                    let prefix = &rank.prefix;
                    rank.lines.push(&bytes, |line| println!("{prefix} {line}"));
                }
            }
            Event::Exit { job, exit } => {
                if let Some(rank) = ranks.iter_mut().find(|rank| rank.job == job) {
                    if exit != Exit::Code(0) {
                        note(&format!("{} {}", rank.prefix, describe(&exit)));
                        deadline = deadline.min(Instant::now() + GRACE);
                    }
                    rank.exit = Some(exit);
                }
            }
            Event::Idle => {}
        }
        if Instant::now() > deadline {
            for rank in ranks.iter().filter(|rank| rank.exit.is_none()) {
                note(&format!("{} did not end and is stopped", rank.prefix));
                guest.send(&Message::Kill(rank.job))?;
            }
            return Ok(false);
        }
    }
    Ok(ranks.iter().all(|rank| rank.exit == Some(Exit::Code(0))))
}

struct Rank {
    job: u32,
    prefix: String,
    lines: Lines,
    exit: Option<Exit>,
}

/// Every counter of the two hosts' devices, as (device, counter, value).
type Counters = Vec<(String, String, u64)>;

fn counters(guest: &mut Guest) -> Result<Counters> {
    let command = ["rdma", "statistic", "show", "link"].map(String::from).to_vec();
    Ok(parse_counters(&guest.query(job(command))?))
}

/// Reads `link DEVICE/PORT`, then lines of ` NAME VALUE`.
fn parse_counters(text: &str) -> Counters {
    let mut device = String::new();
    let mut counters = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace().peekable();
        if words.peek() == Some(&"link") {
            words.next();
            device = words.next().and_then(|link| link.split('/').next()).unwrap_or("").to_owned();
        }
        while let (Some(name), Some(value)) = (words.next(), words.next()) {
            if let Ok(value) = value.parse() {
                counters.push((device.clone(), name.to_owned(), value));
            }
        }
    }
    counters
}

/// Prints the counters that moved; tells whether both hosts sent and received RoCEv2 packets.
fn show_counters(before: &Counters, after: &Counters) -> bool {
    println!("{:<8} {:<24} {:>10} {:>10}", "device", "counter", "before", "after");
    let mut crossed = 0;
    for (device, counter, now) in after {
        let same = |entry: &&(String, String, u64)| entry.0 == *device && entry.1 == *counter;
        let then = before.iter().find(same).map_or(0, |entry| entry.2);
        if *now == then {
            continue;
        }
        println!("{device:<8} {counter:<24} {then:>10} {now:>10}");
        let of_a_host = HOSTS.iter().any(|host| *device == format!("rxe_{host}"));
        if of_a_host && ["sent_pkts", "rcvd_pkts"].contains(&counter.as_str()) {
            crossed += 1;
        }
    }
    crossed == 2 * HOSTS.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_by_device() {
        let text = "link rxe_a/1 \n    sent_pkts 5 \n    rcvd_pkts 6 \nlink rxe_b/1 sent_pkts 7\n";
        let counters = parse_counters(text);
        assert_eq!(counters.len(), 3);
        assert_eq!(counters[1], ("rxe_a".into(), "rcvd_pkts".into(), 6));
        assert_eq!(counters[2], ("rxe_b".into(), "sent_pkts".into(), 7));
    }

    #[test]
    fn packets_must_have_moved_on_both_hosts() {
        let at = |value| -> Counters {
            let names = ["sent_pkts", "rcvd_pkts"];
            ["rxe_a", "rxe_b"]
                .into_iter()
                .flat_map(|d| names.map(|n| (d.to_owned(), n.to_owned(), value)))
                .collect()
        };
        assert!(show_counters(&at(0), &at(3)));
        assert!(!show_counters(&at(3), &at(3)));
        assert!(!show_counters(&at(0), &at(3)[..3].to_vec()));
    }
}
