//! Addresses of ports, and address handles.
#![expect(unsafe_code, reason = "the verbs of address handles, called from C")]

use std::ffi::c_int;

use rdma_sys as c;

use crate::{
    device::{Description, LinkLayer, Port},
    domain::DomainRef,
    errno::{Outcome, minus_one, object, status},
    fabric::{Fabric, fabric},
    handle::{ContextRef, Handle},
    verb::Verb,
};

/// The bytes of a GID, as on the wire.
pub(crate) fn gid_bytes(gid: &c::ibv_gid) -> [u8; 16] {
    // SAFETY: every member of the union is 16 plain bytes.
    unsafe { gid.raw }
}

/// An address vector.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Vector {
    pub(crate) port: u8,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) global: Option<Global>,
}

/// The part of an address vector that makes a GRH.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Global {
    pub(crate) dgid: [u8; 16],
    pub(crate) sgid_index: u8,
    pub(crate) flow_label: u32,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}

impl Vector {
    pub(crate) fn new(attr: &c::ibv_ah_attr) -> Self {
        Self {
            port: attr.port_num,
            dlid: attr.dlid,
            sl: attr.sl,
            global: (attr.is_global != 0).then(|| Global {
                dgid: gid_bytes(&attr.grh.dgid),
                sgid_index: attr.grh.sgid_index,
                flow_label: attr.grh.flow_label,
                hop_limit: attr.grh.hop_limit,
                traffic_class: attr.grh.traffic_class,
            }),
        }
    }

    /// Whether a device can send to it: its own port and GID are there, and Ethernet has a GID.
    pub(crate) fn check(&self, device: &Description) -> Outcome {
        let port = device.port(self.port).ok_or(libc::EINVAL)?;
        let fits = match self.global {
            None => device.link_layer == LinkLayer::InfiniBand,
            Some(global) => usize::from(global.sgid_index) < port.gids.len(),
        };
        if fits { Ok(()) } else { Err(libc::EINVAL) }
    }

    /// Whether it names a port.
    pub(crate) fn names(&self, port: &Port) -> bool {
        match self.global {
            None => port.lid == self.dlid,
            Some(global) => port.gids.iter().any(|entry| entry.gid == global.dgid),
        }
    }
}

/// An address handle.
#[derive(Debug)]
pub(crate) struct AddressHandle {
    pub(crate) context: u32,
    holder: u32,
    pub(crate) vector: Vector,
}

/// See `ibv_create_ah(3)`.
pub(crate) unsafe extern "C" fn ibv_create_ah(
    pd: *mut c::ibv_pd,
    attr: *mut c::ibv_ah_attr,
) -> *mut c::ibv_ah {
    // SAFETY: the caller gives a live domain.
    let pd = unsafe { DomainRef::of(pd) };
    // SAFETY: the caller gives a readable struct.
    object(create(pd, Vector::new(unsafe { &*attr }), Verb::ibv_create_ah))
}

fn create(pd: DomainRef, vector: Vector, verb: Verb) -> Outcome<*mut c::ibv_ah> {
    let mut fabric = fabric();
    fabric.enter(pd.context.device, verb)?;
    let device = fabric.device(pd.context.device).ok_or(libc::ENODEV)?;
    vector.check(&device.description)?;
    let most = device.description.limits.max_ah;
    let handles = fabric.addresses.iter().map(|(_, each)| each.context);
    fabric.within(most, handles, pd.context.device)?;
    fabric.join(pd)?;
    let number = fabric.addresses.insert_with(|_| AddressHandle {
        context: pd.context.number,
        holder: pd.holder,
        vector,
    });
    Ok(Handle::make(c::ibv_ah { context: pd.context.raw, pd: pd.raw, handle: number }, number))
}

