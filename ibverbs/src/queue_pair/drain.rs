//! Draining: the end of everything that was posted.

use std::{io, thread, time::Duration};

use super::{QueuePair, post::PostError};
use crate::{
    Access, Address, AddressHandle, Addressing, Completion, CompletionQueue, DeviceSelector, Error,
    MemoryRegion, Receiving, RecvWr, Region, Result, SendWr, Transport, Verb, descriptor::Deadline,
    work_request::Gather,
};

impl<T: Transport> QueuePair<'_, T> {
    /// The number of the requests that [`drain`](Self::drain) posts; no other may have it.
    pub const DRAIN_ID: u64 = u64::MAX;

    /// Ends everything that was posted: moves the queue pair to its error state, and polls until the last request
    /// of each queue has completed. [`reset`](Self::reset) takes it from there to a new connection.
    ///
    /// Both completion queues are polled by this call alone; `each` sees everything that comes, also of other queue
    /// pairs that share them. Receives of a [`SharedReceiveQueue`](crate::SharedReceiveQueue) stay in it. The queues need room for one
    /// completion more each.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] with `ETIMEDOUT` if the last completions did not come within `patience`: somebody else polls the same
    /// queues, they have overflowed, or the device is gone. [`Error::Transition`] if it cannot be moved.
    pub fn drain(&self, patience: Duration, mut each: impl FnMut(&Completion)) -> Result<()>
    where
        T: Receiving,
    {
        let deadline = Deadline::after(patience);
        // Before the change, since not every device looks at receives that were posted after it.
        let mut receiving = self.handle.shared.is_none();
        let memory = self.memory_of_last_receive()?;
        let mut posted = !receiving || self.post_last_receive(memory.as_deref())?;
        self.fail()?;
        let mut sending = true;
        let mut sent = self.post_last_send()?;
        loop {
            let is_last = |done: &Completion| {
                done.id() == Self::DRAIN_ID && done.queue_pair() == self.number()
            };
            let both = self.send_queue().as_raw() == self.receive_queue().as_raw();
            let mut idle = true;
            reap(self.send_queue(), &mut idle, |done| match is_last(done) {
                true if both && is_receive(done, receiving, sending) => receiving = false,
                true => sending = false,
                false => each(done),
            })?;
            if !both {
                reap(self.receive_queue(), &mut idle, |done| match is_last(done) {
                    true => receiving = false,
                    false => each(done),
                })?;
            }
            if !sending && !receiving {
                return Ok(());
            }
            if !posted && self.post_last_receive(memory.as_deref())? {
                posted = true;
                self.fail()?;
            }
            sent = sent || self.post_last_send()?;
            // Also while others that share the queues keep them busy.
            if deadline.has_passed() {
                return Err(timed_out());
            }
            if idle {
                thread::yield_now();
            }
        }
    }

    /// A byte for the last receive where one without memory is not allowed. It stays as it is.
    fn memory_of_last_receive(&self) -> Result<Option<MemoryRegion<'_, Vec<u8>>>> {
        if self.handle.shared.is_some() || self.handle.capabilities.least_receive_segments == 0 {
            return Ok(None);
        }
        self.protection_domain().register(vec![0], Access::LOCAL_WRITE).map(Some)
    }

    /// `false` if the queue is full.
    fn post_last_receive(&self, memory: Option<&Region>) -> Result<bool>
    where
        T: Receiving,
    {
        let count = usize::try_from(self.handle.capabilities.least_receive_segments).unwrap_or(0);
        let segments = match memory {
            Some(memory) => vec![memory.segment(..)?; count],
            None => Vec::new(),
        };
        posted(self.post_receive(&mut [RecvWr::to(Self::DRAIN_ID, &segments[..])]))
    }

    /// `false` if the queue is full. What the request asks for does not matter, since it is not carried out; it
    /// must be something that the queue pair was made for.
    fn post_last_send(&self) -> Result<bool> {
        let address = match T::ADDRESSING {
            Addressing::Datagram => Some(self.own_address()?),
            Addressing::Peer | Addressing::SharedQueue => None,
        };
        let operations = [
            rdma_sys::IBV_WR_SEND,
            rdma_sys::IBV_WR_RDMA_WRITE,
            rdma_sys::IBV_WR_RDMA_READ,
            rdma_sys::IBV_WR_ATOMIC_FETCH_AND_ADD,
            rdma_sys::IBV_WR_ATOMIC_CMP_AND_SWP,
        ];
        let mut refused = None;
        for operation in operations {
            let mut wr = SendWr::<T>::new(operation, Gather::List(&[]));
            if let Some(address) = &address {
                wr.raw.wr.ud.ah = address.as_raw();
            }
            match self.post_send(&mut [wr.id(Self::DRAIN_ID).signaled()]) {
                Err(error) if matches!(error.error(), Error::Invalid { .. }) => {
                    refused = Some(error);
                }
                other => return posted(other),
            }
        }
        refused.map_or(Ok(false), |error| Err(error.into_error()))
    }

    /// The address of this side, for a datagram that is never sent.
    fn own_address(&self) -> Result<AddressHandle<'_>> {
        let context = self.protection_domain().context();
        let selector = DeviceSelector::named(context.device().name());
        let selector = match self.query()?.port() {
            Some(port) => selector.port(port),
            None => selector,
        };
        let port = context.local_port(&selector)?;
        let address = Address::new(&port, port.gid.gid, port.attributes.lid());
        self.protection_domain().create_address_handle(&address)
    }
}

/// Takes some of what is there off a queue.
fn reap(queue: &CompletionQueue<'_>, idle: &mut bool, each: impl FnMut(&Completion)) -> Result<()> {
    let mut slots = Completion::slots::<16>();
    let found = queue.poll(&mut slots)?;
    *idle &= found.is_empty();
    found.iter().for_each(each);
    Ok(())
}

/// Whether a last completion on the only queue is that of the receives. A flushed one does not say: if both are
/// awaited either may come first, and both must come.
fn is_receive(done: &Completion, receiving: bool, sending: bool) -> bool {
    match done.outcome() {
        Ok(work) => work.operation().is_receive(),
        Err(_) => receiving || !sending,
    }
}

fn posted(result: std::result::Result<(), PostError>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.errno() == Some(libc::ENOMEM) => Ok(false),
        Err(error) => Err(error.into_error()),
    }
}

#[cold]
fn timed_out() -> Error {
    Error::Verb {
        verb: Verb::new("ibv_poll_cq"),
        remedy: Some(
            "the last requests did not complete in time: somebody else polls the completion queues, \
             they have overflowed, or the device is gone"
                .into(),
        ),
        source: io::Error::from_raw_os_error(libc::ETIMEDOUT),
    }
}
