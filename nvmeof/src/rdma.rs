//! The transport over RDMA: a reliable connection for each queue, made by the connection manager.
//! NVMe over RDMA Transport Specification 1.1.
//!
//! A command capsule is one send, and a response capsule arrives in one of the receives that are
//! posted for all commands that can be in flight. The data of commands is moved by the target, with
//! reads and writes of its own.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use ibverbs::{
    Access, CompletionChannel, CompletionQueue, Context, HostBuffer, MemoryRegion, Operations,
    PageAligned, ProtectionDomain, QueuePair, Rc,
    connection::{Event, EventChannel, EventKind, Identifier, Parameters, PortSpace},
};

use crate::{
    Buffer, Error, Memory, Options, Result,
    error::Whole,
    memory::{HostMemory, check_registration},
    rdma_channel::{Link, RdmaChannel},
    transport::{Channel, ChannelParameters, Transport},
    wire::{
        Command,
        rdma::{ConnectionAccept, ConnectionRequest, RejectReason},
    },
};

/// Where one controller is reached, and the device that leads there.
#[derive(Debug)]
pub(crate) struct Rdma {
    /// Tried one after the other.
    addresses: Vec<SocketAddr>,
    source: Option<IpAddr>,
    service_type: Option<u8>,
    /// Made on the device of the first connection; all memory is registered in it.
    domain: Mutex<Option<Arc<ProtectionDomain<'static>>>>,
}

impl Rdma {
    pub(crate) fn new(addresses: Vec<SocketAddr>, options: &Options) -> Self {
        Self {
            addresses,
            source: options.source,
            service_type: options.service_type,
            domain: Mutex::new(None),
        }
    }

    fn open_at(
        &self,
        address: SocketAddr,
        parameters: &ChannelParameters,
    ) -> Result<Box<dyn Channel>> {
        let queue = parameters.queue;
        let failed = |operation| move |error| transport_error(operation, queue, error);
        let deadline = Instant::now() + parameters.timeout;
        let events = EventChannel::create().map_err(failed("opening an event channel"))?;
        let identifier = Identifier::create(&events, PortSpace::TCP)
            .map_err(failed("making a connection identifier"))?;
        if let Some(service_type) = self.service_type {
            let set = identifier.set_type_of_service(service_type);
            set.map_err(failed("setting the type of service"))?;
        }
        let left = || deadline.saturating_duration_since(Instant::now());
        let expect = |kind: EventKind, operation: &'static str| -> Result<Event> {
            let waited = events.wait_event(left()).map_err(failed(operation))?;
            let event = waited.ok_or(Error::TimedOut { operation, after: parameters.timeout })?;
            event.expect(kind).map_err(|error| rejected(operation, queue, error))
        };

        let source = self.source.map(|source| SocketAddr::new(source, 0));
        identifier
            .resolve_address(source, address, left())
            .map_err(failed("resolving the address"))?;
        expect(EventKind::ADDRESS_RESOLVED, "resolving the address")?;
        identifier.resolve_route(left()).map_err(failed("resolving the route"))?;
        expect(EventKind::ROUTE_RESOLVED, "resolving the route")?;

        let context = identifier.context().map_err(failed("opening the device"))?;
        let domain = self.domain(&context, queue)?;
        let entries = u32::from(parameters.entries);
        let completions =
            CompletionChannel::create(&context).map_err(failed("making a completion channel"))?;
        let completions = Arc::new(completions);
        // Every receive and every send that is posted can complete at once.
        let completion_queue = CompletionQueue::builder(&context, 3 * entries)
            .channel(&completions)
            .create()
            .map_err(failed("making a completion queue"))?;
        let completion_queue = Arc::new(completion_queue);
        let pair = |inline| {
            QueuePair::<Rc, _>::builder(&domain, &completion_queue, &completion_queue)
                .max_send_requests(2 * entries)
                .max_receive_requests(entries)
                .max_inline(inline)
                .operations(Operations::SEND)
                .create()
        };
        let inline = u32::try_from(Command::BYTES).unwrap_or(0);
        // A device without inline data fetches commands from memory, a moment later.
        let pair = pair(inline).or_else(|_| pair(0)).map_err(failed("making a queue pair"))?;
        let pair = identifier.initialize(pair).map_err(failed("initializing the queue pair"))?;

