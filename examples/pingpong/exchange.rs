//! How two ends find each other: over TCP, each queue pair as one line of hexadecimal numbers.

use std::{
    fmt,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use ibverbs::{Gid, PacketSequence, QueuePairNumber};

use super::{AnyError, Options};

/// How long a client tries to reach a server that is not there yet.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where a queue pair is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) lid: u16,
    pub(crate) number: QueuePairNumber,
    pub(crate) first_packet: PacketSequence,
    pub(crate) gid: Gid,
}

impl Endpoint {
    /// `LLLL:QQQQQQ:PPPPPP:` and the 16 bytes of the GID, then a zero byte.
    const LENGTH: usize = 4 + 1 + 6 + 1 + 6 + 1 + 32 + 1;

    fn to_bytes(self) -> [u8; Self::LENGTH] {
        let Self { lid, number, first_packet, gid } = self;
        let mut text =
            format!("{lid:04x}:{:06x}:{:06x}:", number.get(), first_packet.get()).into_bytes();
        for byte in gid.0 {
            text.extend(format!("{byte:02x}").bytes());
        }
        let mut bytes = [0; Self::LENGTH];
        bytes[..text.len()].copy_from_slice(&text);
        bytes
    }

    fn from_bytes(bytes: &[u8; Self::LENGTH]) -> Result<Self, AnyError> {
        let wrong = || format!("{:?} is not where a queue pair is", String::from_utf8_lossy(bytes));
        let text = std::str::from_utf8(&bytes[..Self::LENGTH - 1]).map_err(|_| wrong())?;
        let parts: Vec<&str> = text.split(':').collect();
        let [lid, number, first_packet, gid] = parts[..] else {
            return Err(wrong().into());
        };
        let hexadecimal = |text: &str| u32::from_str_radix(text, 16).map_err(|_| wrong());
        let digits = u128::from_str_radix(gid, 16).map_err(|_| wrong())?;
        Ok(Self {
            lid: u16::try_from(hexadecimal(lid)?)?,
            number: QueuePairNumber::new(hexadecimal(number)?)?,
            first_packet: PacketSequence::new(hexadecimal(first_packet)?)?,
            gid: Gid(digits.to_be_bytes()),
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lid, number, first_packet, gid } = self;
        let (number, first_packet) = (number.get(), first_packet.get());
        write!(f, "LID {lid:#06x}, QPN {number:#08x}, PSN {first_packet:#08x}, GID {gid}")
    }
}

/// The other end. A client speaks first; a server answers when its queue pairs are connected.
pub(crate) struct Peer {
    stream: TcpStream,
    local: Vec<Endpoint>,
    remote: Vec<Endpoint>,
    is_client: bool,
}

impl Peer {
    /// Finds the other end and hears where its queue pairs are, as many as are told here.
    pub(crate) fn meet(options: &Options, local: Vec<Endpoint>) -> Result<Self, AnyError> {
        let (mut stream, is_client) = match &options.host {
            Some(host) => (reach(host, options.port)?, true),
            None => (TcpListener::bind(("::", options.port))?.accept()?.0, false),
        };
        if is_client {
            tell(&mut stream, &local)?;
        }
        let mut remote = Vec::new();
        for _ in &local {
            let mut bytes = [0; Endpoint::LENGTH];
            stream.read_exact(&mut bytes)?;
            remote.push(Endpoint::from_bytes(&bytes)?);
        }
        for (whose, endpoints) in [("local", &local), ("remote", &remote)] {
            for endpoint in endpoints.iter().filter(|endpoint| endpoint.number.get() != 0) {
                println!("  {whose:6} address:  {endpoint}");
            }
        }
        Ok(Self { stream, local, remote, is_client })
    }

    /// Where its queue pairs are.
    pub(crate) fn remote(&self) -> &[Endpoint] {
        &self.remote
    }

    /// Says that this end is ready; a server waits until the client is done with the exchange.
    pub(crate) fn start(mut self) -> Result<(), AnyError> {
        let mut done = *b"done\0";
        if self.is_client {
            self.stream.write_all(&done)?;
        } else {
            tell(&mut self.stream, &self.local)?;
            self.stream.read_exact(&mut done)?;
        }
        Ok(())
    }
}

fn tell(stream: &mut TcpStream, endpoints: &[Endpoint]) -> Result<(), AnyError> {
    for endpoint in endpoints {
        stream.write_all(&endpoint.to_bytes())?;
    }
    Ok(())
}

/// Connects, and tries again while the server is not there yet.
fn reach(host: &str, port: u16) -> Result<TcpStream, AnyError> {
    let start = Instant::now();
    loop {
        match TcpStream::connect((host, port)) {
            Ok(stream) => return Ok(stream),
            Err(error) if start.elapsed() > PATIENCE => {
                return Err(format!("no server at {host}, port {port}: {error}").into());
            }
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
}
