//! What ranks say to each other on a stream: a header of 20 bytes, then a payload.
//!
//! ```text
//!  0   4   magic "R4RS"
//!  4   2   version of this protocol
//!  6   2   kind
//!  8   4   sequence: which operation this belongs to; 0 outside operations
//! 12   4   detail: a rank, by kind
//! 16   4   length of the payload in bytes
//! ```
//! Numbers are in network byte order. Everything is checked before it is believed, the magic as soon
//! as its four bytes are there, and no more memory is taken than bytes have come.

use std::fmt;

pub(crate) const HEADER: usize = 20;
/// Between ranks that know each other.
pub(crate) const LONGEST_PAYLOAD: usize = 16 << 20;
/// From callers that are not known yet, and of everything that is no part of an operation.
pub(crate) const LONGEST_GREETING: usize = 4 << 10;
pub(crate) const VERSION: u16 = 1;
const MAGIC: [u8; 4] = *b"R4RS";

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A rank introduces itself to rank 0; detail: its rank; payload: [`Introduction`].
    Hello,
    /// Rank 0 answers; payload: its own [`Introduction`].
    Welcome,
    /// All ranks have arrived.
    Start,
    /// A part of [`World::exchange`](crate::World::exchange); detail: whose bytes.
    Exchange,
    /// A part of [`World::broadcast`](crate::World::broadcast); detail: who speaks.
    Broadcast,
    /// A part of [`World::barrier`](crate::World::barrier).
    Barrier,
    /// A rank gave up; detail: which; payload: why, as text.
    Abort,
    /// The sender is done and well.
    Goodbye,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Hello,
        Self::Welcome,
        Self::Start,
        Self::Exchange,
        Self::Broadcast,
        Self::Barrier,
        Self::Abort,
        Self::Goodbye,
    ];

    fn code(self) -> u16 {
        match self {
            Self::Hello => 1,
            Self::Welcome => 2,
            Self::Start => 3,
            Self::Exchange => 4,
            Self::Broadcast => 5,
            Self::Barrier => 6,
            Self::Abort => 7,
            Self::Goodbye => 8,
        }
    }

    /// The longest payload: only operations carry what ranks have to say.
    fn longest(self) -> usize {
        match self {
            Self::Exchange | Self::Broadcast => LONGEST_PAYLOAD,
            Self::Hello
            | Self::Welcome
            | Self::Start
            | Self::Barrier
            | Self::Abort
            | Self::Goodbye => LONGEST_GREETING,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::Welcome => "welcome",
            Self::Start => "the start",
            Self::Exchange => "exchange",
            Self::Broadcast => "broadcast",
            Self::Barrier => "barrier",
            Self::Abort => "abort",
            Self::Goodbye => "goodbye",
        }
    }
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) sequence: u32,
    pub(crate) detail: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    pub(crate) fn new(kind: Kind, detail: u32, payload: Vec<u8>) -> Self {
        Self { kind, sequence: 0, detail, payload }
    }

    /// Says that `rank` gave up and why, in at most [`LONGEST_GREETING`] bytes.
    pub(crate) fn abort(rank: u32, reason: &str) -> Self {
        let mut text = reason.to_owned();
        while text.len() > LONGEST_GREETING {
            text.pop();
        }
        Self::new(Kind::Abort, rank, text.into_bytes())
    }

    /// The bytes for the stream. The payload is at most [`LONGEST_PAYLOAD`]; callers check.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).unwrap_or(u32::MAX);
        let mut bytes = Vec::with_capacity(HEADER + self.payload.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_be_bytes());
        bytes.extend_from_slice(&self.kind.code().to_be_bytes());
        bytes.extend_from_slice(&self.sequence.to_be_bytes());
        bytes.extend_from_slice(&self.detail.to_be_bytes());
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(&self.payload);
        bytes
    }
}

/// Bytes that are no frame of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    Magic(Vec<u8>),
    Version(u16),
    Kind(u16),
    Length { claimed: u32, limit: usize },
}

impl fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic(bytes) => {
                write!(formatter, "it says \"{}\", which is another protocol", bytes.escape_ascii())
            }
            Self::Version(theirs) => {
                write!(formatter, "it speaks version {theirs} of this protocol, not {VERSION}")
            }
            Self::Kind(code) => write!(formatter, "there is no message of kind {code}"),
            Self::Length { claimed, limit } => {
                write!(formatter, "a message of {claimed} bytes is over the limit of {limit}")
            }
        }
    }
}

/// What the beginning of a stream holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// At least this many bytes in all are needed to go on.
    Needs(usize),
    /// A frame, and how many bytes it took.
    Frame(Frame, usize),
}

