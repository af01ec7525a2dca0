//! Unreliable datagrams.

use efa::EndpointInfo;
use example_support::AnyError;
use ibverbs::{
    Address, AddressHandle, DatagramOptions, QueuePair, RemoteSegment, RoutingHeader, SendWr, Ud,
};

use super::{Lane, Local, QUEUE_KEY, Setup, Wire, impossible, sized};
use crate::perf::plan::Operation;

/// Where a peer's datagrams go.
pub(crate) struct Peer<'a> {
    handle: AddressHandle<'a>,
    endpoint: EndpointInfo,
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
        let mut told = EndpointInfo::new(&pair, setup.port, QUEUE_KEY).to_bytes().to_vec();
        told.extend(setup.port.attributes.lid().to_be_bytes());
        Ok((pair, told))
    }

    fn meet<'a>(
        setup: &Setup<'a>,
        pair: Self::Unmet<'a>,
        told: &[u8],
    ) -> Result<Lane<'a, Self>, AnyError> {
        let Some((endpoint, lid)) = told.split_last_chunk::<2>() else {
            return Err("the other rank told nothing of its queue pair".into());
        };
        let endpoint = EndpointInfo::from_bytes(endpoint)?;
        let address = Address::new(setup.port, endpoint.gid, u16::from_be_bytes(*lid))
            .service_level(setup.plan.service_level)
            .traffic_class(setup.plan.traffic_class);
        let handle = AddressHandle::create(setup.domain, &address)?;
        Ok(Lane { pair, peer: Peer { handle, endpoint } })
    }

    fn request<'m>(
        operation: Operation,
        local: Local<'m>,
        _: &RemoteSegment,
        peer: &'m Self::Peer<'_>,
    ) -> Result<SendWr<'m, Self>, AnyError> {
        let EndpointInfo { number, queue_key, .. } = peer.endpoint;
        match (operation, local) {
            (Operation::Send, Local::From(from)) => {
                Ok(SendWr::send_to(from, &peer.handle, number, queue_key))
            }
            _ => Err(impossible("unreliable datagram")),
        }
    }
}
