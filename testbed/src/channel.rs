//! What host and guest say to each other over one serial channel: frames of bytes.
//!
//! A frame is a kind (one byte), a job's number (`u32`), a length (`u32`), both little-endian, and as
//! many bytes. Several jobs may run at once; each ends with exactly one [`Message::Exit`].

use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// The longest payload of a frame, in bytes. Longer ones are refused by both ends.
const MAXIMUM_PAYLOAD: u32 = 1 << 20;

/// How many bytes of output travel in one frame.
pub(crate) const CHUNK: usize = 32 << 10;

/// A program to run in the guest.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Job {
    /// The program and its arguments.
    pub(crate) command: Vec<String>,
    /// The whole environment.
    pub(crate) environment: Vec<(String, String)>,
    /// The working directory; the root folder if it does not exist in the guest.
    pub(crate) directory: String,
    /// Rows and columns of the terminal the program gets, if it gets one.
    pub(crate) terminal: Option<(u16, u16)>,
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It ended with this code.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
    /// It could not be started; the text says why.
    NotStarted(String),
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::NotStarted(format!("ended strangely: {status}")),
        }
    }
}

/// One message, in either direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    /// To the guest: start a program under this number.
    Run(u32, Job),
    /// To the guest: bytes for the program's standard input; none means its end.
    Input(u32, Vec<u8>),
    /// To the guest: end the program and everything in its process group.
    Kill(u32),
    /// To the guest: the terminal has a new size.
    Resize(u32, u16, u16),
    /// To the host: the guest is set up.
    Ready,
    /// To the host: the guest could not be set up.
    SetUpFailed(String),
    /// To the host: what the program wrote to standard output.
    Output(u32, Vec<u8>),
    /// To the host: what the program wrote to standard error.
    ErrorOutput(u32, Vec<u8>),
    /// To the host: the program ended; nothing more comes under its number.
    Exit(u32, Exit),
}

const RUN: u8 = 1;
const INPUT: u8 = 2;
const KILL: u8 = 3;
const RESIZE: u8 = 4;
const READY: u8 = 16;
const SET_UP_FAILED: u8 = 17;
const OUTPUT: u8 = 18;
const ERROR_OUTPUT: u8 = 19;
const EXIT_CODE: u8 = 20;
const EXIT_SIGNAL: u8 = 21;
const EXIT_NOT_STARTED: u8 = 22;

impl Message {
    /// Writes the message as one frame.
    pub(crate) fn write_to(&self, writer: &mut impl Write) -> io::Result<()> {
        let (kind, job, payload) = match self {
            Self::Run(job, what) => (RUN, *job, what.to_bytes()),
            Self::Input(job, bytes) => (INPUT, *job, bytes.clone()),
            Self::Kill(job) => (KILL, *job, Vec::new()),
            Self::Resize(job, rows, columns) => {
                (RESIZE, *job, [rows.to_le_bytes(), columns.to_le_bytes()].concat())
            }
            Self::Ready => (READY, 0, Vec::new()),
            Self::SetUpFailed(why) => (SET_UP_FAILED, 0, why.clone().into_bytes()),
            Self::Output(job, bytes) => (OUTPUT, *job, bytes.clone()),
            Self::ErrorOutput(job, bytes) => (ERROR_OUTPUT, *job, bytes.clone()),
            Self::Exit(job, Exit::Code(code)) => (EXIT_CODE, *job, code.to_le_bytes().to_vec()),
            Self::Exit(job, Exit::Signal(signal)) => {
                (EXIT_SIGNAL, *job, signal.to_le_bytes().to_vec())
            }
            Self::Exit(job, Exit::NotStarted(why)) => {
                (EXIT_NOT_STARTED, *job, why.clone().into_bytes())
            }
        };
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        if length > MAXIMUM_PAYLOAD {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a frame over its limit"));
        }
        let mut frame = Vec::with_capacity(payload.len() + 9);
        frame.push(kind);
        frame.extend_from_slice(&job.to_le_bytes());
        frame.extend_from_slice(&length.to_le_bytes());
        frame.extend_from_slice(&payload);
        writer.write_all(&frame)?;
        writer.flush()
    }

    /// Reads one frame; `None` when the other end is gone.
    pub(crate) fn read_from(reader: &mut impl Read) -> io::Result<Option<Self>> {
        let mut header = [0; 9];
        match reader.read_exact(&mut header) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let [kind, a, b, c, d, e, f, g, h] = header;
        let job = u32::from_le_bytes([a, b, c, d]);
        let length = u32::from_le_bytes([e, f, g, h]);
        if length > MAXIMUM_PAYLOAD {
            return Err(invalid(&format!("a frame of {length} bytes")));
        }
        let mut payload = Vec::new();
        reader.take(length.into()).read_to_end(&mut payload)?;
        if payload.len() != length.try_into().unwrap_or(usize::MAX) {
            return Ok(None);
        }
        Self::parse(kind, job, payload).map(Some)
    }