        let request = ConnectionRequest {
            queue,
            host_receives: parameters.entries,
            host_sends: parameters.entries,
            controller_id: parameters.controller_id,
        };
        // The target reads and writes memory of ours, and we none of its.
        let agreed = Parameters::new()
            .access(Access::REMOTE_READ | Access::REMOTE_WRITE)
            .private_data(request.to_bytes())
            .outgoing_reads(0);
        identifier.connect(&pair, &agreed).map_err(failed("connecting"))?;
        let answer = events.wait_event(left()).map_err(failed("connecting"))?;
        let answer =
            answer.ok_or(Error::TimedOut { operation: "connecting", after: parameters.timeout })?;
        let private_data = answer.private_data().to_vec();
        let pair = identifier
            .establish(pair, &agreed, answer)
            .map_err(|error| rejected("connecting", queue, error))?;
        let entries = agreed_entries(&private_data, parameters)?;

        let link = Link::new(queue, events, identifier, completions);
        let channel = RdmaChannel::new(pair, completion_queue, link, &domain, parameters, entries)?;
        Ok(Box::new(channel))
    }

    /// The domain, made if this is the first connection.
    fn domain(&self, context: &Arc<Context>, queue: u16) -> Result<Arc<ProtectionDomain<'static>>> {
        let mut domain = self.domain.lock().unwrap_or_else(PoisonError::into_inner);
        match &*domain {
            Some(domain) if domain.context().as_raw() == context.as_raw() => Ok(Arc::clone(domain)),
            Some(_) => Err(Error::Unsupported {
                what: "connecting through another device",
                reason: "memory is registered with the one that led to the target before; bring \
                         that up again, or connect anew",
            }),
            None => {
                let new = ProtectionDomain::allocate(context).map_err(|error| {
                    transport_error("allocating a protection domain", queue, error)
                })?;
                Ok(Arc::clone(domain.insert(Arc::new(new))))
            }
        }
    }
}

impl Transport for Rdma {
    fn open(&self, parameters: &ChannelParameters) -> Result<Box<dyn Channel>> {
        let mut last = None;
        for address in &self.addresses {
            match self.open_at(*address, parameters) {
                Ok(channel) => return Ok(channel),
                Err(error) => {
                    let queue = parameters.queue;
                    log::debug!("queue {queue} cannot reach {address}: {}", Whole(&error));
                    last = Some(error);
                }
            }
        }
        Err(last.unwrap_or(Error::Closed))
    }

    fn allocate(&self, length: usize) -> Result<Buffer> {
        let domain = self.protection_domain().ok_or(Error::Closed)?;
        let region = register(&domain, length)
            .map_err(|error| transport_error("registering memory", 0, error))?;
        Ok(Buffer::new(Box::new(region)))
    }

    fn protection_domain(&self) -> Option<Arc<ProtectionDomain<'static>>> {
        self.domain.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What data needs to be reached by the target in both directions.
pub(crate) const DATA_ACCESS: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE);

fn register(
    domain: &Arc<ProtectionDomain<'static>>,
    length: usize,
) -> ibverbs::Result<MemoryRegion<'static, PageAligned>> {
    MemoryRegion::register(domain, PageAligned::new(length)?, DATA_ACCESS)
}

