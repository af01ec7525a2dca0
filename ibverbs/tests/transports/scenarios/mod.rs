//! What must hold on every device, by either way of posting. The folder that includes this says which device.

mod attributes;
mod datagrams;
mod draining;
mod halves;
mod persistence;
mod shared_receives;
mod unreliable;
mod windows;

#[path = "../../common/host.rs"]
mod host;

use std::time::Duration;

use ibverbs::{
    ConnectOptions, Connected, Operations, Posting, QueuePair, Receiving, Reset, Transport,
};

pub(crate) use self::host::{ALL, End, Host, PATIENCE, next, pattern, within};

/// Long enough for what should not come to come, if it came.
pub(crate) const A_WHILE: Duration = Duration::from_millis(300);

impl Host {
    /// A queue pair with queues and memory of its own, made for all that its transport has in common.
    pub(crate) fn end<T: Transport>(&self, posting: Posting) -> End<T, Reset> {
        self.end_for(posting, Operations::COMMON).unwrap()
    }

    pub(crate) fn end_for<T: Transport>(
        &self,
        posting: Posting,
        operations: Operations,
    ) -> ibverbs::Result<End<T, Reset>> {
        let (sends, receives) = (self.queue(64), self.queue(64));
        let pair = QueuePair::<T, Reset>::builder(&self.domain, &sends, &receives)
            .max_send_segments(4)
            .max_inline(64)
            .operations(operations)
            .posting(posting)
            .create()?;
        Ok(End { pair, sends, receives, memory: self.region(vec![0; 8192], ALL) })
    }

    /// Two queue pairs of this host, connected to each other.
    pub(crate) fn ends<T: Connected>(&self, posting: Posting) -> (End<T>, End<T>) {
        self.connect(self.end(posting), self.end(posting))
    }

    pub(crate) fn connect<T: Connected>(
        &self,
        a: End<T, Reset>,
        b: End<T, Reset>,
    ) -> (End<T>, End<T>) {
        let options = ConnectOptions::new(&self.port).access(ALL);
        let (to_a, to_b) = (a.pair.endpoint(&self.port), b.pair.endpoint(&self.port));
        let a = a.map(|pair| pair.connect(&to_b, &options).unwrap());
        let b = b.map(|pair| pair.connect(&to_a, &options).unwrap());
        (a, b)
    }
}

impl<T: Receiving> End<T> {
    /// What the memory holds.
    pub(crate) fn bytes(&self, start: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.bytes().read(start, &mut bytes).unwrap();
        bytes
    }
}