    fn parse(kind: u8, job: u32, payload: Vec<u8>) -> io::Result<Self> {
        let number = |payload: &[u8]| -> io::Result<i32> {
            let bytes = payload.try_into().map_err(|_| invalid("an exit of the wrong length"))?;
            Ok(i32::from_le_bytes(bytes))
        };
        let text = |payload: Vec<u8>| String::from_utf8_lossy(&payload).into_owned();
        Ok(match kind {
            RUN => Self::Run(job, Job::from_bytes(&payload)?),
            INPUT => Self::Input(job, payload),
            KILL => Self::Kill(job),
            RESIZE => match payload.as_slice() {
                &[a, b, c, d] => {
                    Self::Resize(job, u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]))
                }
                _ => return Err(invalid("a size of the wrong length")),
            },
            READY => Self::Ready,
            SET_UP_FAILED => Self::SetUpFailed(text(payload)),
            OUTPUT => Self::Output(job, payload),
            ERROR_OUTPUT => Self::ErrorOutput(job, payload),
            EXIT_CODE => Self::Exit(job, Exit::Code(number(&payload)?)),
            EXIT_SIGNAL => Self::Exit(job, Exit::Signal(number(&payload)?)),
            EXIT_NOT_STARTED => Self::Exit(job, Exit::NotStarted(text(payload))),
            other => return Err(invalid(&format!("a frame of unknown kind {other}"))),
        })
    }
}

impl Job {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let (rows, columns) = self.terminal.unwrap_or_default();
        bytes.push(u8::from(self.terminal.is_some()));
        bytes.extend_from_slice(&rows.to_le_bytes());
        bytes.extend_from_slice(&columns.to_le_bytes());
        put_text(&mut bytes, &self.directory);
        put_count(&mut bytes, self.command.len());
        for word in &self.command {
            put_text(&mut bytes, word);
        }
        put_count(&mut bytes, self.environment.len());
        for (name, value) in &self.environment {
            put_text(&mut bytes, name);
            put_text(&mut bytes, value);
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> io::Result<Self> {
        let mut rest = bytes;
        let [has_terminal, a, b, c, d] = take::<5>(&mut rest)?;
        let size = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        let directory = take_text(&mut rest)?;
        let words = u32::from_le_bytes(take(&mut rest)?);
        let command = (0..words).map(|_| take_text(&mut rest)).collect::<io::Result<_>>()?;
        let pairs = u32::from_le_bytes(take(&mut rest)?);
        let environment = (0..pairs)
            .map(|_| Ok((take_text(&mut rest)?, take_text(&mut rest)?)))
            .collect::<io::Result<_>>()?;
        if !rest.is_empty() {
            return Err(invalid("a job with bytes left over"));
        }
        Ok(Self { command, environment, directory, terminal: (has_terminal != 0).then_some(size) })
    }
}

fn put_count(bytes: &mut Vec<u8>, count: usize) {
    bytes.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    put_count(bytes, text.len());
    bytes.extend_from_slice(text.as_bytes());
}

fn take<const N: usize>(rest: &mut &[u8]) -> io::Result<[u8; N]> {
    let (head, tail) = rest.split_first_chunk().ok_or_else(|| invalid("a cut-off job"))?;
    *rest = tail;
    Ok(*head)
}

fn take_text(rest: &mut &[u8]) -> io::Result<String> {
    let length = usize::try_from(u32::from_le_bytes(take(rest)?)).unwrap_or(usize::MAX);
    let (head, tail) = rest.split_at_checked(length).ok_or_else(|| invalid("a cut-off job"))?;
    *rest = tail;
    String::from_utf8(head.to_vec()).map_err(|_| invalid("a job that is not UTF-8"))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        Job {
            command: vec!["echo".into(), String::new(), "ä b".into()],
            environment: vec![("A".into(), "1".into())],
            directory: "/tmp".into(),
            terminal: Some((24, 80)),
        }
    }

    #[test]
    fn messages_survive_the_wire() {
        let messages = [
            Message::Run(1, job()),
            Message::Run(2, Job::default()),
            Message::Input(1, b"x".to_vec()),
            Message::Kill(1),
            Message::Resize(1, 50, 132),
            Message::Ready,
            Message::SetUpFailed("no rxe".into()),
            Message::Output(3, vec![0; CHUNK]),
            Message::ErrorOutput(3, Vec::new()),
            Message::Exit(3, Exit::Code(-1)),
            Message::Exit(3, Exit::Signal(9)),
            Message::Exit(3, Exit::NotStarted("no such file".into())),
        ];
        let mut wire = Vec::new();
        for message in &messages {
            message.write_to(&mut wire).unwrap();
        }
        let mut reader = wire.as_slice();
        for message in messages {
            assert_eq!(Message::read_from(&mut reader).unwrap(), Some(message));
        }
        assert_eq!(Message::read_from(&mut reader).unwrap(), None);
    }

    #[test]
    fn garbage_is_refused_without_a_panic() {
        let mut wire = Vec::new();
        Message::Run(1, job()).write_to(&mut wire).unwrap();
        for length in 0..wire.len() {
            assert_eq!(Message::read_from(&mut &wire[..length]).unwrap(), None, "{length}");
        }
        let payload = &wire[9..];
        for length in 0..payload.len() {
            assert!(Job::from_bytes(&payload[..length]).is_err(), "{length}");
        }
        Job::from_bytes(&[payload, &[0]].concat()).unwrap_err();
        Message::read_from(&mut [9, 0, 0, 0, 0, 0, 0, 0, 0].as_slice()).unwrap_err();
        Message::read_from(&mut [INPUT, 0, 0, 0, 0, 0, 0, 0, 0xff].as_slice()).unwrap_err();
        Message::read_from(&mut [EXIT_CODE, 0, 0, 0, 0, 1, 0, 0, 0, 1].as_slice()).unwrap_err();
    }
}
