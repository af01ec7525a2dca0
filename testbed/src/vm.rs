//! A running guest: started, spoken to, ended.

mod start;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use self::start::{KvmMemory, Starting};

use crate::cache::Cache;
use crate::channel::{Exit, Job, Message};
use crate::efa::Model;
use crate::error::{During, Error, Result};
use crate::machine::{Accelerator, Machine, Place, RunFolder};
use crate::prepare::Prepared;
use crate::process::{read_lossy, tail};
use crate::progress::{Step, note};

/// Says which accelerator to use, `kvm` or `tcg`, instead of trying.
const ACCELERATOR_VARIABLE: &str = "RDMA4RS_ACCELERATOR";

/// Between two looks at QEMU and at the console.
const TICK: Duration = Duration::from_millis(100);

/// Lines of the console that an error shows.
const LOG_LINES: usize = 60;

/// How long a program may take in the guest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// From its start to its end.
    pub(crate) total: Duration,
    /// Without a byte of output.
    pub(crate) silence: Duration,
}

/// What comes out of the guest.
#[derive(Debug)]
pub(crate) enum Event {
    /// A program wrote; `is_error` tells the stream.
    Output { job: u32, is_error: bool, bytes: Vec<u8> },
    /// A program ended.
    Exit { job: u32, exit: Exit },
    /// Nothing happened for a moment, and the guest is well.
    Idle,
}

/// How [`Guest::run`] ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Finished {
    /// By itself.
    Ended(Exit),
    /// By us, for the reason in the text.
    Stopped(String),
}

/// A booted guest. Dropping it ends QEMU at once; everything the guest could write to is memory.
#[derive(Debug)]
pub(crate) struct Guest {
    qemu: Child,
    writer: UnixStream,
    messages: Receiver<io::Result<Message>>,
    run: RunFolder,
    /// What answers for the EFA devices of this guest and of those that were booted with it.
    efa: Option<Model>,
    next_job: u32,
}

impl Guest {
    /// Boots a machine and waits until it is set up: under KVM where that works, else emulated.
    pub(crate) fn boot(machine: &Machine, prepared: &Prepared, cache: &Cache) -> Result<Self> {
        let mut guests = Self::boot_all(std::slice::from_ref(machine), prepared, cache)?;
        guests.pop().ok_or_else(|| Error::Channel("no guest came of a machine".into()))
    }

    /// The same for machines side by side, whose EFA devices are on one network. Two that have a place get a
    /// cable between them.
    pub(crate) fn boot_all(
        machines: &[Machine],
        prepared: &Prepared,
        cache: &Cache,
    ) -> Result<Vec<Self>> {
        if machines.iter().any(|machine| machine.counts_instructions) {
            let step = Step::start("booting the guest (emulated, its clock counts instructions)");
            let guests = Self::boot_with(machines, prepared, Accelerator::CountingTcg)?;
            step.done();
            return Ok(guests);
        }
        let wanted = std::env::var(ACCELERATOR_VARIABLE).unwrap_or_default();
        let kvm = KvmMemory::of(cache);
        let what = if machines.len() > 1 { "guests" } else { "guest" };
        if wanted == "kvm" || (wanted != "tcg" && kvm.may_work()) {
            let step = Step::start(format!("booting the {what} under KVM"));
            match Self::boot_with(machines, prepared, Accelerator::Kvm) {
                Ok(guests) => {
                    step.done();
                    return Ok(guests);
                }
                Err(Error::Boot { what, .. }) if wanted != "kvm" => {
                    drop(step);
                    kvm.remember_failure()?;
                    note(&format!("KVM does not work here ({what}), emulating instead"));
                }
                Err(error) => return Err(error),
            }
        }
        let step = Step::start(format!("booting the {what} (emulated)"));
        let guests = Self::boot_with(machines, prepared, Accelerator::Tcg)?;
        step.done();
        Ok(guests)
    }

    fn boot_with(
        machines: &[Machine],
        prepared: &Prepared,
        accelerator: Accelerator,
    ) -> Result<Vec<Self>> {
        let runs = machines.iter().map(|_| RunFolder::create()).collect::<Result<Vec<_>>>()?;
        let mut efa =
            match (machines.first().and_then(|first| first.efa.as_ref()), runs.split_first()) {
                (Some(efa), Some((first, others))) => Some(efa.start(first, others)?),
                _ => None,
            };
        let (one, other) = UnixDatagram::pair().during(|| "make a cable".into())?;
        let mut ends = [one, other].map(Some);
        let mut starting = Vec::new();
        for (machine, run) in machines.iter().zip(runs) {
            let end = match machine.place {
                None => None,
                Some(Place::First) => ends[0].take(),
                Some(Place::Second) => ends[1].take(),
            };
            let cable = end.map_or_else(Stdio::null, |end| OwnedFd::from(end).into());
            starting.push(Starting::begin(machine, accelerator, prepared, run, cable)?);
        }
        let mut guests = Vec::new();
        for machine in starting {
            let (qemu, run, writer, messages) = machine.finish(accelerator, efa.as_mut())?;
            guests.push(Self { qemu, writer, messages, run, efa: None, next_job: 1 });
        }
        if let Some(first) = guests.first_mut() {
            first.efa = efa;
        }
        Ok(guests)
    }

    /// Starts a program; its output and its end come as [`Event`]s under the number returned.
    pub(crate) fn start(&mut self, job: Job) -> Result<u32> {
        let number = self.next_job;
        self.next_job += 1;
        self.send(&Message::Run(number, job))?;
        Ok(number)
    }

