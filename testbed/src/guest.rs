//! The agent: this same program, run inside the guest.
//!
//! It sets the guest up, then runs what the host asks for and passes output and exit codes back. When
//! the host's end of the channel closes it ends, and the guest powers off.

mod job;
mod set_up;

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::channel::{Exit, Message};
use crate::error::{During, Error, Result, chain};
use crate::machine::CHANNEL_NAME;

/// The agent's end of the channel, shared by the threads that write to it.
#[derive(Debug, Clone)]
pub(crate) struct Host(Arc<Mutex<File>>);

impl Host {
    /// Sends one message. A host that is gone is no error: the reader notices and ends the guest.
    pub(crate) fn send(&self, message: &Message) {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = message.write_to(&mut *file) {
            eprintln!("testbed: agent: cannot write to the host: {error}");
        }
    }
}

/// Runs the agent until the host is gone.
pub(crate) fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("testbed: agent: {}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn serve() -> Result<()> {
    let mut reader = open_channel()?;
    let writer = reader.try_clone().during(|| "share the channel".into())?;
    let host = Host(Arc::new(Mutex::new(writer)));
    match set_up::set_up() {
        Ok(()) => host.send(&Message::Ready),
        Err(error) => host.send(&Message::SetUpFailed(chain(&error))),
    }

    let mut jobs: HashMap<u32, job::Running> = HashMap::new();
    while let Some(message) =
        Message::read_from(&mut reader).during(|| "read from the host".into())?
    {
        match message {
            Message::Run(number, what) => match job::start(number, &what, &host) {
                Ok(running) => {
                    jobs.insert(number, running);
                }
                Err(error) => {
                    host.send(&Message::Exit(number, Exit::NotStarted(chain(&error))));
                }
            },
            Message::Input(number, bytes) => {
                if let Some(running) = jobs.get(&number) {
                    running.input(bytes);
                }
            }
            Message::Kill(number) => {
                if let Some(running) = jobs.get(&number) {
                    running.kill();
                }
            }
            Message::Resize(number, rows, columns) => {
                if let Some(running) = jobs.get(&number) {
                    running.resize(rows, columns);
                }
            }
            Message::Ready
            | Message::SetUpFailed(_)
            | Message::Output(..)
            | Message::ErrorOutput(..)
            | Message::Exit(..) => {
                return Err(Error::Channel("a message of the guest to the guest".into()));
            }
        }
    }
    Ok(())
}

/// Opens the serial port that carries our name, which appears a moment after the driver starts.
fn open_channel() -> Result<File> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(path) = find_port() {
            return OpenOptions::new()
                .read(true)
                .write(true)
                .open(&path)
                .during(|| format!("open {path}"));
        }
        if Instant::now() > deadline {
            let source = io::Error::from(io::ErrorKind::NotFound);
            return Err(Error::Io { what: format!("find the port {CHANNEL_NAME}"), source });
        }
        sleep(Duration::from_millis(20));
    }
}

fn find_port() -> Option<String> {
    fs::read_dir("/sys/class/virtio-ports").ok()?.filter_map(io::Result::ok).find_map(|entry| {
        let name = fs::read_to_string(entry.path().join("name")).ok()?;
        (name.trim() == CHANNEL_NAME).then(|| format!("/dev/{}", entry.file_name().display()))
    })
}
