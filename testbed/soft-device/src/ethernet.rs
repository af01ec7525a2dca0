//! Ethernet among the soft devices: one switch connects the Ethernet ports of the process, and flows decide which
//! queue pair of a port gets a frame.
#![expect(unsafe_code, reason = "moves bytes between memory that was checked under the lock")]

mod asked;
pub(crate) mod checksum;
pub(crate) mod filter;
pub(crate) mod frame;
pub(crate) mod hash;
mod resolve;
pub(crate) mod segmentation;

use rdma_sys as c;

pub(crate) use self::resolve::ibv_resolve_eth_l2_from_gid;

use self::frame::{Headers, VLAN};
use crate::{
    completion_queue::Completion,
    device::LinkLayer,
    fabric::Fabric,
    memory::{Piece, Place},
};

/// The shortest frame, without its checksum: what is shorter is filled up with zeros on its way.
pub(crate) const SHORTEST: usize = 60;
/// The header of a frame.
pub(crate) const HEADER: usize = 14;
/// The longest frame: 9,000 bytes behind the header and the tag of a VLAN.
pub(crate) const LONGEST: usize = HEADER + 4 + 9000;

/// The longest stretch of a stream that is cut into packets.
pub(crate) const LONGEST_STRETCH: usize = 1 << 18;

/// A port of a device.
type PortOf = (u32, u8);

/// A frame that came to a receiver, and what its rule says of it.
#[derive(Clone, Copy)]
pub(crate) struct Arrived<'f> {
    pub(crate) bytes: &'f [u8],
    pub(crate) headers: &'f Headers,
    pub(crate) tag: u32,
}

impl Fabric {
    /// Brings a frame from a port to where it goes: to the port that has its destination, else to all others.
    pub(crate) fn transmit(&mut self, from: PortOf, frame: &[u8], to: &mut Vec<Piece>) {
        let Some(headers) = Headers::read(frame) else { return };
        if !self.port_is_up(from) {
            return;
        }
        self.sniff(from, frame, &headers, to);
        if let Some(known) = self.port_with(headers.outer.destination) {
            return self.arrive(known, frame, &headers, to);
        }
        for number in 0..u32::try_from(self.devices.len()).unwrap_or(0) {
            let ports = self.device(number).map_or(0, |device| device.description.ports.len());
            for port in 1..=u8::try_from(ports).unwrap_or(u8::MAX) {
                if (number, port) != from && self.has_ethernet(number) {
                    self.arrive((number, port), frame, &headers, to);
                }
            }
        }
    }

    fn has_ethernet(&self, device: u32) -> bool {
        self.device(device).is_some_and(|it| it.description.link_layer == LinkLayer::Ethernet)
    }

    fn port_is_up(&self, (device, port): PortOf) -> bool {
        let port = self.device(device).and_then(|device| device.description.port(port));
        port.is_some_and(|port| port.state == c::IBV_PORT_ACTIVE)
    }

    /// The Ethernet port that has an address.
    fn port_with(&self, address: [u8; 6]) -> Option<PortOf> {
        (0u32..).zip(&self.devices).find_map(|(number, device)| {
            let ports = &device.description.ports;
            let (port, _) = (1u8..).zip(ports).find(|(_, port)| port.mac == address)?;
            (device.description.link_layer == LinkLayer::Ethernet).then_some((number, port))
        })
    }

    /// Gives a frame to the first rule of a port that wants it.
    fn arrive(&mut self, at: PortOf, frame: &[u8], headers: &Headers, to: &mut Vec<Piece>) {
        if !self.port_is_up(at) {
            return;
        }
        self.sniff(at, frame, headers, to);
        let multicast = headers.outer.destination[0] & 1 != 0;
        for place in 0..self.rules.len() {
            let Some(&number) = self.rules.get(place) else { return };
            let Some(flow) = self.flows.get(number) else { continue };
            let wanted = match flow.kind {
                c::IBV_FLOW_ATTR_NORMAL => flow.wants.want(headers),
                c::IBV_FLOW_ATTR_MC_DEFAULT => multicast,
                c::IBV_FLOW_ATTR_ALL_DEFAULT => true,
                _ => false,
            };
            if flow.at == at && wanted {
                let goes_on = flow.lets_pass;
                self.carry_out(number, frame, headers, to);
                if !goes_on {
                    return;
                }
            }
        }
    }

    /// Shows a frame to those that see all that a port sends and receives.
    fn sniff(&mut self, at: PortOf, frame: &[u8], headers: &Headers, to: &mut Vec<Piece>) {
        for place in 0..self.rules.len() {
            let Some(&number) = self.rules.get(place) else { return };
            let sniffs = |flow: &crate::steering::Flow| {
                flow.kind == c::IBV_FLOW_ATTR_SNIFFER && flow.at == at
            };
            if self.flows.get(number).is_some_and(sniffs) {
                self.carry_out(number, frame, headers, to);
            }
        }
    }

    /// Does with a frame what its rule says.
    fn carry_out(&mut self, flow: u32, bytes: &[u8], headers: &Headers, to: &mut Vec<Piece>) {
        self.count_frame(flow, bytes.len());
        let Some(flow) = self.flows.get(flow).filter(|flow| !flow.wants.drops) else { return };
        let arrived = Arrived { bytes, headers, tag: flow.wants.tag };
        let pair = flow.pair;
        match self.pairs.get(pair).and_then(|pair| pair.spreading) {
            Some(spreading) => self.spread(&spreading, arrived, to),
            None => self.receive_frame(pair, arrived, to),
        }
    }

    /// Writes a frame into memory, without the tag of a VLAN if that is to be taken out; what its completion says of it.
    pub(crate) fn store_frame(
        &mut self,
        arrived: Arrived<'_>,
        strips: bool,
        to: &[Piece],
    ) -> Option<Completion> {
        let bytes = arrived.bytes;
        let vlan = arrived.headers.outer.vlan.filter(|_| strips && is_tagged(bytes));
        let (start, rest) = if vlan.is_some() {
            (bytes.get(..12)?, bytes.get(16..)?)
        } else {
            (bytes, [].as_slice())
        };
        let piece = |part: &[u8]| Piece {
            place: Place::Host(part.as_ptr().expose_provenance()),
            length: part.len(),
        };
        // SAFETY: the receiver's memory was checked under the lock that is held, and the frame is borrowed.
        unsafe { self.transfer(&[piece(start), piece(rest)], to) }.ok()?;
        Some(Completion {
            byte_len: u32::try_from(start.len() + rest.len()).unwrap_or(u32::MAX),
            flow_tag: arrived.tag,
            vlan: vlan.unwrap_or(0),
            wc_flags: if checksum::is_right(bytes) { c::IBV_WC_IP_CSUM_OK } else { 0 },
            ..Completion::default()
        })
    }
}

/// Whether a frame has the tag of a VLAN.
pub(crate) fn is_tagged(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&VLAN.to_be_bytes())
}

/// How many bytes of a frame come to a receiver that takes tags out or does not.
pub(crate) fn stored_length(frame: &[u8], strips: bool) -> usize {
    if strips && is_tagged(frame) { frame.len().saturating_sub(4) } else { frame.len() }
}
