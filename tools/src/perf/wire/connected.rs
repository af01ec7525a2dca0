//! Reliable and unreliable connections.

use example_support::AnyError;
use ibverbs::{
    Connected, Gather, QpInfo, QueuePair, Rc, Receiving, RemoteSegment, RemoteWrite, Reset, SendWr,
    Uc,
};

use super::{Lane, Local, SWAPPED, Setup, Wire, connection, impossible, sized};
use crate::perf::plan::Operation;

fn make<'a, T: Wire + Connected>(
    setup: &Setup<'a>,
) -> Result<(QueuePair<'a, T, Reset>, Vec<u8>), AnyError> {
    let builder = setup.domain.queue_pair::<T>(setup.sends, setup.receives);
    let pair = sized(builder, setup).create()?;
    let info = pair.endpoint(setup.port).to_bytes();
    Ok((pair, info.to_vec()))
}

fn meet<'a, T: Wire<Peer<'a> = ()> + Connected>(
    setup: &Setup<'a>,
    pair: QueuePair<'a, T, Reset>,
    told: &[u8],
) -> Result<Lane<'a, T>, AnyError> {
    let pair = pair.connect(&QpInfo::from_bytes(told)?, &connection(setup))?;
    Ok(Lane { pair, peer: () })
}

/// What both transports have.
fn message<'m, T: Connected + Receiving + RemoteWrite>(
    operation: Operation,
    from: Gather<'m>,
    remote: &RemoteSegment,
) -> Result<SendWr<'m, T>, AnyError> {
    match operation {
        Operation::Write => Ok(SendWr::write(from, remote)),
        Operation::WriteWithImmediate => Ok(SendWr::write_with_imm(from, remote, 0)),
        Operation::Send => Ok(SendWr::send(from)),
        _ => Err(impossible(T::NAME)),
    }
}

impl Wire for Rc {
    type Unmet<'a> = QueuePair<'a, Self, Reset>;
    type Peer<'a> = ();
    const CREDITS: bool = true;

    fn make<'a>(setup: &Setup<'a>) -> Result<(Self::Unmet<'a>, Vec<u8>), AnyError> {
        make(setup)
    }

    fn meet<'a>(
        setup: &Setup<'a>,
        unmet: Self::Unmet<'a>,
        told: &[u8],
    ) -> Result<Lane<'a, Self>, AnyError> {
        meet(setup, unmet, told)
    }

    fn request<'m>(
        operation: Operation,
        local: Local<'m>,
        remote: &RemoteSegment,
        (): &'m Self::Peer<'_>,
    ) -> Result<SendWr<'m, Self>, AnyError> {
        let into = match local {
            Local::From(from) => return message(operation, from, remote),
            Local::Into(into) => into,
        };
        let word = match into {
            ibverbs::Scatter::One(word) => Ok(word),
            _ => Err(impossible("an atomic into a list of segments")),
        };
        match operation {
            Operation::Read => Ok(SendWr::read(into, remote)),
            Operation::FetchAndAdd => Ok(SendWr::fetch_and_add(word?, remote, 1)),
            Operation::CompareAndSwap => Ok(SendWr::compare_and_swap(word?, remote, 0, SWAPPED)),
            _ => Err(impossible("reliable connected")),
        }
    }
}

impl Wire for Uc {
    type Unmet<'a> = QueuePair<'a, Self, Reset>;
    type Peer<'a> = ();
    const LOSSY: bool = true;

    fn make<'a>(setup: &Setup<'a>) -> Result<(Self::Unmet<'a>, Vec<u8>), AnyError> {
        make(setup)
    }

    fn meet<'a>(
        setup: &Setup<'a>,
        unmet: Self::Unmet<'a>,
        told: &[u8],
    ) -> Result<Lane<'a, Self>, AnyError> {
        meet(setup, unmet, told)
    }

    fn request<'m>(
        operation: Operation,
        local: Local<'m>,
        remote: &RemoteSegment,
        (): &'m Self::Peer<'_>,
    ) -> Result<SendWr<'m, Self>, AnyError> {
        match local {
            Local::From(from) => message(operation, from, remote),
            Local::Into(_) => Err(impossible("unreliable connected")),
        }
    }
}