/// See `ibv_create_ah(3)`. What was posted with the handle has its address already.
pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: *mut c::ibv_ah) -> c_int {
    // SAFETY: the caller gives a live handle.
    let raw = unsafe { (*ah).context };
    // SAFETY: a handle does not outlive its context.
    let context = unsafe { ContextRef::of(raw) };
    // SAFETY: the caller gives a live handle.
    let number = unsafe { Handle::number(ah) };
    let outcome = destroy(context, number);
    if outcome.is_ok() {
        // SAFETY: the handle is gone and the caller gives it up.
        unsafe { Handle::free(ah) };
    }
    status(outcome)
}

fn destroy(context: ContextRef, number: u32) -> Outcome {
    let mut fabric = fabric();
    fabric.enter(context.device, Verb::ibv_destroy_ah)?;
    let handle = fabric.addresses.remove(number).ok_or(libc::EINVAL)?;
    fabric.leave(handle.holder);
    Ok(())
}

/// See `ibv_create_ah_from_wc(3)`: -1 with `errno` set on failure.
pub(crate) unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut c::ibv_context,
    port: u8,
    wc: *mut c::ibv_wc,
    grh: *mut c::ibv_grh,
    attr: *mut c::ibv_ah_attr,
) -> c_int {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    // SAFETY: the caller gives a readable struct.
    let wc = unsafe { &*wc };
    let global = wc.wc_flags & c::IBV_WC_GRH != 0;
    // SAFETY: the completion says that 40 bytes of GRH are there.
    let header = global.then(|| unsafe { grh.cast::<[u8; 40]>().read_unaligned() });
    minus_one(answer_to(context, port, wc, header).map(|answer| {
        // SAFETY: the caller gives a place for the attributes.
        unsafe { attr.write(answer) };
    }))
}

/// The address of the sender of a datagram.
fn answer_to(
    context: ContextRef,
    port: u8,
    wc: &c::ibv_wc,
    header: Option<[u8; 40]>,
) -> Outcome<c::ibv_ah_attr> {
    let mut attr = c::ibv_ah_attr {
        dlid: wc.slid,
        sl: wc.sl,
        src_path_bits: wc.dlid_path_bits,
        port_num: port,
        ..c::ibv_ah_attr::default()
    };
    let Some(header) = header else { return Ok(attr) };
    let fabric = fabric();
    let device = fabric.device(context.device).ok_or(libc::ENODEV)?;
    let table = &device.description.port(port).ok_or(libc::EINVAL)?.gids;
    let parsed = parse_header(&header);
    let own = table.iter().position(|entry| entry.gid == parsed.to).ok_or(libc::ENOENT)?;
    attr.is_global = 1;
    attr.grh = c::ibv_global_route {
        dgid: c::ibv_gid { raw: parsed.from },
        flow_label: parsed.flow_label,
        sgid_index: u8::try_from(own).map_err(|_| libc::EINVAL)?,
        hop_limit: u8::MAX,
        traffic_class: parsed.traffic_class,
    };
    Ok(attr)
}

/// See `ibv_create_ah_from_wc(3)`.
pub(crate) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut c::ibv_pd,
    wc: *mut c::ibv_wc,
    grh: *mut c::ibv_grh,
    port: u8,
) -> *mut c::ibv_ah {
    let mut attr = c::ibv_ah_attr::default();
    // SAFETY: the caller gives a live domain.
    let pd = unsafe { DomainRef::of(pd) };
    // SAFETY: the completion and the GRH are as the caller promises, and `attr` is our own.
    if unsafe { ibv_init_ah_from_wc(pd.context.raw, port, wc, grh, &raw mut attr) } != 0 {
        return std::ptr::null_mut();
    }
    object(create(pd, Vector::new(&attr), Verb::ibv_create_ah_from_wc))
}

/// What the network header of a datagram tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) from: [u8; 16],
    pub(crate) to: [u8; 16],
    pub(crate) flow_label: u32,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}

/// The first twelve bytes of an IPv4 address as a GID.
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

