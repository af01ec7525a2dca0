//! The checksums of IP, TCP and UDP (RFC 1071), which a device fills in and looks at.

use super::{
    frame::{Headers, Network},
    is_tagged,
};

/// Where the parts of a packet are in its frame.
struct Parts {
    /// Of IPv4, whose header has a checksum of its own: where it is, and where it ends.
    header: Option<(usize, usize)>,
    /// The first byte of TCP or UDP, and the one behind the packet.
    segment: (usize, usize),
    /// The place of its checksum.
    place: usize,
    udp: bool,
    /// The sum over the pseudo header.
    pseudo: u32,
}

impl Parts {
    /// `None` for anything but a whole TCP or UDP packet.
    fn of(frame: &[u8]) -> Option<Self> {
        let layers = Headers::read(frame)?.outer;
        let transport = layers.transport?;
        let start = if is_tagged(frame) { 18 } else { 14 };
        let number = |at: usize| Some(usize::from(u16::from_be_bytes(two(frame, at)?)));
        let (header, from, end, addresses) = match layers.network? {
            Network::V4 { source, destination, .. } => {
                let length = usize::from(frame.get(start)? & 0xf) * 4;
                let end = start + number(start + 2)?;
                let addresses = sum(&source) + sum(&destination);
                (Some((start, start + length)), start + length, end, addresses)
            }
            Network::V6 { source, destination, .. } => {
                let end = start + 40 + number(start + 4)?;
                (None, start + 40, end, sum(&source) + sum(&destination))
            }
        };
        let udp = !transport.tcp;
        let place = from + if udp { 6 } else { 16 };
        let protocol = if udp { 17 } else { 6 };
        let length = u32::try_from(end.checked_sub(from)?).ok()?;
        (place + 2 <= end && end <= frame.len()).then_some(Self {
            header,
            segment: (from, end),
            place,
            udp,
            pseudo: addresses + protocol + length,
        })
    }

    /// The sum over the segment and its pseudo header: 0xffff where the checksum in it is right.
    fn sum(&self, frame: &[u8]) -> u16 {
        let (from, end) = self.segment;
        fold(self.pseudo + sum(frame.get(from..end).unwrap_or(&[])))
    }

    /// The sum over the header of IPv4.
    fn header_sum(&self, frame: &[u8]) -> u16 {
        let bytes = self.header.and_then(|(from, end)| frame.get(from..end));
        bytes.map_or(RIGHT, |bytes| fold(sum(bytes)))
    }
}

const RIGHT: u16 = 0xffff;

/// Writes the checksums of a packet into its frame. What is neither TCP nor UDP stays as it is.
pub(crate) fn fill(frame: &mut [u8]) {
    let Some(parts) = Parts::of(frame) else { return };
    if let Some((from, _)) = parts.header {
        put(frame, from + 10, 0);
        put(frame, from + 10, !parts.header_sum(frame));
    }
    put(frame, parts.place, 0);
    let checksum = !parts.sum(frame);
    // To UDP a zero says that there is none.
    put(frame, parts.place, if parts.udp && checksum == 0 { RIGHT } else { checksum });
}

/// Whether a frame has a packet of TCP or UDP over IPv4 whose checksums are right.
pub(crate) fn is_right(frame: &[u8]) -> bool {
    Parts::of(frame).is_some_and(|parts| {
        let absent = parts.udp && two(frame, parts.place) == Some([0, 0]);
        parts.header.is_some()
            && parts.header_sum(frame) == RIGHT
            && (absent || parts.sum(frame) == RIGHT)
    })
}

fn two(bytes: &[u8], at: usize) -> Option<[u8; 2]> {
    bytes.get(at..at + 2)?.try_into().ok()
}

fn put(frame: &mut [u8], at: usize, value: u16) {
    if let Some(place) = frame.get_mut(at..at + 2) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

/// The sum of the 16-bit words, the last one filled up with a zero. Of a frame it does not overflow.
fn sum(bytes: &[u8]) -> u32 {
    let word = |pair: &[u8]| match *pair {
        [high, low] => u32::from(u16::from_be_bytes([high, low])),
        [high] => u32::from(high) << 8,
        _ => 0,
    };
    bytes.chunks(2).map(word).sum()
}

/// The sum of ones' complements.
fn fold(sum: u32) -> u16 {
    let mut sum = sum;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ethernet::frame::tests::udp;

    #[test]
    fn the_header_of_the_well_known_example_has_its_checksum() {
        // The header that textbooks and encyclopedias compute: b861.
        let header = [
            0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0,
            0xc7,
        ];
        assert_eq!(!fold(sum(&header)), 0xb861);
    }

    #[test]
    fn what_is_filled_in_is_right_and_what_is_changed_is_not() {
        for length in 0..38 {
            let data: Vec<u8> = (0..length).collect();
            let mut frame = udp(([10, 0, 0, 1], 7), ([10, 0, 0, 2], 9), &data);
            let total = u16::try_from(frame.len() - 14).unwrap();
            put(&mut frame, 16, total);
            put(&mut frame, 38, total - 20);
            frame.resize(80, 0);
            assert!(!is_right(&frame));
            fill(&mut frame);
            assert!(is_right(&frame));
            for place in 14..14 + usize::from(total) {
                let mut other = frame.clone();
                other[place] ^= 0x10;
                // The bytes of the checksum of UDP could become zeros, which say nothing.
                assert!(!is_right(&other) || two(&other, 40) == Some([0, 0]), "{place}");
            }
        }
    }

    #[test]
    fn a_udp_packet_without_a_checksum_is_right_by_its_header() {
        let mut frame = udp(([10, 0, 0, 1], 7), ([10, 0, 0, 2], 9), &[1, 2]);
        put(&mut frame, 16, 30);
        fill(&mut frame);
        put(&mut frame, 40, 0);
        assert!(is_right(&frame));
    }
}