    /// Sends a message to the agent.
    pub(crate) fn send(&mut self, message: &Message) -> Result<()> {
        match message.write_to(&mut self.writer) {
            Ok(()) => Ok(()),
            Err(_) => Err(self.failure("the guest is gone")),
        }
    }

    /// A second handle to send with, from another thread.
    pub(crate) fn sender(&self) -> Result<UnixStream> {
        self.writer.try_clone().during(|| "share a socket".into())
    }

    /// Waits a moment for the next event.
    ///
    /// # Errors
    /// [`Error::Guest`] when QEMU ended or the kernel is broken.
    pub(crate) fn next_event(&mut self) -> Result<Event> {
        match self.messages.recv_timeout(TICK) {
            Ok(Ok(Message::Output(job, bytes))) => {
                Ok(Event::Output { job, is_error: false, bytes })
            }
            Ok(Ok(Message::ErrorOutput(job, bytes))) => {
                Ok(Event::Output { job, is_error: true, bytes })
            }
            Ok(Ok(Message::Exit(job, exit))) => Ok(Event::Exit { job, exit }),
            Ok(Ok(other)) => Err(Error::Channel(format!("{other:?} from the guest"))),
            Ok(Err(source)) => Err(Error::Io { what: "read the channel".into(), source }),
            Err(RecvTimeoutError::Timeout) => {
                if let Some(model) = &mut self.efa {
                    model.check()?;
                }
                let console = read_lossy(&self.run.path().join("console.log"));
                match sign_of_death(&console) {
                    Some(line) => Err(self.failure(&format!("the guest's kernel broke: {line}"))),
                    None => Ok(Event::Idle),
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                // QEMU writes the last of the console and ends.
                sleep(TICK);
                Err(self.failure("the guest went away"))
            }
        }
    }

    /// Runs one program to its end, or to its limits, passing its output to `sink`.
    pub(crate) fn run(
        &mut self,
        job: Job,
        limits: Limits,
        mut sink: impl FnMut(bool, &[u8]),
    ) -> Result<Finished> {
        let number = self.start(job)?;
        let started = Instant::now();
        let mut heard = started;
        loop {
            match self.next_event()? {
                Event::Output { job, is_error, bytes } if job == number => {
                    heard = Instant::now();
                    sink(is_error, &bytes);
                }
                Event::Exit { job, exit } if job == number => return Ok(Finished::Ended(exit)),
                Event::Output { .. } | Event::Exit { .. } | Event::Idle => {}
            }
            let why = if started.elapsed() > limits.total {
                format!("was stopped after {} s", limits.total.as_secs())
            } else if heard.elapsed() > limits.silence {
                format!("was stopped: no output for {} s", limits.silence.as_secs())
            } else {
                continue;
            };
            self.kill(number)?;
            return Ok(Finished::Stopped(why));
        }
    }

    /// Ends a program and waits for its end.
    fn kill(&mut self, number: u32) -> Result<()> {
        self.send(&Message::Kill(number))?;
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            if let Event::Exit { job, .. } = self.next_event()?
                && job == number
            {
                return Ok(());
            }
        }
        Err(self.failure("a program in the guest could not be ended"))
    }

    /// Runs a short command whose output is wanted; anything but success is an error.
    pub(crate) fn query(&mut self, job: Job) -> Result<String> {
        let limit = Duration::from_secs(60);
        let shown = job.command.join(" ");
        let mut output = Vec::new();
        let finished = self.run(job, Limits { total: limit, silence: limit }, |_, bytes| {
            output.extend_from_slice(bytes);
        })?;
        let text = String::from_utf8_lossy(&output).into_owned();
        match finished {
            Finished::Ended(Exit::Code(0)) => Ok(text),
            other => Err(self.failure(&format!("`{shown}` in the guest: {other:?}: {text}"))),
        }
    }

    fn failure(&self, what: &str) -> Error {
        Error::Guest { what: what.to_owned(), log: end_of_logs(&self.run) }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        end(&mut self.qemu);
    }
}

fn end(qemu: &mut Child) {
    // It may have ended already; then there is nothing to kill and the wait returns at once.
    drop(qemu.kill());
    if let Err(error) = qemu.wait() {
        note(&format!("cannot wait for QEMU: {error}"));
    }
}

/// The ends of QEMU's log and of the guest's console.
fn end_of_logs(run: &RunFolder) -> String {
    let qemu = read_lossy(&run.path().join("qemu.log"));
    let console = read_lossy(&run.path().join("console.log")).replace('\r', "");
    [tail(&qemu, LOG_LINES), tail(&console, LOG_LINES)]
        .into_iter()
        .filter(|text| !text.trim().is_empty())
        .collect::<Vec<_>>()
        .join("\n")
}

/// The first line of a console that says the kernel can not be trusted any more.
fn sign_of_death(console: &str) -> Option<&str> {
    const SIGNS: [&str; 5] = [
        "Kernel panic - not syncing",
        "Oops: ",
        "kernel BUG at ",
        "BUG: unable to handle",
        "BUG: kernel NULL pointer",
    ];
    console.lines().find(|line| SIGNS.iter().any(|sign| line.contains(sign))).map(str::trim_end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_kernel_is_noticed_and_a_crashed_program_is_not() {
        let oops = "[ 9.1] rdma_rxe: loaded\n[ 9.2] Oops: general protection fault, 0000 [#1]\r\n";
        assert_eq!(sign_of_death(oops), Some("[ 9.2] Oops: general protection fault, 0000 [#1]"));
        let program = "[ 9.1] traps: a.out[77] general protection fault ip:401136 sp:7ffe error:0";
        assert_eq!(sign_of_death(program), None);
        assert_eq!(sign_of_death(""), None);
    }
}
