//! A machine between its start and its first word.

use std::fs;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use super::{TICK, end, end_of_logs, sign_of_death};
use crate::cache::Cache;
use crate::channel::Message;
use crate::efa::Model;
use crate::error::{During, Error, Result};
use crate::machine::{Accelerator, Machine, RunFolder};
use crate::prepare::Prepared;
use crate::process::read_lossy;

/// A kernel under KVM prints its first line in a fraction of this, or never.
const KVM_FIRST_LINE: Duration = Duration::from_secs(3);
const KVM_BOOT: Duration = Duration::from_secs(60);
/// An emulated boot takes ten seconds; on a machine that is busy with other things, minutes.
const TCG_BOOT: Duration = Duration::from_secs(400);

/// A machine that was started; it is ended if it does not come up.
#[derive(Debug)]
pub(super) struct Starting {
    qemu: Option<Child>,
    run: Option<RunFolder>,
    listener: UnixListener,
    started: Instant,
}

/// What a machine that has started is made of.
pub(super) type Started = (Child, RunFolder, UnixStream, Receiver<io::Result<Message>>);

impl Starting {
    /// Starts QEMU.
    pub(super) fn begin(
        machine: &Machine,
        accelerator: Accelerator,
        prepared: &Prepared,
        run: RunFolder,
        cable: Stdio,
    ) -> Result<Self> {
        let socket = run.path().join("channel.sock");
        let listener =
            UnixListener::bind(&socket).during(|| format!("listen on {}", socket.display()))?;
        listener.set_nonblocking(true).during(|| "set up a socket".into())?;
        let qemu = machine.start(accelerator, prepared, &run, cable)?;
        Ok(Self { qemu: Some(qemu), run: Some(run), listener, started: Instant::now() })
    }

    /// Waits until the guest says that it is set up.
    pub(super) fn finish(
        mut self,
        accelerator: Accelerator,
        mut efa: Option<&mut Model>,
    ) -> Result<Started> {
        let stream = loop {
            match self.listener.accept() {
                Ok((stream, _)) => break stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.check()?;
                    if self.started.elapsed() > KVM_BOOT {
                        return Err(self.failure("QEMU did not start"));
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
            Accelerator::Tcg | Accelerator::CountingTcg => TCG_BOOT,
        };
        loop {
            match messages.recv_timeout(TICK) {
                Ok(Ok(Message::Ready)) => break,
                Ok(Ok(Message::SetUpFailed(why))) => {
                    let log = self.run.as_ref().map(end_of_logs).unwrap_or_default();
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
                    return Err(self.failure("the guest went away while it booted"));
                }
            }
            self.check()?;
            if let Some(model) = &mut efa {
                model.check()?;
            }
            let waited = self.started.elapsed();
            let silent = || !self.console().contains("Linux version");
            if accelerator == Accelerator::Kvm && waited > KVM_FIRST_LINE && silent() {
                return Err(self.failure("no sign of life from the kernel"));
            }
            if waited > limit {
                let what = format!("the guest did not come up in {} s", limit.as_secs());
                return Err(self.failure(&what));
            }
        }
        match (self.qemu.take(), self.run.take()) {
            (Some(qemu), Some(run)) => Ok((qemu, run, stream, messages)),
            _ => Err(Error::Channel("a start that was over before it began".into())),
        }
    }

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
pub(super) struct KvmMemory {
    file: PathBuf,
    boot: String,
}

impl KvmMemory {
    pub(super) fn of(cache: &Cache) -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self { file: cache.folder().join("kvm-does-not-work"), boot }
    }

    pub(super) fn may_work(&self) -> bool {
        fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok()
            && fs::read_to_string(&self.file).unwrap_or_default() != self.boot
    }

    pub(super) fn remember_failure(&self) -> Result<()> {
        fs::write(&self.file, &self.boot).during(|| format!("write {}", self.file.display()))
    }
}
