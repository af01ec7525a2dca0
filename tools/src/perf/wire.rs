//! The transports: how queue pairs are made and find each other, and how requests name the other side.

mod connected;
mod datagram;
mod srd;

use example_support::AnyError;
use ibverbs::{
    Access, CompletionQueue, ConnectOptions, FailedWork, Gather, LocalPort, ProtectionDomain,
    QueueKey, QueuePair, QueuePairBuilder, Receiving, RemoteSegment, Scatter, SendWr,
};

use super::plan::{Operation, Plan};

/// What datagram queue pairs accept.
const QUEUE_KEY: QueueKey = QueueKey(0x1111_1111);
/// Room in a send queue beside what is measured: for credits.
pub(crate) const SPARE_SENDS: u32 = 8;

/// What queue pairs are made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup<'a> {
    pub(crate) domain: &'a ProtectionDomain<'a>,
    pub(crate) sends: &'a CompletionQueue<'a>,
    pub(crate) receives: &'a CompletionQueue<'a>,
    pub(crate) port: &'a LocalPort,
    pub(crate) plan: &'a Plan,
    pub(crate) inline: u32,
    /// What the other side may do to this one's memory.
    pub(crate) incoming: Access,
}

/// A queue pair that is ready, and the way to its peer.
pub(crate) struct Lane<'a, T: Wire> {
    pub(crate) pair: QueuePair<'a, T>,
    pub(crate) peer: T::Peer<'a>,
}

/// The memory of a request: what is sent, or where what is read goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Local<'m> {
    From(Gather<'m>),
    Into(Scatter<'m>),
}

/// A transport that can be measured.
pub(crate) trait Wire: Receiving + Sized {
    /// A queue pair that does not know its peer yet.
    type Unmet<'a>;
    /// What requests name beside the queue pair.
    type Peer<'a>;
    /// Bytes in front of what arrives in a receive.
    const HEADER: usize = 0;
    /// Whether messages can get lost without a word.
    const LOSSY: bool = false;
    /// Whether requests complete in the order in which they were posted, and one that reports speaks for those before it.
    const ORDERED: bool = true;
    /// Whether a receiver can tell by a write into the sender's memory how many messages it has taken.
    const CREDITS: bool = false;

    /// Makes a queue pair, and says where it is reached.
    fn make<'a>(setup: &Setup<'a>) -> Result<(Self::Unmet<'a>, Vec<u8>), AnyError>;

    /// Makes it ready to talk to the one that `told`.
    fn meet<'a>(
        setup: &Setup<'a>,
        unmet: Self::Unmet<'a>,
        told: &[u8],
    ) -> Result<Lane<'a, Self>, AnyError>;

    /// A failed request, in the words of who knows it best.
    fn failure(work: FailedWork) -> AnyError {
        work.into()
    }

    /// A request; `remote` is not looked at where it makes no sense.
    fn request<'m>(
        operation: Operation,
        local: Local<'m>,
        remote: &RemoteSegment,
        peer: &'m Self::Peer<'_>,
    ) -> Result<SendWr<'m, Self>, AnyError>;
}

/// The value that a compare-and-swap leaves, and what it looks for.
pub(crate) const SWAPPED: u64 = 0x5a5a_5a5a_5a5a_5a5a;

/// How long queues are.
fn sized<'a, T: Wire>(
    builder: QueuePairBuilder<'a, T>,
    setup: &Setup<'_>,
) -> QueuePairBuilder<'a, T> {
    let Plan { tx_depth, rx_depth, posting, .. } = setup.plan;
    let builder = builder
        .max_send_requests(*tx_depth + SPARE_SENDS)
        .max_receive_requests(*rx_depth)
        .max_inline(setup.inline);
    match posting {
        Some(posting) => builder.posting(*posting),
        None => builder,
    }
}

/// How connections behave.
fn connection(setup: &Setup<'_>) -> ConnectOptions {
    let Plan { mtu, service_level, traffic_class, qp_timeout, outstanding, .. } = setup.plan;
    let timeout = match qp_timeout {
        0 => std::time::Duration::ZERO,
        power => std::time::Duration::from_nanos(4096 << power),
    };
    let mut options = ConnectOptions::new(setup.port)
        .access(setup.incoming)
        .service_level(*service_level)
        .traffic_class(*traffic_class)
        .timeout(timeout);
    if let Some(mtu) = mtu {
        options = options.mtu(*mtu);
    }
    if let Some(count) = outstanding {
        options = options.outgoing_reads(*count);
    }
    options
}

fn impossible(transport: &str) -> AnyError {
    format!("{transport} has no such operation").into()
}
