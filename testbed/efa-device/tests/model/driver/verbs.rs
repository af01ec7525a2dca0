//! The objects of verbs, made through the admin queue and used through doorbells.

use super::{ALL_ACCESS, Driver, Payload, QKEY, SRD, u16_at, u32_at};
use efa_device::GuestMemory;

/// Registered memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mr {
    pub(crate) address: u64,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// A buffer in registered memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) key: u32,
}

impl Mr {
    pub(crate) fn local(&self, offset: u64, length: u32) -> Buffer {
        Buffer { address: self.address + offset, length, key: self.lkey }
    }

    pub(crate) fn remote(&self, offset: u64, length: u32) -> Buffer {
        Buffer { address: self.address + offset, length, key: self.rkey }
    }
}

/// A completion queue and how far it was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cq {
    pub(crate) number: u16,
    pub(crate) doorbell: u32,
    pub(crate) base: u64,
    pub(crate) depth: u16,
    pub(crate) read: u16,
}

/// A completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Completion {
    pub(crate) id: u16,
    pub(crate) status: u8,
    pub(crate) flags: u8,
    pub(crate) qp: u16,
    pub(crate) entry: Vec<u8>,
}

impl Completion {
    pub(crate) fn is_receive(&self) -> bool {
        self.flags >> 1 & 3 == 2
    }

    pub(crate) fn operation(&self) -> u8 {
        self.flags >> 4 & 7
    }

    pub(crate) fn is_unsolicited(&self) -> bool {
        self.flags >> 7 == 1
    }

    pub(crate) fn immediate(&self) -> Option<u32> {
        (self.flags >> 3 & 1 == 1).then(|| u32_at(&self.entry, 12))
    }

    /// Length of what was received.
    pub(crate) fn length(&self) -> u32 {
        let low = u32::from(u16_at(&self.entry, 6));
        if self.operation() == 2 { low | u32::from(u16_at(&self.entry, 16)) << 16 } else { low }
    }

    pub(crate) fn address_handle(&self) -> u16 {
        u16_at(&self.entry, 8)
    }

    pub(crate) fn source_qp(&self) -> u16 {
        u16_at(&self.entry, 10)
    }
}

/// A queue pair with what its user must remember.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Qp {
    pub(crate) handle: u32,
    pub(crate) number: u16,
    pub(crate) request_bytes: u32,
    send_memory: u64,
    send_depth: u32,
    pub(crate) send_doorbell: u32,
    pub(crate) receive_doorbell: u32,
    receive_ring: u64,
    receive_depth: u32,
    pub(crate) sent: u16,
    pub(crate) received: u16,
}

/// What to post.
#[derive(Clone, Debug, Default)]
pub(crate) struct Post {
    pub(crate) id: u16,
    pub(crate) wide_id: [u8; 6],
    pub(crate) operation: u8,
    pub(crate) immediate: Option<u32>,
    pub(crate) inline: Option<Vec<u8>>,
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) remote: Option<Buffer>,
    pub(crate) ah: u16,
    pub(crate) to: u16,
    pub(crate) qkey: u32,
}

impl Post {
    pub(crate) fn send(id: u16, buffers: &[Buffer]) -> Self {
        Self { id, buffers: buffers.to_vec(), qkey: QKEY, ..Self::default() }
    }

    pub(crate) fn inline(id: u16, bytes: &[u8]) -> Self {
        Self { id, inline: Some(bytes.to_vec()), qkey: QKEY, ..Self::default() }
    }

    pub(crate) fn read(id: u16, into: Buffer, remote: Buffer) -> Self {
        Self { operation: 1, remote: Some(remote), ..Self::send(id, &[into]) }
    }

    pub(crate) fn write(id: u16, from: Buffer, remote: Buffer) -> Self {
        Self { operation: 2, remote: Some(remote), ..Self::send(id, &[from]) }
    }

    pub(crate) fn immediate(mut self, immediate: u32) -> Self {
        self.immediate = Some(immediate);
        self
    }

