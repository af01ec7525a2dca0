//! A device on the switch of this process, stations that send and receive frames, and the frames.

use std::{cell::Cell, net::Ipv4Addr, sync::Arc};

use ibverbs::{
    Access, Completion, CompletionFields, CompletionQueue, Context, Devices, EthernetMatch,
    ExtendedCompletion, Flow, FlowRule, MacAddress, MemoryRegion, PacketMatch, PortNumber, Posting,
    ProtectionDomain, QueuePair, RawPacket, RecvWr, Reset, SendWr,
};
use soft_device::{Builder, SoftDevice};

/// The type of frames for experiments, IEEE 802.
pub(crate) const EXPERIMENT: u16 = 0x88b5;
/// Room for one frame.
pub(crate) const ROOM: usize = 256;
/// How many receives a station posts.
pub(crate) const RECEIVES: usize = 8;

/// An open device with a domain.
pub(crate) struct Bench {
    pub(crate) domain: Arc<ProtectionDomain<'static>>,
    pub(crate) context: Arc<Context>,
    pub(crate) device: SoftDevice,
    pub(crate) port: PortNumber,
    pub(crate) mac: MacAddress,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::of(SoftDevice::builder())
    }

    pub(crate) fn of(builder: Builder) -> Self {
        let device = builder.build();
        let devices = Devices::of(soft_device::library()).unwrap();
        let context = Arc::new(devices.by_name(device.name()).unwrap().open().unwrap());
        let domain = Arc::new(ProtectionDomain::allocate(&context).unwrap());
        let port = PortNumber::new(1).unwrap();
        let mac = device.mac(1).map_or_else(MacAddress::default, MacAddress);
        Self { domain, context, device, port, mac }
    }

    pub(crate) fn queue(&self) -> Arc<CompletionQueue<'static>> {
        Arc::new(CompletionQueue::create(&self.context, 64).unwrap())
    }

    /// A queue that reads what is special about frames.
    pub(crate) fn extended_queue(&self) -> Arc<CompletionQueue<'static>> {
        let fields = CompletionFields::BYTE_LENGTH
            | CompletionFields::FLOW_TAG
            | CompletionFields::VLAN
            | CompletionFields::OPERATION;
        let builder = CompletionQueue::builder(&self.context, 64).fields(fields);
        Arc::new(builder.create().unwrap())
    }

    pub(crate) fn station(&self) -> Station {
        self.station_with(&self.queue(), Posting::Extended, false)
    }

    /// A station whose receives are posted, and complete in `receives`.
    pub(crate) fn station_with(
        &self,
        receives: &Arc<CompletionQueue<'static>>,
        posting: Posting,
        strips: bool,
    ) -> Station {
        let sends = self.queue();
        let builder = QueuePair::<RawPacket, Reset>::builder(&self.domain, &sends, receives)
            .posting(posting)
            .max_send_segments(2)
            .max_inline(64);
        let builder = if strips { builder.strip_vlan() } else { builder };
        let pair = Arc::new(builder.create().unwrap().start(self.port).unwrap());
        let bytes = vec![0xaa; (RECEIVES + 1) * ROOM];
        let memory = MemoryRegion::register(&self.domain, bytes, Access::LOCAL_WRITE).unwrap();
        let station =
            Station { pair, sends, receives: Arc::clone(receives), memory, next: Cell::new(0) };
        for _ in 0..RECEIVES {
            station.post_next();
        }
        station
    }

    /// A rule in force for a station.
    pub(crate) fn flow(&self, station: &Station, rule: FlowRule<'static>) -> Flow<'static> {
        Flow::create(&station.pair, self.port, rule).unwrap()
    }

    /// Frames to this device's port.
    pub(crate) fn mine(&self) -> PacketMatch {
        PacketMatch::new().ethernet(EthernetMatch::new().destination(self.mac))
    }

    /// Drops everything, and looks whether anything is left or was done wrong.
    pub(crate) fn end(self) {
        let Self { domain, context, device, .. } = self;
        drop((domain, context));
        assert_eq!(device.leaks(), [""; 0]);
        assert_eq!(device.violations(), [""; 0]);
    }
}

/// A queue pair of raw packets, and memory for frames: places to receive into, and behind them one to send from.
pub(crate) struct Station {
    pub(crate) pair: Arc<QueuePair<'static, RawPacket>>,
    pub(crate) sends: Arc<CompletionQueue<'static>>,
    pub(crate) receives: Arc<CompletionQueue<'static>>,
    pub(crate) memory: MemoryRegion<'static, Vec<u8>>,
    next: Cell<usize>,
}

impl Station {
    /// Posts the next place; its request has its number.
    fn post_next(&self) {
        let place = self.next.get();
        let memory = self.memory.segment(place * ROOM..(place + 1) * ROOM).unwrap();
        self.pair.post_receive(&mut [RecvWr::to(place as u64, memory)]).unwrap();
        self.next.set((place + 1) % RECEIVES);
    }

    /// Sends a frame, and sees that it went out.
    pub(crate) fn send(&self, frame: &[u8]) {
        let start = RECEIVES * ROOM;
        self.memory.bytes().write(start, frame).unwrap();
        let from = self.memory.segment(start..start + frame.len()).unwrap();
        self.pair.post_send(&mut [SendWr::frame(from).id(77).signaled()]).unwrap();
        let mut slots = Completion::slots::<2>();
        let found = self.sends.poll(&mut slots).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].outcome().unwrap().id(), 77);
    }

    /// The next frame that came, if there is one; its receive is posted anew.
    pub(crate) fn received(&self) -> Option<Vec<u8>> {
        let mut slots = Completion::slots::<1>();
        let found = self.receives.poll(&mut slots).unwrap().first()?;
        let work = found.outcome().unwrap();
        assert!(work.operation().is_receive());
        assert_eq!(work.queue_pair(), self.pair.number());
        let frame = self.frame_at(work.id(), work.byte_length());
        self.post_next();
        Some(frame)
    }

    /// The next completion of a queue that reads more.
    pub(crate) fn extended(&self) -> Option<ExtendedCompletion> {
        self.receives.poller().unwrap().next().unwrap().copied()
    }

    pub(crate) fn frame_at(&self, place: u64, length: u32) -> Vec<u8> {
        let mut frame = vec![0; length as usize];
        self.memory.bytes().read(usize::try_from(place).unwrap() * ROOM, &mut frame).unwrap();
        frame
    }
}

/// A frame of a type.
pub(crate) fn frame(to: MacAddress, from: MacAddress, ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let ether_type = ether_type.to_be_bytes();
    [&to.0[..], &from.0[..], &ether_type[..], payload].concat()
}

/// The frame with the tag of a VLAN.
pub(crate) fn tagged(mut frame: Vec<u8>, tag: u16) -> Vec<u8> {
    let [high, low] = tag.to_be_bytes();
    frame.splice(12..12, [0x81, 0, high, low]);
    frame
}

/// A frame with a packet of IPv4 in it, without checksums, which nobody here looks at.
pub(crate) fn ipv4(
    to: MacAddress,
    protocol: u8,
    source: (Ipv4Addr, u16),
    destination: (Ipv4Addr, u16),
) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 48, 0, 0, 0, 0, 64, protocol, 0, 0];
    packet.extend(source.0.octets());
    packet.extend(destination.0.octets());
    packet.extend(source.1.to_be_bytes());
    packet.extend(destination.1.to_be_bytes());
    packet.extend([0; 24]);
    frame(to, MacAddress([2, 0, 0, 0, 0, 9]), 0x0800, &packet)
}
