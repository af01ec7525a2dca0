//! The links of a device's ports.

use super::Context;
use crate::{Address, MacAddress, PortNumber, Result, error::verb};

impl Context {
    /// The bandwidth that a port has now, in megabits per second: of several links that are bonded, that of those which
    /// are up. Enters the kernel.
    ///
    /// [`PortAttributes::megabits_per_second`](crate::PortAttributes::megabits_per_second) is what a link was made for, and there on every
    /// release.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](crate::Error::Unsupported) before rdma-core 62; [`Error::Verb`](crate::Error::Verb), `EOPNOTSUPP` if the device does not
    /// tell, `EINVAL` if it has no such port. See `ibv_query_port_speed(3)`.
    #[doc(alias = "ibv_query_port_speed")]
    pub fn query_port_speed(&self, port: PortNumber) -> Result<u64> {
        let (verb, query) = verb!(self.library(), ibv_query_port_speed)?;
        let mut speed = 0;
        // SAFETY: `raw` is live, and the number is a valid place.
        verb.status(unsafe { query(self.as_raw(), port.get().into(), &raw mut speed) })?;
        // C counts in steps of 100.
        Ok(speed * 100)
    }

    /// The Ethernet address behind a RoCE address, and the number of the VLAN that leads there, as a frame to it would have them.
    /// Asks the neighbour tables of the kernel, which may ask the network: it can wait for seconds.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) for a service level or flow label that cannot be; [`Error::Verb`](crate::Error::Verb) if nobody answers
    /// for the address, or it is not one of Ethernet. See `ibv_resolve_eth_l2_from_gid` in `verbs.h`.
    #[doc(alias = "ibv_resolve_eth_l2_from_gid")]
    pub fn resolve_link_address(&self, address: &Address) -> Result<(MacAddress, Option<u16>)> {
        let (verb, resolve) = verb!(self.library(), ibv_resolve_eth_l2_from_gid)?;
        let mut attributes = address.to_raw()?;
        let (mut mac, mut vlan) = ([0; 6], u16::MAX);
        // SAFETY: `raw` is live, and the three others are valid places, the array one of six bytes.
        let returned =
            unsafe { resolve(self.as_raw(), &raw mut attributes, mac.as_mut_ptr(), &raw mut vlan) };
        verb.status(returned)?;
        Ok((MacAddress(mac), (vlan <= 0xfff).then_some(vlan)))
    }
}