/// Reads one frame off the front of `bytes`; its payload is at most `limit` long.
pub(crate) fn parse(bytes: &[u8], limit: usize) -> Result<Parsed, Malformed> {
    let begin = bytes.len().min(MAGIC.len());
    if bytes[..begin] != MAGIC[..begin] {
        return Err(Malformed::Magic(bytes[..bytes.len().min(16)].to_vec()));
    }
    let Some(header) = bytes.first_chunk::<HEADER>() else { return Ok(Parsed::Needs(HEADER)) };
    let version = u16::from_be_bytes([header[4], header[5]]);
    if version != VERSION {
        return Err(Malformed::Version(version));
    }
    let code = u16::from_be_bytes([header[6], header[7]]);
    let kind =
        Kind::ALL.into_iter().find(|kind| kind.code() == code).ok_or(Malformed::Kind(code))?;
    let number = |at: usize| {
        u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let (sequence, detail, claimed) = (number(8), number(12), number(16));
    let length = usize::try_from(claimed).unwrap_or(usize::MAX);
    let limit = limit.min(kind.longest());
    if length > limit {
        return Err(Malformed::Length { claimed, limit });
    }
    let end = HEADER + length;
    let Some(payload) = bytes.get(HEADER..end) else { return Ok(Parsed::Needs(end)) };
    Ok(Parsed::Frame(Frame { kind, sequence, detail, payload: payload.to_vec() }, end))
}

/// What two ranks compare before they trust each other: 12 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Introduction {
    /// A digest of what the launcher calls this job.
    pub(crate) job: u64,
    pub(crate) world_size: u32,
}

impl Introduction {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = self.job.to_be_bytes().to_vec();
        bytes.extend_from_slice(&self.world_size.to_be_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (job, world_size) = bytes.split_first_chunk::<8>()?;
        Some(Self {
            job: u64::from_be_bytes(*job),
            world_size: u32::from_be_bytes(world_size.try_into().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame() -> Frame {
        Frame { kind: Kind::Exchange, sequence: 7, detail: 1, payload: b"abc".to_vec() }
    }

    #[test]
    fn the_bytes_are_fixed() {
        let expected = b"R4RS\x00\x01\x00\x04\x00\x00\x00\x07\x00\x00\x00\x01\x00\x00\x00\x03abc";
        assert_eq!(frame().to_bytes(), expected);
    }

    #[test]
    fn every_kind_survives_the_round_trip() {
        for kind in Kind::ALL {
            let frame = Frame { kind, ..frame() };
            assert_eq!(parse(&frame.to_bytes(), LONGEST_PAYLOAD), Ok(Parsed::Frame(frame, 23)));
        }
    }

    #[test]
    fn a_frame_cut_anywhere_asks_for_more() {
        let bytes = frame().to_bytes();
        for cut in 0..bytes.len() {
            let needs = if cut < HEADER { HEADER } else { bytes.len() };
            assert_eq!(parse(&bytes[..cut], LONGEST_PAYLOAD), Ok(Parsed::Needs(needs)), "{cut}");
        }
    }

    #[test]
    fn another_protocol_is_told_from_its_first_byte_on() {
        assert_eq!(parse(b"G", 0), Err(Malformed::Magic(b"G".to_vec())));
        let error = parse(b"GET / HTTP/1.1\r\nHost: x\r\n", 0).unwrap_err().to_string();
        assert_eq!(error, "it says \"GET / HTTP/1.1\\r\\n\", which is another protocol");
    }

    #[test]
    fn versions_kinds_and_lengths_are_limited() {
        let with = |at: usize, value: u8| {
            let mut bytes = frame().to_bytes();
            bytes[at] = value;
            parse(&bytes, LONGEST_PAYLOAD).unwrap_err()
        };
        assert_eq!(with(5, 9), Malformed::Version(9));
        assert_eq!(with(7, 99), Malformed::Kind(99));
        let limit = LONGEST_PAYLOAD;
        assert_eq!(with(16, 0xFF), Malformed::Length { claimed: 0xFF00_0003, limit });
        let short = parse(&frame().to_bytes(), 2).unwrap_err();
        assert_eq!(short, Malformed::Length { claimed: 3, limit: 2 });
    }

    #[test]
    fn only_operations_carry_long_payloads() {
        for kind in Kind::ALL {
            let carries = matches!(kind, Kind::Exchange | Kind::Broadcast);
            let frame = Frame { kind, payload: vec![0; LONGEST_GREETING + 1], ..frame() };
            assert_eq!(parse(&frame.to_bytes(), LONGEST_PAYLOAD).is_ok(), carries, "{kind:?}");
        }
    }

    #[test]
    fn introductions_have_one_length() {
        let introduction = Introduction { job: 0x0102_0304_0506_0708, world_size: 2 };
        let bytes = introduction.to_bytes();
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 2]);
        assert_eq!(Introduction::from_bytes(&bytes), Some(introduction));
        assert_eq!(Introduction::from_bytes(&bytes[..11]), None);
        assert_eq!(Introduction::from_bytes(&[0; 13]), None);
    }

    #[test]
    fn no_bytes_make_the_parser_fail_badly() {
        let mut state = 1_u64;
        for _ in 0..20_000 {
            let mut bytes = frame().to_bytes();
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            let [at, value, ..] = (state >> 32).to_le_bytes();
            let at = usize::from(at) % bytes.len();
            bytes[at] = value;
            if let Ok(Parsed::Frame(frame, taken)) = parse(&bytes, LONGEST_PAYLOAD) {
                assert_eq!(frame.to_bytes(), bytes[..taken]);
            }
        }
    }
}
