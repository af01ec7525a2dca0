//! Scalable reliable datagrams of EFA.

use efa::{EndpointInfo, Peer, Srd};
use example_support::AnyError;
use ibverbs::{FailedWork, Operations, QueuePair, RemoteSegment, SendWr};

use super::{Lane, Local, QUEUE_KEY, SPARE_SENDS, Setup, Wire, impossible};
use crate::perf::{options::Verb, plan::Operation};

impl Wire for Srd {
    type Unmet<'a> = QueuePair<'a, Self>;
    type Peer<'a> = Peer<'a>;
    const ORDERED: bool = false;

    fn make<'a>(setup: &Setup<'a>) -> Result<(Self::Unmet<'a>, Vec<u8>), AnyError> {
        let plan = setup.plan;
        let operations = match plan.verb {
            Verb::Write => Operations::WRITE | Operations::WRITE_WITH_IMMEDIATE,
            Verb::Read => Operations::READ,
            _ => Operations::SEND,
        };
        let builder = efa::queue_pair::<Self>(setup.domain, setup.sends, setup.receives)
            .max_send_requests(plan.tx_depth + SPARE_SENDS)
            .max_receive_requests(plan.rx_depth)
            .max_inline(setup.inline)
            .service_level(plan.service_level)
            .operations(operations);
        let inline_writes = plan.verb == Verb::Write && setup.inline > 0;
        let builder = if inline_writes { builder.inline_writes() } else { builder };
        let pair = builder.prepare(setup.port, QUEUE_KEY)?;
        let told = EndpointInfo::new(&pair, setup.port, QUEUE_KEY).to_bytes();
        Ok((pair, told.to_vec()))
    }

    fn meet<'a>(
        setup: &Setup<'a>,
        pair: Self::Unmet<'a>,
        told: &[u8],
    ) -> Result<Lane<'a, Self>, AnyError> {
        let peer = EndpointInfo::from_bytes(told)?.peer(setup.domain, setup.port)?;
        Ok(Lane { pair, peer })
    }

    fn failure(work: FailedWork) -> AnyError {
        efa::Failure::from(work).into()
    }

    fn request<'m>(
        operation: Operation,
        local: Local<'m>,
        remote: &RemoteSegment,
        peer: &'m Self::Peer<'_>,
    ) -> Result<SendWr<'m, Self>, AnyError> {
        let to = peer.destination();
        match (operation, local) {
            (Operation::Write, Local::From(from)) => Ok(SendWr::write_to(from, remote, to)),
            (Operation::WriteWithImmediate, Local::From(from)) => {
                Ok(SendWr::write_with_imm_to(from, remote, to, 0))
            }
            (Operation::Send, Local::From(from)) => Ok(SendWr::send_to(from, to)),
            (Operation::Read, Local::Into(into)) => Ok(SendWr::read_from(into, remote, to)),
            _ => Err(impossible("SRD")),
        }
    }
}
