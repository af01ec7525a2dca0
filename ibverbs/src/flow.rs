//! Flows: rules that bring frames of a port to a queue pair.
#![expect(unsafe_code, reason = "owns an ibv_flow")]

mod encoding;
pub(crate) mod packets;
pub(crate) mod target;

use std::{fmt, ptr::NonNull};

use self::{encoding::Encoded, target::SteeringTarget};
use crate::{Error, FlowCounters, PacketMatch, Parent, PortNumber, Result, Verb};

/// A rule in force: as long as it is there, frames that come to the port and fit it go to its queue pair, and not to the
/// network stack of the kernel.
///
/// Made by [`Flow::create`]. It borrows or shares its queue pair and its counters, which so cannot end before it.
///
/// Not tried on hardware: on the software device only.
#[must_use = "the rule ends when this is dropped"]
pub struct Flow<'a> {
    /// From `ibv_create_flow` on `target`; freed only by drop.
    raw: NonNull<rdma_sys::ibv_flow>,
    target: SteeringTarget<'a>,
    /// Held so that they outlive the flow.
    counters: Option<Parent<'a, FlowCounters<'a>>>,
}

impl<'a> Flow<'a> {
    /// Brings frames that come to a port to a queue pair of raw packets, or to one that spreads them over work queues;
    /// either is borrowed (`&pair`) or shared (`&Arc<…>`). Enters the kernel, allocates.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the counters are of another device, or if the rule contradicts itself; [`Error::Unsupported`] if
    /// the device has no flows; [`Error::Verb`] otherwise, `EPERM` without the capability `CAP_NET_RAW`, `EINVAL` or
    /// `EOPNOTSUPP` for headers, fields or actions that the device does not know or a port that it does not have, `ENXIO` if its
    /// flow steering is switched off. See `ibv_create_flow(3)`.
    #[doc(alias = "ibv_create_flow")]
    pub fn create(
        target: impl Into<SteeringTarget<'a>>,
        port: PortNumber,
        rule: FlowRule<'a>,
    ) -> Result<Self> {
        let target = target.into();
        if rule.discards && rule.tag.is_some() {
            return Err(Error::Invalid {
                what: "packets that are discarded have a tag, which nobody would see".into(),
                remedy: "leave out `tag` or `discard`",
            });
        }
        if rule.lets_pass && rule.kind != rdma_sys::IBV_FLOW_ATTR_NORMAL {
            return Err(Error::Invalid {
                what: "a rule for all that is left, or for copies, cannot let packets pass".into(),
                remedy: "leave out `let_pass`: only rules for headers can",
            });
        }
        if let Some(counters) = &rule.counters
            && counters.context().as_raw() != target.0.context().as_raw()
        {
            return Err(Error::Invalid {
                what: "a flow's counters and its queue pair are of different contexts".into(),
                remedy: "make both of them from one `Context`",
            });
        }
        let verb = Verb::new("ibv_create_flow");
        let mut encoded = Encoded::new(&rule, port);
        // SAFETY: the queue pair is held; the specifications stand behind the attributes as these say, and the
        // counters that they name are held.
        let raw = unsafe { rdma_sys::ibv_create_flow(target.0.raw(), encoded.as_mut_ptr()) };
        let raw = verb.object(verb.find(raw)?)?;
        Ok(Self { raw, target, counters: rule.counters })
    }

    /// What it counts in, if its rule counts.
    #[must_use]
    pub fn counters(&self) -> Option<&FlowCounters<'a>> {
        self.counters.as_deref()
    }

    /// The C object, valid as long as this is.
    #[must_use]
    pub fn as_raw(&self) -> *mut rdma_sys::ibv_flow {
        self.raw.as_ptr()
    }
}

impl Drop for Flow<'_> {
    fn drop(&mut self) {
        // SAFETY: `raw` is live, and nothing reads it after this. Queue pair and counters are dropped later; if this is
        // refused, so is their end, and they are leaked with it.
        if let Some(returned) = unsafe { rdma_sys::ibv_destroy_flow(self.raw.as_ptr()) } {
            Verb::new("ibv_destroy_flow").log_refusal(returned);
        }
    }
}

impl fmt::Debug for Flow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flow")
            .field("device", self.target.0.context().device())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

// SAFETY: verbs objects are by default safe to use from many threads, ibv_alloc_td(3).
unsafe impl Send for Flow<'_> {}
// SAFETY: as for `Send`; nothing is changed through `&self`.
unsafe impl Sync for Flow<'_> {}

