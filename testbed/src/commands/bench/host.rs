//! The guest that programs are measured in: one processor, and a clock that counts instructions.

use std::time::Duration;

use super::Settings;
use crate::channel::Exit;
use crate::commands::{boot_counting, job, set};
use crate::efa;
use crate::error::{Error, Result};
use crate::process::tail;
use crate::vm::{Finished, Guest, Limits};

/// Tells a program of the device in the initial namespace.
pub(super) const ON_RXE0: &str = "RDMA_DEVICE=rxe0 RDMA_GID_INDEX=1";

/// What one program may take, in time of the machine outside.
const LIMITS: Limits =
    Limits { total: Duration::from_secs(300), silence: Duration::from_secs(300) };

/// Lines of a failed program that its error shows.
const LINES: usize = 20;

/// A guest to measure in.
#[derive(Debug)]
pub(super) struct Host {
    guest: Guest,
    python: String,
}

impl Host {
    pub(super) fn boot(settings: &Settings<'_>, devices: &efa::Options) -> Result<Self> {
        let guest = boot_counting(settings.cache, settings.workspace, devices)?;
        let python = settings.workspace.target.join("bench/python");
        Ok(Self { guest, python: python.display().to_string() })
    }

    /// Runs a script of the shell and hands back what it writes.
    pub(super) fn run(&mut self, script: &str) -> Result<String> {
        let mut job = job(["sh", "-ec", script].map(String::from).to_vec());
        // Programs are told their devices, or all find the only ones of their kind.
        job.environment.retain(|(name, _)| name != "RDMA_DEVICE");
        set(&mut job, "PYTHONPATH", &self.python);
        set(&mut job, "PYTHONDONTWRITEBYTECODE", "1");
        let (mut output, mut all) = (Vec::new(), Vec::new());
        let finished = self.guest.run(job, LIMITS, |is_error, bytes| {
            all.extend_from_slice(bytes);
            if !is_error {
                output.extend_from_slice(bytes);
            }
        })?;
        if finished == Finished::Ended(Exit::Code(0)) {
            return Ok(String::from_utf8_lossy(&output).into_owned());
        }
        let found = format!("{finished:?}: {}", tail(&String::from_utf8_lossy(&all), LINES));
        Err(Error::Format { what: format!("`{script}` in the guest"), found })
    }

    /// Runs a server on host `a` and then its client on host `b`, and hands back what the client writes.
    pub(super) fn run_pair(&mut self, server: &str, client: &str) -> Result<String> {
        self.run_here(&format!("ip netns exec a {server}"), &format!("ip netns exec b {client}"))
    }

    /// Runs a server and then its client, and hands back what the client writes.
    pub(super) fn run_here(&mut self, server: &str, client: &str) -> Result<String> {
        self.run(&format!(
            "{server} > /tmp/server.log 2>&1 & server=$!\n\
             sleep 0.5\n\
             {client} || {{ kill $server; cat /tmp/server.log >&2; exit 1; }}\n\
             wait $server"
        ))
    }

    /// The versions of what the guest is made of.
    pub(super) fn versions(&mut self) -> Result<Vec<(String, String)>> {
        let kernel = self.run("uname -r")?;
        let perftest = self.run("ib_write_bw --version || true")?;
        let version = |name: &str, text: &str| (name.to_owned(), text.trim().to_owned());
        Ok(vec![version("kernel", &kernel), version("perftest", &perftest)])
    }
}
