//! The Ethernet address behind a GID.
#![expect(unsafe_code, reason = "a verb, called from C")]

use std::ffi::c_int;

use rdma_sys as c;

use crate::{
    address::Vector,
    errno::{Outcome, status},
    fabric::{Fabric, fabric},
    handle::ContextRef,
    verb::Verb,
};

/// No VLAN leads there.
const NONE: u16 = 0xffff;

/// See `ibv_resolve_eth_l2_from_gid` in `verbs.h`: 0 or a negative errno, `EHOSTUNREACH` if no port has the GID.
pub(crate) unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    context: *mut c::ibv_context,
    attr: *mut c::ibv_ah_attr,
    mac: *mut u8,
    vlan: *mut u16,
) -> c_int {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    // SAFETY: the caller gives a readable struct.
    let vector = Vector::new(unsafe { &*attr });
    -status(resolve(context, &vector).map(|found| {
        // SAFETY: the caller gives a place of six bytes.
        unsafe { mac.cast::<[u8; 6]>().write(found) };
        // SAFETY: the caller gives a place for the number.
        unsafe { vlan.write(NONE) };
    }))
}

fn resolve(context: ContextRef, vector: &Vector) -> Outcome<[u8; 6]> {
    let mut fabric = fabric();
    fabric.enter(context.device, Verb::ibv_resolve_eth_l2_from_gid)?;
    let device = fabric.device(context.device).ok_or(libc::ENODEV)?;
    vector.check(&device.description)?;
    let gid = vector.global.ok_or(libc::EINVAL)?.dgid;
    let [first, .., a, b, d, e] = gid;
    if first == 0xff {
        // A group: RFC 2464.
        return Ok([0x33, 0x33, a, b, d, e]);
    }
    fabric.address_of(gid).ok_or(libc::EHOSTUNREACH)
}

impl Fabric {
    /// The Ethernet address of the port that has a GID.
    fn address_of(&self, gid: [u8; 16]) -> Option<[u8; 6]> {
        (0u32..).zip(&self.devices).filter(|&(number, _)| self.has_ethernet(number)).find_map(
            |(_, device)| {
                let has = |port: &&crate::device::Port| port.gids.iter().any(|it| it.gid == gid);
                device.description.ports.iter().find(has).map(|port| port.mac)
            },
        )
    }
}