/// Which frames of a port a flow takes, and what becomes of them.
///
/// # Examples
///
/// Everything of a type of Ethernet frame to this port's address, counted:
///
/// ```
/// use ibverbs::{
///     EthernetMatch, Flow, FlowCounters, FlowRule, MacAddress, PacketMatch, PortNumber, QueuePair,
///     RawPacket,
/// };
///
/// fn take<'a>(
///     pair: &'a QueuePair<'a, RawPacket>,
///     port: PortNumber,
///     address: MacAddress,
///     counters: &'a FlowCounters<'a>,
/// ) -> ibverbs::Result<Flow<'a>> {
///     let frames = EthernetMatch::new().destination(address).ether_type(0x88b5);
///     let rule = FlowRule::new(PacketMatch::new().ethernet(frames)).count(counters);
///     Flow::create(pair, port, rule)
/// }
/// ```
#[derive(Debug)]
#[must_use = "nothing changes before `Flow::create`"]
pub struct FlowRule<'a> {
    kind: rdma_sys::ibv_flow_attr_type,
    packets: PacketMatch,
    priority: u16,
    lets_pass: bool,
    tag: Option<u32>,
    discards: bool,
    counters: Option<Parent<'a, FlowCounters<'a>>>,
}

impl<'a> FlowRule<'a> {
    /// Takes packets that have these headers.
    #[doc(alias = "IBV_FLOW_ATTR_NORMAL")]
    pub fn new(packets: PacketMatch) -> Self {
        Self::of_kind(rdma_sys::IBV_FLOW_ATTR_NORMAL, packets)
    }

    /// Takes every frame to a group that no other rule takes.
    #[doc(alias = "IBV_FLOW_ATTR_MC_DEFAULT")]
    pub fn remaining_multicast() -> Self {
        Self::of_kind(rdma_sys::IBV_FLOW_ATTR_MC_DEFAULT, PacketMatch::new())
    }

    /// Takes every frame that no other rule takes.
    #[doc(alias = "IBV_FLOW_ATTR_ALL_DEFAULT")]
    pub fn remaining() -> Self {
        Self::of_kind(rdma_sys::IBV_FLOW_ATTR_ALL_DEFAULT, PacketMatch::new())
    }

    /// Takes a copy of every frame that the port receives or sends, and changes nothing about where it goes.
    #[doc(alias = "IBV_FLOW_ATTR_SNIFFER")]
    pub fn sniffer() -> Self {
        Self::of_kind(rdma_sys::IBV_FLOW_ATTR_SNIFFER, PacketMatch::new())
    }

    fn of_kind(kind: rdma_sys::ibv_flow_attr_type, packets: PacketMatch) -> Self {
        Self {
            kind,
            packets,
            priority: 0,
            lets_pass: false,
            tag: None,
            discards: false,
            counters: None,
        }
    }

    /// Its place among the rules of the port: a frame that several want goes to the one of the smallest number; 0 if not
    /// set. Which one gets it among those of the same number is up to the device.
    pub fn priority(self, priority: u16) -> Self {
        Self { priority, ..self }
    }

    /// Lets the rules of greater numbers, and the kernel, see its frames too. Only for rules made with [`new`](Self::new).
    #[doc(alias = "IBV_FLOW_ATTR_FLAGS_DONT_TRAP")]
    pub fn let_pass(self) -> Self {
        Self { lets_pass: true, ..self }
    }

    /// Gives its packets a number, which completions carry whose queue was made with
    /// [`CompletionFields::FLOW_TAG`](crate::CompletionFields::FLOW_TAG). Devices have room for 24 bits.
    #[doc(alias = "IBV_FLOW_SPEC_ACTION_TAG")]
    #[doc(alias = "ibv_flow_spec_action_tag")]
    pub fn tag(self, tag: u32) -> Self {
        Self { tag: Some(tag), ..self }
    }

    /// Throws its packets away.
    #[doc(alias = "IBV_FLOW_SPEC_ACTION_DROP")]
    #[doc(alias = "ibv_flow_spec_action_drop")]
    pub fn discard(self) -> Self {
        Self { discards: true, ..self }
    }

    /// Counts its packets, borrowed or shared (`&Arc<…>`). Several rules may count in the same counters.
    #[doc(alias = "IBV_FLOW_SPEC_ACTION_COUNT")]
    #[doc(alias = "ibv_flow_spec_counter_action")]
    pub fn count(self, counters: impl Into<Parent<'a, FlowCounters<'a>>>) -> Self {
        Self { counters: Some(counters.into()), ..self }
    }
}
