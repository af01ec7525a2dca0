//! Unreliable datagrams.

use example_support::AnyError;
use ibverbs::{
    AddressHandle, DatagramInfo, DatagramOptions, QueuePair, RemoteSegment, RoutingHeader, SendWr,
    Ud,
};

use super::{Lane, Local, QUEUE_KEY, Setup, Wire, impossible, sized};
use crate::perf::plan::Operation;

/// Where a peer's datagrams go.
pub(crate) struct Peer<'a> {
    handle: AddressHandle<'a>,
    info: DatagramInfo,
}

impl Wire for Ud {
    type Unmet<'a> = QueuePair<'a, Self>;
    type Peer<'a> = Peer<'a>;
    const HEADER: usize = RoutingHeader::LENGTH;
    const LOSSY: bool = true;

    fn make<'a>(setup: &Setup<'a>) -> Result<(Self::Unmet<'a>, Vec<u8>), AnyError> {
        let builder = setup.domain.queue_pair::<Self>(setup.sends, setup.receives);
        let options = DatagramOptions::new(setup.port, QUEUE_KEY);
        let pair = sized(builder, setup).create()?.activate(&options)?;
        let told = pair.datagram_endpoint(&options).to_bytes();
        Ok((pair, told.to_vec()))
    }

    fn meet<'a>(
        setup: &Setup<'a>,
        pair: Self::Unmet<'a>,
        told: &[u8],
    ) -> Result<Lane<'a, Self>, AnyError> {
        let info = DatagramInfo::from_bytes(told)?;
        let address = info
            .address(setup.port)
            .service_level(setup.plan.service_level)
            .traffic_class(setup.plan.traffic_class);
        let handle = AddressHandle::create(setup.domain, &address)?;
        Ok(Lane { pair, peer: Peer { handle, info } })
    }

    fn request<'m>(
        operation: Operation,
        local: Local<'m>,
        _: &RemoteSegment,
        peer: &'m Self::Peer<'_>,
    ) -> Result<SendWr<'m, Self>, AnyError> {
        match (operation, local) {
            (Operation::Send, Local::From(from)) => {
                Ok(SendWr::send_to(from, peer.info.destination(&peer.handle)))
            }
            _ => Err(impossible("unreliable datagram")),
        }
    }
}