    pub(crate) fn to(mut self, ah: u16, qp: &Qp) -> Self {
        (self.ah, self.to) = (ah, qp.number);
        self
    }

    fn encode(&self, request_bytes: u32) -> Vec<u8> {
        let inline = u8::from(self.inline.is_some());
        let control =
            self.operation | u8::from(self.immediate.is_some()) << 4 | inline << 5 | 1 << 7;
        let count = self.inline.as_ref().map_or(self.buffers.len(), Vec::len);
        let mut payload = Payload::default()
            .u16(0, self.id)
            .u8(2, control)
            .u8(3, 0x1c)
            .u16(4, self.to)
            .u16(6, u16::try_from(count).unwrap())
            .u32(8, self.immediate.unwrap_or(0))
            .u16(12, self.ah)
            .u32(16, self.qkey)
            .bytes(26, &self.wide_id);
        let mut at = 32;
        if let Some(remote) = self.remote {
            payload = payload.u32(at, remote.length).u32(at + 4, remote.key);
            payload = payload.u64(at + 8, remote.address);
            at += 16;
        }
        if let Some(bytes) = &self.inline {
            payload = payload.bytes(at, bytes);
        }
        for buffer in &self.buffers {
            payload = payload.u32(at, buffer.length).u32(at + 4, buffer.key);
            payload = payload.u64(at + 8, buffer.address);
            at += 16;
        }
        let mut bytes = payload.to_vec();
        bytes.resize(usize::try_from(request_bytes).unwrap(), 0);
        bytes
    }
}

impl Driver {
    pub(crate) fn pd(&mut self) -> u16 {
        u16_at(&self.command(14, &[]).expect("a domain"), 0)
    }

    pub(crate) fn ah(&mut self, pd: u16, gid: [u8; 16]) -> u16 {
        let payload = Payload::default().bytes(0, &gid).u16(16, pd);
        u16_at(&self.command(5, &payload).expect("an address handle"), 0)
    }

    pub(crate) fn eq(&mut self, vector: u8) -> (u16, u64) {
        let ring = self.allocate(64 * 16);
        let payload = Payload::default().u16(0, 64).u8(2, vector).u8(3, 4).u64(4, ring).u32(12, 1);
        (u16_at(&self.command(18, &payload).expect("an event queue"), 0), ring)
    }

    /// A polled completion queue that tells the addresses of unknown senders.
    pub(crate) fn cq(&mut self, depth: u16) -> Cq {
        self.cq_with(depth, 0, 1 << 5, 0)
    }

    pub(crate) fn cq_with(&mut self, depth: u16, ring_flags: u8, entry_flags: u8, eq: u16) -> Cq {
        let base = self.allocate(usize::from(depth) * 32);
        let payload = Payload::default()
            .u8(0, ring_flags)
            .u8(1, entry_flags | 8)
            .u16(2, depth)
            .u16(4, eq)
            .u64(8, base)
            .u16(20, 1)
            .u16(22, 0);
        let data = self.command(9, &payload).expect("a completion queue");
        Cq { number: u16_at(&data, 0), doorbell: u32_at(&data, 4), base, depth, read: 0 }
    }

    pub(crate) fn poll(&self, cq: &mut Cq) -> Option<Completion> {
        let phase = u8::from((cq.read / cq.depth).is_multiple_of(2));
        let slot = u64::from(cq.read % cq.depth);
        let entry = self.machine.bytes(cq.base + slot * 32, 32);
        if entry[3] & 1 != phase {
            return None;
        }
        cq.read += 1;
        let (id, qp) = (u16_at(&entry, 0), u16_at(&entry, 4));
        Some(Completion { id, status: entry[2], flags: entry[3], qp, entry })
    }

    /// Everything in the completion queue.
    pub(crate) fn drain(&self, cq: &mut Cq) -> Vec<Completion> {
        std::iter::from_fn(|| self.poll(cq)).collect()
    }