impl Header {
    /// The 40 bytes that stand before a datagram in the receive buffer: a GRH, or, between two IPv4
    /// addresses, 20 bytes of nothing and an IPv4 header.
    pub(crate) fn bytes(&self, payload: usize) -> [u8; 40] {
        let mut bytes = [0; 40];
        let payload = u16::try_from(payload).unwrap_or(u16::MAX).to_be_bytes();
        if let (Some(from), Some(to)) = (ipv4(&self.from), ipv4(&self.to)) {
            bytes[20..24].copy_from_slice(&[0x45, self.traffic_class, payload[0], payload[1]]);
            // 17 is UDP.
            bytes[28..32].copy_from_slice(&[self.hop_limit, 17, 0, 0]);
            bytes[32..36].copy_from_slice(&from);
            bytes[36..].copy_from_slice(&to);
        } else {
            let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
            bytes[..4].copy_from_slice(&first.to_be_bytes());
            // 27 is the base transport header of InfiniBand.
            bytes[4..8].copy_from_slice(&[payload[0], payload[1], 27, self.hop_limit]);
            bytes[8..24].copy_from_slice(&self.from);
            bytes[24..].copy_from_slice(&self.to);
        }
        bytes
    }
}

/// The address in an IPv4-mapped GID.
fn ipv4(gid: &[u8; 16]) -> Option<[u8; 4]> {
    gid.strip_prefix(&MAPPED)?.try_into().ok()
}

/// Reads the 40 bytes before a datagram.
fn parse_header(bytes: &[u8; 40]) -> Header {
    let slice = |start: usize| -> [u8; 16] {
        bytes.get(start..start + 16).and_then(|part| part.try_into().ok()).unwrap_or_default()
    };
    if bytes[0] >> 4 == 6 {
        let first = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        return Header {
            from: slice(8),
            to: slice(24),
            flow_label: first & 0xf_ffff,
            hop_limit: bytes[7],
            traffic_class: u8::try_from(first >> 20 & 0xff).unwrap_or(0),
        };
    }
    let mapped = |start: usize| {
        let mut gid = [0; 16];
        gid[..12].copy_from_slice(&MAPPED);
        gid[12..].copy_from_slice(&[
            bytes[start],
            bytes[start + 1],
            bytes[start + 2],
            bytes[start + 3],
        ]);
        gid
    };
    Header {
        from: mapped(32),
        to: mapped(36),
        flow_label: 0,
        hop_limit: bytes[28],
        traffic_class: bytes[21],
    }
}

/// The members of a multicast group, by its GID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Membership {
    pub(crate) gid: [u8; 16],
    pub(crate) pair: u32,
}

impl Fabric {
    /// Adds a pair to a group, or takes it out.
    pub(crate) fn change_membership(
        &mut self,
        device: u32,
        verb: Verb,
        member: Membership,
        joins: bool,
    ) -> Outcome {
        self.enter(device, verb)?;
        let there = self.members.iter().position(|&each| each == member);
        let datagram = self.pairs.get(member.pair).is_some_and(|pair| pair.kind == c::IBV_QPT_UD);
        if member.gid[0] != 0xff || !datagram {
            return Err(libc::EINVAL);
        }
        match (joins, there) {
            (true, None) => self.members.push(member),
            (true, Some(_)) => {}
            (false, Some(place)) => {
                self.members.swap_remove(place);
            }
            (false, None) => return Err(libc::EINVAL),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let ipv6 = Header {
            from: [0xfe; 16],
            to: [0xfd; 16],
            flow_label: 0x12345,
            hop_limit: 64,
            traffic_class: 0x9a,
        };
        assert_eq!(parse_header(&ipv6.bytes(100)), ipv6);
        let mapped = |last| {
            let mut gid = [0; 16];
            gid[..12].copy_from_slice(&MAPPED);
            gid[15] = last;
            gid
        };
        let ipv4 = Header { from: mapped(1), to: mapped(2), flow_label: 0, ..ipv6 };
        assert_eq!(ipv4.bytes(8)[..20], [0; 20]);
        assert_eq!(parse_header(&ipv4.bytes(8)), ipv4);
    }
}
