//! The device model beside a guest: a process that ends with it.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::error::{During, Error, Result};
use crate::machine::RunFolder;
use crate::process::{read_lossy, tail};
use crate::progress::note;

use super::{Efa, socket_name};

/// Where the guest finds the driver, which lies in the run folder.
pub(super) const MODULE_IN_GUEST: &str = "/run/testbed/efa.ko";
const MODULE_FILE: &str = "efa.ko";
const LOG_FILE: &str = "efa.log";

/// How long the model may take to listen.
const START: Duration = Duration::from_secs(20);
const LOG_LINES: usize = 20;

/// A running device model. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Model {
    process: Child,
    log: PathBuf,
}

impl Efa {
    /// Starts the model of the devices of some machines, whose sockets are in the machines' run folders, and
    /// puts the driver there too. All devices are on one network.
    pub(crate) fn start(&self, first: &RunFolder, others: &[RunFolder]) -> Result<Model> {
        let mut sockets: Vec<PathBuf> = Vec::new();
        for run in std::iter::once(first).chain(others) {
            let module = run.path().join(MODULE_FILE);
            fs::copy(self.module.join(MODULE_FILE), &module)
                .during(|| format!("copy to {}", module.display()))?;
            sockets.extend((0..self.devices).map(|device| run.path().join(socket_name(device))));
        }
        let log = first.path().join(LOG_FILE);
        let output = File::create(&log).during(|| format!("create {}", log.display()))?;
        // It dies with this process.
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(&self.model)
            .arg("-v")
            .args(&self.model_options)
            .args(&sockets)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()
            .during(|| "start the EFA device model".into())?;
        let mut model = Model { process, log };
        let started = Instant::now();
        while !sockets.iter().all(|socket| socket.exists()) {
            model.check()?;
            if started.elapsed() > START {
                return Err(model.failure("the EFA device model does not listen"));
            }
            sleep(Duration::from_millis(10));
        }
        Ok(model)
    }
}

impl Model {
    /// Fails if the model has ended; the guest would wait long for each of its devices.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.process.try_wait().during(|| "wait for the EFA device model".into())? {
            Some(status) => Err(self.failure(&format!("the EFA device model ended with {status}"))),
            None => Ok(()),
        }
    }

    fn failure(&self, what: &str) -> Error {
        let log = tail(&read_lossy(&self.log), LOG_LINES);
        Error::Guest { what: what.to_owned(), log }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to kill and the wait returns at once.
        drop(self.process.kill());
        if let Err(error) = self.process.wait() {
            note(&format!("cannot wait for the EFA device model: {error}"));
        }
    }
}