    /// The only completion in the queue.
    pub(crate) fn only(&self, cq: &mut Cq) -> Completion {
        let mut all = self.drain(cq);
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    /// Payload of a create queue pair command with 64-byte requests.
    pub(crate) fn qp_payload(&mut self, kind: u8, pd: u16, cq: &Cq) -> Payload {
        let ring = self.allocate(64 * 16);
        Payload::default()
            .u16(0, pd)
            .u8(2, kind)
            .u8(3, 0)
            .u64(12, ring)
            .u32(20, cq.number.into())
            .u32(24, cq.number.into())
            .u32(36, 16 * 64)
            .u32(40, 16)
            .u32(44, 64 * 16)
            .u32(48, 64)
            .u16(52, 0)
    }

    /// A queue pair in state RESET.
    pub(crate) fn qp_from(&mut self, payload: &[u8]) -> Result<Qp, u8> {
        let data = self.command(1, payload)?;
        let send_depth = u32_at(payload, 40);
        Ok(Qp {
            handle: u32_at(&data, 0),
            number: u16_at(&data, 4),
            request_bytes: u32_at(payload, 36) / send_depth,
            send_memory: u32_at(&data, 20).into(),
            send_depth,
            send_doorbell: u32_at(&data, 12),
            receive_doorbell: u32_at(&data, 16),
            receive_ring: u64::from_le_bytes(payload[12..20].try_into().unwrap()),
            receive_depth: u32_at(payload, 44) / 16,
            sent: 0,
            received: 0,
        })
    }

    /// A queue pair that is ready to send.
    pub(crate) fn qp(&mut self, kind: u8, pd: u16, cq: &Cq) -> Qp {
        let payload = self.qp_payload(kind, pd, cq);
        let qp = self.qp_from(&payload).expect("a queue pair");
        self.connect(&qp);
        qp
    }

    pub(crate) fn connect(&mut self, qp: &Qp) {
        self.modify(qp, 1 | 4, 1, QKEY).expect("INIT");
        self.modify(qp, 1, 2, 0).expect("RTR");
        self.modify(qp, 1, 3, 0).expect("RTS");
    }

    pub(crate) fn modify(&mut self, qp: &Qp, mask: u32, state: u32, qkey: u32) -> Result<(), u8> {
        let payload =
            Payload::default().u32(0, mask).u32(4, qp.handle).u32(8, state).u32(16, qkey).u8(25, 0);
        self.command(2, &payload).map(drop)
    }

    pub(crate) fn set_rnr_retry(&mut self, qp: &Qp, retries: u8) {
        let payload = Payload::default().u32(0, 32).u32(4, qp.handle).u8(25, retries);
        self.command(2, &payload).expect("retries");
    }

    pub(crate) fn state(&mut self, qp: &Qp) -> u32 {
        let payload = Payload::default().u32(0, qp.handle);
        u32_at(&self.command(3, &payload).expect("a queue pair"), 0)
    }

    pub(crate) fn destroy(&mut self, qp: &Qp) {
        self.command(4, &Payload::default().u32(0, qp.handle)).expect("a queue pair");
    }

    /// Fresh registered memory with virtual addresses far away from physical ones.
    pub(crate) fn mr(&mut self, pd: u16, bytes: usize, access: u8) -> (Mr, u64) {
        let physical = self.allocate(bytes);
        let address = 0x7f00_0000_0000 + physical;
        let pages: Vec<u64> =
            (0..bytes.div_ceil(4096) as u64).map(|n| physical + n * 4096).collect();
        let list = self.allocate(pages.len() * 8);
        self.write(list, &pages.iter().flat_map(|page| page.to_le_bytes()).collect::<Vec<u8>>());
        let payload = Payload::default()
            .u16(0, pd)
            .u32(4, u32::try_from(pages.len() * 8).unwrap())
            .u64(8, list)
            .u64(36, bytes as u64)
            .u8(44, 12)
            .u8(45, access)
            .u64(52, address);
        let data = self.command_with(7, 2, &payload).expect("a memory region");
        (Mr { address, lkey: u32_at(&data, 0), rkey: u32_at(&data, 4) }, physical)
    }

    pub(crate) fn deregister(&mut self, mr: &Mr) -> Result<(), u8> {
        self.command(8, &Payload::default().u32(0, mr.lkey)).map(drop)
    }

    pub(crate) fn post(&self, qp: &mut Qp, posts: &[Post]) {
        for post in posts {
            let slot = u64::from(qp.sent) % u64::from(qp.send_depth);
            let offset = qp.send_memory + slot * u64::from(qp.request_bytes);
            let offset = usize::try_from(offset).unwrap();
            let bytes = post.encode(qp.request_bytes);
            self.machine.send_queues.lock().unwrap()[offset..offset + bytes.len()]
                .copy_from_slice(&bytes);
            qp.sent = qp.sent.wrapping_add(1);
        }
        self.ring(qp.send_doorbell.into(), qp.sent.into());
    }

    pub(crate) fn post_receive(&self, qp: &mut Qp, id: u16, buffers: &[Buffer]) {
        for (number, buffer) in buffers.iter().enumerate() {
            let first = u32::from(number == 0) << 30;
            let last = u32::from(number + 1 == buffers.len()) << 31;
            let descriptor = Payload::default()
                .u64(0, buffer.address)
                .u16(8, id)
                .u16(10, u16::try_from(buffer.length).unwrap())
                .u32(12, buffer.key | first | last);
            let slot = u64::from(qp.received) % u64::from(qp.receive_depth);
            self.machine.write(qp.receive_ring + slot * 16, &descriptor).expect("inside memory");
            qp.received = qp.received.wrapping_add(1);
        }
        self.ring(qp.receive_doorbell.into(), qp.received.into());
    }
}

/// One end of a pair of queue pairs.
pub(crate) struct End {
    pub(crate) driver: Driver,
    pub(crate) pd: u16,
    pub(crate) cq: Cq,
    pub(crate) qp: Qp,
    /// Address handle of the other end.
    pub(crate) ah: u16,
    pub(crate) mr: Mr,
    /// Where the bytes of `mr` are.
    pub(crate) physical: u64,
}

impl End {
    fn new(mut driver: Driver, kind: u8, bytes: usize) -> Self {
        let pd = driver.pd();
        let cq = driver.cq(256);
        let qp = driver.qp(kind, pd, &cq);
        let (mr, physical) = driver.mr(pd, bytes, ALL_ACCESS);
        Self { driver, pd, cq, qp, ah: 0xffff, mr, physical }
    }

