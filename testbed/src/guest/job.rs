//! One program of the guest: started, fed, watched to its end.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::Host;
use crate::channel::{CHUNK, Exit, Job, Message};
use crate::error::{During, Error, Result};

/// How long output may trail behind the end of its program, when something that the program left
/// behind still holds the pipe.
const TRAILING_OUTPUT: Duration = Duration::from_secs(2);

/// A started program. It reports its own end to the host.
#[derive(Debug)]
pub(super) struct Running {
    group: Option<Pid>,
    input: Sender<Vec<u8>>,
    terminal: Option<File>,
}

impl Running {
    /// Feeds its standard input; nothing means the end of it. Never waits for the program.
    pub(super) fn input(&self, bytes: Vec<u8>) {
        // A program that is gone reads no more.
        drop(self.input.send(bytes));
    }

    /// Ends it and everything in its process group.
    pub(super) fn kill(&self) {
        if let Some(group) = self.group
            && let Err(error) = kill_process_group(group, Signal::KILL)
        {
            eprintln!("testbed: agent: cannot end process group {group:?}: {error}");
        }
    }

    /// Tells its terminal a new size.
    pub(super) fn resize(&self, rows: u16, columns: u16) {
        if let Some(terminal) = &self.terminal
            && let Err(error) = tcsetwinsize(terminal, window(rows, columns))
        {
            eprintln!("testbed: agent: cannot resize the terminal: {error}");
        }
    }
}

/// Starts a program under a number and returns at once.
pub(super) fn start(number: u32, job: &Job, host: &Host) -> Result<Running> {
    let (Some(program), arguments) = (job.command.first(), job.command.get(1..).unwrap_or(&[]))
    else {
        return Err(Error::Channel("a job without a command".into()));
    };
    match job.terminal {
        Some((rows, columns)) => {
            let (master, slave) = open_terminal(rows, columns)?;
            // setsid takes its standard input as the controlling terminal and becomes the program.
            let mut command = Command::new("setsid");
            command.arg("--ctty").arg(program).args(arguments);
            command.stdin(share(&slave)?).stdout(share(&slave)?).stderr(slave);
            let child = spawn(&mut command, job, program)?;
            let group = pid_of(&child);
            let reader = share(&master)?;
            let input = feed(share(&master)?);
            watch(number, child, vec![(Box::new(reader), false)], host);
            Ok(Running { group, input, terminal: Some(master) })
        }
        None => {
            let mut command = Command::new(program);
            command.args(arguments).process_group(0);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = spawn(&mut command, job, program)?;
            let mut readers: Vec<(Box<dyn Read + Send>, bool)> = Vec::new();
            if let Some(output) = child.stdout.take() {
                readers.push((Box::new(output), false));
            }
            if let Some(errors) = child.stderr.take() {
                readers.push((Box::new(errors), true));
            }
            let input = match child.stdin.take() {
                Some(stdin) => feed(stdin),
                None => channel().0,
            };
            let group = pid_of(&child);
            watch(number, child, readers, host);
            Ok(Running { group, input, terminal: None })
        }
    }
}

fn spawn(command: &mut Command, job: &Job, program: &str) -> Result<Child> {
    let directory = Path::new(&job.directory);
    command.current_dir(if directory.is_dir() { directory } else { Path::new("/") });
    command.env_clear().envs(job.environment.iter().map(|(name, value)| (name, value)));
    command.spawn().during(|| format!("start {program}"))
}

fn pid_of(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()).ok()?)
}

fn window(rows: u16, columns: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

fn open_terminal(rows: u16, columns: u16) -> Result<(File, File)> {
    let open = || -> rustix::io::Result<_> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        tcsetwinsize(&master, window(rows, columns))?;
        let name = ptsname(&master, Vec::new())?;
        Ok((File::from(master), name.to_string_lossy().into_owned()))
    };
    let (master, name) = open().during(|| "open a terminal".into())?;
    let slave =
        OpenOptions::new().read(true).write(true).open(&name).during(|| format!("open {name}"))?;
    Ok((master, slave))
}

fn share(file: &File) -> Result<File> {
    file.try_clone().during(|| "share a terminal".into())
}

/// Writes what is sent to the program, in a thread of its own: the program may read late or never.
fn feed(mut sink: impl Write + Send + 'static) -> Sender<Vec<u8>> {
    let (sender, receiver): (_, Receiver<Vec<u8>>) = channel();
    thread::spawn(move || {
        while let Ok(bytes) = receiver.recv() {
            if bytes.is_empty() || sink.write_all(&bytes).is_err() {
                break;
            }
        }
    });
    sender
}

/// Passes output on as it comes and reports the end, in threads of their own.
fn watch(number: u32, mut child: Child, readers: Vec<(Box<dyn Read + Send>, bool)>, host: &Host) {
    let host = host.clone();
    thread::spawn(move || {
        let (finished, all_finished) = channel();
        let count = readers.len();
        for (reader, is_error) in readers {
            let (host, finished) = (host.clone(), finished.clone());
            thread::spawn(move || {
                pass_on(reader, |bytes| {
                    host.send(&if is_error {
                        Message::ErrorOutput(number, bytes)
                    } else {
                        Message::Output(number, bytes)
                    });
                });
                // The watcher may have given up waiting.
                finished.send(()).unwrap_or_default();
            });
        }
        let exit = match child.wait() {
            Ok(status) => status.into(),
            Err(error) => Exit::NotStarted(format!("cannot be waited for: {error}")),
        };
        for _ in 0..count {
            if all_finished.recv_timeout(TRAILING_OUTPUT).is_err() {
                break;
            }
        }
        host.send(&Message::Exit(number, exit));
    });
}

/// Reads to the end; a terminal whose other side is closed ends with an error, which is its end too.
fn pass_on(mut reader: impl Read, mut send: impl FnMut(Vec<u8>)) {
    let mut buffer = vec![0; CHUNK];
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => send(buffer.get(..count).unwrap_or_default().to_vec()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
}
