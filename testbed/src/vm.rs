//! A running guest: started, spoken to, ended.

use std::fs;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::cache::Cache;
use crate::channel::{Exit, Job, Message};
use crate::efa::{Efa, Model};
use crate::error::{During, Error, Result};
use crate::machine::{Accelerator, Machine, RunFolder};
use crate::prepare::Prepared;
use crate::process::{read_lossy, tail};
use crate::progress::{Step, note};

/// Says which accelerator to use, `kvm` or `tcg`, instead of trying.
const ACCELERATOR_VARIABLE: &str = "RDMA4RS_ACCELERATOR";

/// A kernel under KVM prints its first line in a fraction of this, or never.
const KVM_FIRST_LINE: Duration = Duration::from_secs(3);
const KVM_BOOT: Duration = Duration::from_secs(60);
/// An emulated boot takes ten seconds; on a machine that is busy with other things, minutes.
const TCG_BOOT: Duration = Duration::from_secs(400);

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
    /// What answers for the guest's EFA devices.
    efa: Option<Model>,
    next_job: u32,
}

impl Guest {
    /// Boots a machine and waits until it is set up: under KVM where that works, else emulated.
    pub(crate) fn boot(machine: &Machine, prepared: &Prepared, cache: &Cache) -> Result<Self> {
        let wanted = std::env::var(ACCELERATOR_VARIABLE).unwrap_or_default();
        let kvm = KvmMemory::of(cache);
        if wanted == "kvm" || (wanted != "tcg" && kvm.may_work()) {
            let step = Step::start("booting the guest under KVM");
            match Self::boot_with(machine, prepared, Accelerator::Kvm) {
                Ok(guest) => {
                    step.done();
                    return Ok(guest);
                }
                Err(Error::Boot { what, .. }) if wanted != "kvm" => {
                    drop(step);
                    kvm.remember_failure()?;
                    note(&format!("KVM does not work here ({what}), emulating instead"));
                }
                Err(error) => return Err(error),
            }
        }
        let step = Step::start("booting the guest (emulated)");
        let guest = Self::boot_with(machine, prepared, Accelerator::Tcg)?;
        step.done();
        Ok(guest)
    }

    fn boot_with(machine: &Machine, prepared: &Prepared, accelerator: Accelerator) -> Result<Self> {
        let run = RunFolder::create()?;
        let socket = run.path().join("channel.sock");
        let listener =
            UnixListener::bind(&socket).during(|| format!("listen on {}", socket.display()))?;
        listener.set_nonblocking(true).during(|| "set up a socket".into())?;
        let mut efa = machine.efa.as_ref().map(|efa: &Efa| efa.start(&run)).transpose()?;
        let qemu = machine.start(accelerator, prepared, &run)?;
        let mut starting = Starting { qemu: Some(qemu), run: Some(run) };
        let started = Instant::now();

        let stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    starting.check()?;
                    if started.elapsed() > KVM_BOOT {
                        return Err(starting.failure("QEMU did not start"));
                    }
                    sleep(TICK / 4);
                }
                Err(source) => {
                    return Err(Error::Io { what: "accept QEMU's connection".into(), source });
                }
            }
        };
        stream.set_nonblocking(false).during(|| "set up a socket".into())?;
        let reader = stream.try_clone().during(|| "share a socket".into())?;
        let messages = read_in_background(reader);

        let limit = match accelerator {
            Accelerator::Kvm => KVM_BOOT,
            Accelerator::Tcg => TCG_BOOT,
        };
        loop {
            match messages.recv_timeout(TICK) {
                Ok(Ok(Message::Ready)) => break,
                Ok(Ok(Message::SetUpFailed(why))) => {
                    let log = starting.run.as_ref().map(end_of_logs).unwrap_or_default();
                    let what = format!("the guest's set-up failed: {why}");
                    return Err(Error::Guest { what, log });
                }
                Ok(Ok(other)) => return Err(Error::Channel(format!("{other:?} before its start"))),
                Ok(Err(source)) => {
                    return Err(Error::Io { what: "read the channel".into(), source });
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    sleep(TICK);
                    return Err(starting.failure("the guest went away while it booted"));
                }
            }
            starting.check()?;
            if let Some(model) = &mut efa {
                model.check()?;
            }
            let waited = started.elapsed();
            let silent = || !starting.console().contains("Linux version");
            if accelerator == Accelerator::Kvm && waited > KVM_FIRST_LINE && silent() {
                return Err(starting.failure("no sign of life from the kernel"));
            }
            if waited > limit {
                let what = format!("the guest did not come up in {} s", limit.as_secs());
                return Err(starting.failure(&what));
            }
        }
        match (starting.qemu.take(), starting.run.take()) {
            (Some(qemu), Some(run)) => {
                Ok(Self { qemu, writer: stream, messages, run, efa, next_job: 1 })
            }
            _ => Err(Error::Channel("a start that was over before it began".into())),
        }
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

/// A machine between its start and its first word; it is ended if that never comes.
#[derive(Debug)]
struct Starting {
    qemu: Option<Child>,
    run: Option<RunFolder>,
}

impl Starting {
    /// Fails if QEMU ended or the kernel broke.
    fn check(&mut self) -> Result<()> {
        if let Some(qemu) = &mut self.qemu
            && let Some(status) = qemu.try_wait().during(|| "wait for QEMU".into())?
        {
            return Err(self.failure(&format!("QEMU ended with {status}")));
        }
        match sign_of_death(&self.console()) {
            Some(line) => Err(self.failure(&format!("the guest's kernel broke: {line}"))),
            None => Ok(()),
        }
    }

    fn console(&self) -> String {
        self.run.as_ref().map(|run| read_lossy(&run.path().join("console.log"))).unwrap_or_default()
    }

    fn failure(&self, what: &str) -> Error {
        let log = self.run.as_ref().map(end_of_logs).unwrap_or_default();
        Error::Boot { what: what.to_owned(), log }
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(qemu) = &mut self.qemu {
            end(qemu);
        }
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

fn read_in_background(mut reader: UnixStream) -> Receiver<io::Result<Message>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        while let Some(message) = Message::read_from(&mut reader).transpose() {
            let failed = message.is_err();
            if sender.send(message).is_err() || failed {
                break;
            }
        }
    });
    receiver
}

/// Remembers, until the host boots again, that KVM did not work.
#[derive(Debug)]
struct KvmMemory {
    file: PathBuf,
    boot: String,
}

impl KvmMemory {
    fn of(cache: &Cache) -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self { file: cache.folder().join("kvm-does-not-work"), boot }
    }

    fn may_work(&self) -> bool {
        fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok()
            && fs::read_to_string(&self.file).unwrap_or_default() != self.boot
    }

    fn remember_failure(&self) -> Result<()> {
        fs::write(&self.file, &self.boot).during(|| format!("write {}", self.file.display()))
    }
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
