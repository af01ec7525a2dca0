//! Cutting a stretch of a TCP stream into packets.

use super::{
    checksum,
    frame::{Headers, Network},
    is_tagged,
};

const FIN: u8 = 0x01;
const PUSH: u8 = 0x08;
const WINDOW_REDUCED: u8 = 0x80;

/// Which packet of a stretch it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) number: usize,
    /// How many bytes of the stretch come before it.
    pub(crate) offset: usize,
    pub(crate) last: bool,
}

/// Whether headers are those of TCP, whole, and nothing more.
pub(crate) fn are_headers(header: &[u8]) -> bool {
    let tcp = Headers::read(header).and_then(|headers| headers.outer.transport);
    tcp.is_some_and(|transport| transport.tcp)
        && start_of_tcp(header).is_some_and(|start| {
            let length = header.get(start + 12).map(|&byte| usize::from(byte >> 4) * 4);
            length.is_some_and(|length| length >= 20 && start + length == header.len())
        })
}

/// Makes a packet, which is the headers and its bytes of the stretch, one of its own: lengths, numbers, flags and
/// checksums.
pub(crate) fn finish(frame: &mut [u8], part: Part) -> Option<()> {
    let start = if is_tagged(frame) { 18 } else { 14 };
    let tcp = start_of_tcp(frame)?;
    let length = frame.len() - start;
    match Headers::read(frame)?.outer.network? {
        Network::V4 { .. } => {
            put(frame, start + 2, u16::try_from(length).ok()?)?;
            let identification = number(frame, start + 4)?;
            let count = u16::try_from(part.number).ok()?;
            put(frame, start + 4, identification.wrapping_add(count))?;
        }
        Network::V6 { .. } => put(frame, start + 4, u16::try_from(length - 40).ok()?)?,
    }
    let place = frame.get_mut(tcp + 4..tcp + 8)?;
    let sequence = u32::from_be_bytes((&*place).try_into().ok()?);
    let sequence = sequence.wrapping_add(u32::try_from(part.offset).ok()?);
    place.copy_from_slice(&sequence.to_be_bytes());
    let flags = frame.get_mut(tcp + 13)?;
    if !part.last {
        *flags &= !(FIN | PUSH);
    }
    if part.number > 0 {
        *flags &= !WINDOW_REDUCED;
    }
    checksum::fill(frame);
    Some(())
}

fn start_of_tcp(frame: &[u8]) -> Option<usize> {
    let start = if is_tagged(frame) { 18 } else { 14 };
    Some(match Headers::read(frame)?.outer.network? {
        Network::V4 { .. } => start + usize::from(frame.get(start)? & 0xf) * 4,
        Network::V6 { .. } => start + 40,
    })
}

fn number(frame: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?))
}

fn put(frame: &mut [u8], at: usize, value: u16) -> Option<()> {
    frame.get_mut(at..at + 2)?.copy_from_slice(&value.to_be_bytes());
    Some(())
}