    pub(crate) fn post(&mut self, post: Post) {
        self.driver.post(&mut self.qp, &[post]);
    }

    pub(crate) fn post_receive(&mut self, id: u16, offset: u64, length: u32) {
        let buffer = self.mr.local(offset, length);
        self.driver.post_receive(&mut self.qp, id, &[buffer]);
    }

    pub(crate) fn only(&mut self) -> Completion {
        self.driver.only(&mut self.cq)
    }

    pub(crate) fn drain(&mut self) -> Vec<Completion> {
        self.driver.drain(&mut self.cq)
    }

    /// Bytes of the registered memory.
    pub(crate) fn bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        self.driver.machine.bytes(self.physical + offset, length)
    }

    pub(crate) fn fill(&self, offset: u64, bytes: &[u8]) {
        self.driver.write(self.physical + offset, bytes);
    }
}

/// Two devices with a queue pair each that know each other's address.
pub(crate) fn pair(
    network: &super::Network,
    kind: u8,
    configs: [efa_device::DeviceConfig; 2],
) -> [End; 2] {
    let [mut a, mut b] = configs.map(|config| End::new(network.device(config), kind, 1 << 20));
    a.ah = a.driver.ah(a.pd, b.driver.gid);
    b.ah = b.driver.ah(b.pd, a.driver.gid);
    [a, b]
}

/// [`pair`] of SRD queue pairs on devices that can do everything.
pub(crate) fn srd_pair(network: &super::Network) -> [End; 2] {
    pair(network, SRD, Default::default())
}