impl<B: ibverbs::Buffer> Memory for MemoryRegion<'_, B>
where
    Self: Send,
{
    fn address(&self) -> u64 {
        ibverbs::Region::address(self)
    }

    fn remote_key(&self) -> u32 {
        ibverbs::Region::remote_key(self).0
    }

    fn length(&self) -> usize {
        self.len()
    }

    fn copy_to(&self, offset: usize, into: &mut [u8]) -> bool {
        self.shared_bytes().is_some_and(|bytes| bytes.read(offset, into).is_ok())
    }

    fn check_registration(&self, domain: &ProtectionDomain<'_>, rights: Access) -> Result<()> {
        check_registration((self.protection_domain(), self.access()), (domain, rights))
    }
}

impl<B: HostBuffer> HostMemory for MemoryRegion<'static, B>
where
    Self: Send + Sync,
{
    fn copy_from(&self, offset: usize, from: &[u8]) -> bool {
        self.bytes().write(offset, from).is_ok()
    }
}

pub(crate) fn transport_error(
    operation: &'static str,
    queue: u16,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Error {
    Error::Transport { operation, queue, source: source.into() }
}

/// The target's own reason, if it is a rejection that has one.
fn rejected(operation: &'static str, queue: u16, error: ibverbs::Error) -> Error {
    if let ibverbs::Error::Rejected { reason, private_data, .. } = &error
        && *reason == ibverbs::connection::RejectReason::BY_THE_PROGRAM
        && let Ok(reason) = RejectReason::parse(private_data)
    {
        return Error::Rejected { queue, reason };
    }
    transport_error(operation, queue, error)
}

/// The entries of the submission queue: as many as were asked for, or as few as the target has receives for commands.
/// A command more than that would find no receive, and stop the connection for a while or for good.
///
/// Every target takes the commands of an admin queue, which is as short as the specification allows.
pub(crate) fn agreed_entries(private_data: &[u8], parameters: &ChannelParameters) -> Result<u16> {
    let ChannelParameters { queue, entries: asked, .. } = *parameters;
    let receives = ConnectionAccept::parse(private_data)?.controller_receives;
    // One entry stays free.
    let entries = receives.saturating_add(1).min(asked);
    let too_few = |rule| Error::Malformed {
        structure: "connection accept",
        field: "controller receive queue size",
        found: u64::from(receives),
        rule,
    };
    if receives == 0 {
        return Err(too_few("takes no command at all"));
    }
    if queue == 0 && entries < asked {
        return Err(too_few("is less than the 31 commands that every admin queue takes"));
    }
    if entries < asked {
        log::info!(
            "the target takes {receives} commands at once on queue {queue}, of {}",
            asked - 1
        );
    }
    Ok(entries)
}

/// How long to wait for a device or an event at a time, in the form that poll takes.
pub(crate) fn timespec(at_most: Duration) -> rustix::event::Timespec {
    rustix::event::Timespec {
        tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(at_most.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agreed(queue: u16, asked: u16, receives: u16) -> Result<u16> {
        let parameters = ChannelParameters {
            queue,
            controller_id: 1,
            entries: asked,
            in_capsule_bytes: 0,
            timeout: Duration::ZERO,
        };
        let accept = ConnectionAccept { controller_receives: receives };
        agreed_entries(&accept.to_bytes(), &parameters)
    }

    #[test]
    fn a_queue_is_as_long_as_both_sides_can() {
        for (receives, entries) in
            [(1, 2), (5, 6), (126, 127), (127, 128), (128, 128), (u16::MAX, 128)]
        {
            assert_eq!(agreed(1, 128, receives).unwrap(), entries);
        }
        assert_eq!(agreed(1, 2, 1).unwrap(), 2);
        assert_eq!(agreed(0, 32, 31).unwrap(), 32);
    }

    #[test]
    fn a_target_that_takes_no_command_or_too_few_on_the_admin_queue_is_refused() {
        for (queue, asked, receives) in [(1, 128, 0), (0, 32, 0), (0, 32, 30)] {
            let error = agreed(queue, asked, receives).unwrap_err();
            assert!(matches!(error, Error::Malformed { .. }), "{error}");
        }
    }
}
