//! Raw packets: a request is a whole Ethernet frame, and so is what is received.
#![expect(unsafe_code, reason = "moves bytes between memory that was checked under the lock")]

use std::mem;

use rdma_sys as c;

use super::{execute::Step, receive::Offer, work::Request};
use crate::{
    completion_queue::Completion,
    ethernet::{
        Arrived, HEADER, LONGEST, LONGEST_STRETCH, SHORTEST, checksum,
        segmentation::{self, Part},
        stored_length,
    },
    fabric::{Fabric, Scratch},
    memory::{Piece, Place},
};

impl Fabric {
    /// Sends one frame. Whether anybody takes it, its sender does not learn.
    pub(super) fn frame(
        &mut self,
        number: u32,
        position: u64,
        request: Request,
        scratch: &mut Scratch,
    ) -> Step {
        let Some(pair) = self.pairs.get(number) else { return Step::Done(0, 0) };
        if request.opcode == c::IBV_WR_TSO {
            return self.stretch(number, position, request, scratch);
        }
        let from = (pair.device, pair.attr.port_num);
        let Ok(moved) = self.near(pair, position, 0, scratch) else {
            return Step::failed(c::IBV_WC_LOC_PROT_ERR);
        };
        let length = usize::try_from(moved).unwrap_or(usize::MAX);
        if !(HEADER..=LONGEST).contains(&length) {
            return Step::failed(c::IBV_WC_LOC_LEN_ERR);
        }
        let mut frame = mem::take(&mut self.frame);
        frame.clear();
        frame.resize(length.max(SHORTEST), 0);
        let to = Piece { place: Place::Host(frame.as_mut_ptr().expose_provenance()), length };
        // SAFETY: the sender's memory was checked under the lock that is held; the target is `frame`.
        let copied = unsafe { self.transfer(&scratch.from, &[to]) };
        if copied.is_ok() {
            if request.flags & c::IBV_SEND_IP_CSUM != 0 {
                checksum::fill(&mut frame);
            }
            self.transmit(from, &frame, &mut scratch.to);
        }
        self.frame = frame;
        match copied {
            Ok(()) => Step::Done(c::IBV_WC_SUCCESS, moved),
            Err(_) => Step::failed(c::IBV_WC_GENERAL_ERR),
        }
    }

    /// Sends a stretch of a stream in packets.
    fn stretch(
        &mut self,
        number: u32,
        position: u64,
        request: Request,
        scratch: &mut Scratch,
    ) -> Step {
        let Some(pair) = self.pairs.get(number) else { return Step::Done(0, 0) };
        let from = (pair.device, pair.attr.port_num);
        let Ok(moved) = self.near(pair, position, 0, scratch) else {
            return Step::failed(c::IBV_WC_LOC_PROT_ERR);
        };
        let length = usize::try_from(moved).unwrap_or(usize::MAX);
        let header = pair.send.header(position).len();
        let size = usize::from(request.segment_size);
        if length > LONGEST_STRETCH || header + size.min(length) > LONGEST {
            return Step::failed(c::IBV_WC_LOC_LEN_ERR);
        }
        let mut stretch = mem::take(&mut self.stretch);
        let mut frame = mem::take(&mut self.frame);
        stretch.clear();
        stretch.resize(length, 0);
        let to = Piece { place: Place::Host(stretch.as_mut_ptr().expose_provenance()), length };
        // SAFETY: the sender's memory was checked under the lock that is held; the target is `stretch`.
        let copied = unsafe { self.transfer(&scratch.from, &[to]) };
        if copied.is_ok() {
            let packets = length.div_ceil(size).max(1);
            for part in 0..packets {
                let offset = part * size;
                let Some(pair) = self.pairs.get(number) else { break };
                frame.clear();
                frame.extend_from_slice(pair.send.header(position));
                let bytes = stretch.get(offset..length.min(offset + size));
                frame.extend_from_slice(bytes.unwrap_or(&[]));
                let last = part + 1 == packets;
                if segmentation::finish(&mut frame, Part { number: part, offset, last }).is_some() {
                    frame.resize(frame.len().max(SHORTEST), 0);
                    self.transmit(from, &frame, &mut scratch.to);
                }
            }
        }
        (self.stretch, self.frame) = (stretch, frame);
        match copied {
            Ok(()) => Step::Done(c::IBV_WC_SUCCESS, moved),
            Err(_) => Step::failed(c::IBV_WC_GENERAL_ERR),
        }
    }

    /// Gives a frame to a pair, or drops it where that pair takes none or has no receive.
    pub(crate) fn receive_frame(&mut self, target: u32, arrived: Arrived<'_>, to: &mut Vec<Piece>) {
        let Some(pair) = self.pairs.get(target) else { return };
        let (wanted, strips) =
            (pair.kind == c::IBV_QPT_RAW_PACKET && self.listens(pair), pair.strips_vlan);
        let Some(inlet) = self.inlet(target, 0).filter(|_| wanted) else { return };
        to.clear();
        let length = u64::try_from(stored_length(arrived.bytes, strips)).unwrap_or(u64::MAX);
        let wr_id = match self.offer(target, inlet, length, to) {
            Offer::Room(wr_id) => wr_id,
            Offer::Nothing => return,
            Offer::Failed(_) => {
                self.broken.push((target, c::IBV_EVENT_QP_REQ_ERR));
                return;
            }
        };
        let received = inlet.received(target, wr_id);
        let Some(stored) = self.store_frame(arrived, strips, to) else {
            self.report_receive(target, inlet, received.ended(c::IBV_WC_GENERAL_ERR));
            self.broken.push((target, c::IBV_EVENT_QP_REQ_ERR));
            return;
        };
        let Completion { byte_len, flow_tag, vlan, wc_flags, .. } = stored;
        let completion = Completion { byte_len, flow_tag, vlan, wc_flags, ..received };
        self.report_receive(target, inlet, completion);
    }
}
