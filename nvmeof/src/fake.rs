//! A target in memory, behind the transport trait: it stores blocks, and misbehaves when told to.
#![expect(
    clippy::unwrap_in_result,
    clippy::panic_in_result_fn,
    reason = "a test double stops at what no test expects"
)]

mod link;
mod memory;
mod nic;
mod pages;

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Condvar, Mutex, MutexGuard, Weak},
};

use link::{FakeChannel, Link, lost, refuse};
use memory::{FakeMemory, Region};
pub(crate) use nic::Nic;
use pages::identify;
pub(crate) use pages::namespace;

use crate::{
    Buffer, Nqn, Result, Status, StatusType,
    auth::verifier::Verifier,
    rdma::{agreed_entries, transport_error},
    transport::{Channel, ChannelParameters, Response, Transport},
    wire::{
        Command, Completion, Descriptor,
        admin::{self, IdentifyStructure, LogPage},
        auth::HostMessage,
        block_format::ProtectionType,
        command::Opcode,
        discovery::{DiscoveryEntry, DiscoveryHeader},
        fabrics::{self, Connect, ConnectData, ConnectResult, FabricsType},
        features::{Feature, HostBehavior, QueueCounts},
        identify::IdentifyController,
        identify_namespace::{
            IdentifyNamespace, NamespaceName, active_namespaces_to_bytes, namespace_names_to_bytes,
        },
        identify_nvm::IdentifyNvm,
        nvm::{self, BlockCommand, BlockFlags, Range},
        property::{CommandSets, Configuration, Property, Version},
        rdma::ConnectionAccept,
    },
};

/// The target; clones are the same one.
#[derive(Clone, Debug)]
pub(crate) struct FakeTarget(Arc<Mutex<Target>>);

/// What the next I/O command meets instead of a proper answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misbehaviour {
    /// The completion names a command that was never sent.
    WrongCommandId,
    /// The response capsule has too few bytes.
    ShortCapsule,
    /// The response capsule has too many.
    LongCapsule,
    /// The completion comes twice.
    Repeat,
    /// The submission queue head is outside the queue.
    BadHead,
    /// No answer at all.
    Silence,
    /// The command is not carried out, and ends so.
    Refuse(Status),
    /// The command is carried out, and the connection is cut before the answer.
    CutAfter,
    /// The connection is cut before the command is carried out.
    CutBefore,
}

#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) identify: IdentifyController,
    /// Limits of commands that move no blocks; nothing for a controller that does not know the structure.
    pub(crate) nvm: Option<IdentifyNvm>,
    pub(crate) namespace: IdentifyNamespace,
    /// Names of the namespace.
    pub(crate) names: Vec<NamespaceName>,
    pub(crate) capabilities: u64,
    /// What was written to CC.
    pub(crate) configurations: Vec<Configuration>,
    /// CSTS after it was enabled.
    pub(crate) status: u32,
    pub(crate) queues: u16,
    /// Commands that an I/O queue takes at once; as many as are asked for if nothing is said.
    pub(crate) receives: Option<u16>,
    pub(crate) storage: Vec<u8>,
    pub(crate) misbehaviours: VecDeque<Misbehaviour>,
    pub(crate) verifier: Option<Verifier>,
    pub(crate) discovery: Vec<DiscoveryEntry>,
    /// Connections are refused while this is set.
    pub(crate) is_away: bool,
    /// Whether Abort ends commands that were met by silence.
    pub(crate) aborts: bool,
    /// Commands seen: opcode and, for I/O commands, blocks. Connects and the like are not kept.
    pub(crate) seen: Vec<(Opcode, u32)>,
    /// Commands seen that ask for non-volatile media.
    pub(crate) forced: usize,
    /// Bytes of I/O data that came inside capsules.
    pub(crate) in_capsule_bytes: usize,
    pub(crate) keep_alives: usize,
    /// How keep-alives end; nothing for no answer.
    pub(crate) keep_alive_status: Option<Status>,
    /// Whether the host keeps delays that a status asks for.
    pub(crate) keeps_delays: bool,
    /// Whether Identify commands are answered.
    pub(crate) identifies: bool,
    /// Whether memory can be registered.
    pub(crate) registers: bool,
    pub(crate) most_in_flight: usize,
    /// I/O commands are answered only when this many are waiting, if it is not 0.
    pub(crate) batch: usize,
    /// How memory is reached that the target did not allocate.
    pub(crate) nic: Option<Nic>,
    regions: HashMap<u32, Weak<Region>>,
    next_key: u32,
    next_controller: u16,
    links: Vec<Weak<Link>>,
}

impl FakeTarget {
    /// A target with one namespace of so many blocks of 512 bytes.
    pub(crate) fn new(blocks: u64) -> Self {
        Self(Arc::new(Mutex::new(Target {
            identify: identify(),
            nvm: None,
            namespace: namespace(blocks, 9, 0, ProtectionType::NONE),
            names: vec![NamespaceName::Uuid([7; 16])],
            // 128 entries, 7.5 seconds, NVM command set.
            capabilities: 127 | 1 << 16 | 15 << 24 | 1 << 37,
            configurations: Vec::new(),
            status: 1,
            queues: 8,
            receives: None,
            storage: vec![0; usize::try_from(blocks).unwrap() * 512],
            misbehaviours: VecDeque::new(),
            verifier: None,
            discovery: Vec::new(),
            is_away: false,
            aborts: true,
            seen: Vec::new(),
            forced: 0,
            in_capsule_bytes: 0,
            keep_alives: 0,
            keep_alive_status: Some(Status::SUCCESS),
            keeps_delays: false,
            identifies: true,
            registers: true,
            most_in_flight: 0,
            batch: 0,
            nic: None,
            regions: HashMap::new(),
            next_key: 100,
            next_controller: 1,
            links: Vec::new(),
        })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Target> {
        self.0.lock().unwrap()
    }

    pub(crate) fn transport(&self) -> Arc<dyn Transport> {
        Arc::new(self.clone())
    }

    /// The next I/O commands meet these.
    pub(crate) fn misbehave(&self, how: impl IntoIterator<Item = Misbehaviour>) {
        self.lock().misbehaviours.extend(how);
    }

    /// Cuts all connections.
    pub(crate) fn cut(&self) {
        let links = std::mem::take(&mut self.lock().links);
        for link in links.iter().filter_map(Weak::upgrade) {
            link.cut();
        }
    }

    /// Cuts all connections and refuses new ones from now on.
    pub(crate) fn go_away(&self) {
        self.lock().is_away = true;
        self.cut();
    }

    /// Completes one event request of each admin queue.
    pub(crate) fn report_event(&self, dword: u32) {
        let links = self.lock().links.clone();
        for link in links.iter().filter_map(Weak::upgrade).filter(|link| link.queue == 0) {
            let id = link.state.lock().unwrap().event_requests.pop();
            if let Some(id) = id {
                link.respond(id, u64::from(dword), Status::SUCCESS);
            }
        }
    }

    /// How often a command with this opcode reached an I/O queue.
    pub(crate) fn count(&self, opcode: Opcode) -> usize {
        self.lock().seen.iter().filter(|(seen, _)| *seen == opcode).count()
    }
}

impl Transport for FakeTarget {
    fn open(&self, parameters: &ChannelParameters) -> Result<Box<dyn Channel>> {
        let mut target = self.lock();
        if target.is_away {
            return Err(lost(parameters.queue));
        }
        let receives = target.receives.unwrap_or(parameters.entries);
        let controller_receives = if parameters.queue == 0 { 32 } else { receives };
        let accept = ConnectionAccept { controller_receives };
        let link = Arc::new(Link {
            queue: parameters.queue,
            controller_id: parameters.controller_id,
            entries: agreed_entries(&accept.to_bytes(), parameters)?,
            state: Mutex::default(),
            arrived: Condvar::new(),
        });
        target.links.push(Arc::downgrade(&link));
        Ok(Box::new(FakeChannel { target: Arc::clone(&self.0), link, sent: Vec::new() }))
    }

    fn allocate(&self, length: usize) -> Result<Buffer> {
        let mut target = self.lock();
        if !target.registers {
            let source = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
            return Err(transport_error("registering memory", 0, source));
        }
        target.next_key += 1;
        let key = target.next_key;
        let address = u64::from(key) << 32;
        let region = Arc::new(Region { address, key, bytes: Mutex::new(vec![0; length]) });
        target.regions.insert(key, Arc::downgrade(&region));
        Ok(Buffer::new(Box::new(FakeMemory(region))))
    }

    fn protection_domain(&self) -> Option<Arc<ibverbs::ProtectionDomain<'static>>> {
        self.lock().nic.as_ref().map(|nic| Arc::clone(&nic.host))
    }
}

type Answer = std::result::Result<u64, Status>;

impl Target {
    fn take(&mut self, link: &Arc<Link>, command: Command, data: Vec<u8>) {
        let is_io = link.queue > 0 && FabricsType::of(&command).is_none();
        if !is_io {
            if let Some(answer) = self.admin(link, &command, &data) {
                let (result, status) = match answer {
                    Ok(result) => (result, Status::SUCCESS),
                    Err(status) => (0, status),
                };
                link.respond(command.command_id(), result, status);
            }
            return;
        }
        let waiting = {
            let mut state = link.state.lock().unwrap();
            state.held.push((command, data));
            state.held.len()
        };
        self.most_in_flight = self.most_in_flight.max(waiting);
        if waiting < self.batch {
            return;
        }
        let held = std::mem::take(&mut link.state.lock().unwrap().held);
        for (command, data) in held {
            self.io(link, &command, &data);
        }
    }

    fn io(&mut self, link: &Link, command: &Command, data: &[u8]) {
        let id = command.command_id();
        let misbehaviour = self.misbehaviours.pop_front();
        let block = BlockCommand::from_command(command);
        self.seen.push((command.opcode(), block.blocks));
        self.forced += usize::from(block.flags.contains(BlockFlags::FORCE_UNIT_ACCESS));
        match misbehaviour {
            Some(Misbehaviour::CutBefore) => return link.cut(),
            Some(Misbehaviour::Silence) => return link.state.lock().unwrap().silent.push(id),
            Some(Misbehaviour::Refuse(status)) if self.keeps_delays => {
                return link.respond(id, 0, status);
            }
            Some(Misbehaviour::Refuse(status)) => {
                return link.respond(id, 0, without_delay(status));
            }
            _ => {}
        }
        let status = self.execute(link, command, data).err().unwrap_or(Status::SUCCESS);
        let completion = Completion { result: 0, submission_queue_head: 0, command_id: id, status };
        let bytes = completion.to_bytes();
        match misbehaviour {
            Some(Misbehaviour::CutAfter) => link.cut(),
            Some(Misbehaviour::WrongCommandId) => link.respond(id ^ 0x5555, 0, status),
            Some(Misbehaviour::ShortCapsule) => link.deliver(Response { bytes, length: 8 }),
            Some(Misbehaviour::LongCapsule) => link.deliver(Response { bytes, length: 4096 }),
            Some(Misbehaviour::Repeat) => {
                link.respond(id, 0, status);
                link.respond(id, 0, status);
            }
            Some(Misbehaviour::BadHead) => {
                let completion = Completion { submission_queue_head: 0x7fff, ..completion };
                link.deliver(Response { bytes: completion.to_bytes(), length: 16 });
            }
            _ => link.respond(id, 0, status),
        }
    }

    fn execute(
        &mut self,
        link: &Link,
        command: &Command,
        data: &[u8],
    ) -> std::result::Result<(), Status> {
        if command.namespace_id() != 1 {
            return Err(Status::INVALID_NAMESPACE.do_not_retry());
        }
        let block = BlockCommand::from_command(command);
        let is_about_blocks = ![Opcode::FLUSH, Opcode::DATASET_MANAGEMENT].contains(&block.opcode);
        if is_about_blocks {
            self.check_protection(&block)?;
        }
        let block_bytes =
            usize::try_from(self.namespace.format().unwrap().block_bytes().unwrap()).unwrap();
        let first = usize::try_from(block.first_block).unwrap() * block_bytes;
        let length = usize::try_from(block.blocks).unwrap() * block_bytes;
        let in_range = |target: &Self| {
            if first + length > target.storage.len() {
                Err(Status::LBA_OUT_OF_RANGE.do_not_retry())
            } else {
                Ok(first..first + length)
            }
        };
        match command.opcode() {
            Opcode::FLUSH => Ok(()),
            Opcode::READ => {
                let bytes = self.storage[in_range(self)?].to_vec();
                self.put(link, command, &bytes)
            }
            Opcode::WRITE => {
                let range = in_range(self)?;
                let bytes = self.get(link, command, data, length)?;
                self.storage[range].copy_from_slice(&bytes);
                Ok(())
            }
            Opcode::COMPARE => {
                let range = in_range(self)?;
                let bytes = self.get(link, command, data, length)?;
                if self.storage[range] == bytes { Ok(()) } else { Err(Status::COMPARE_FAILURE) }
            }
            Opcode::WRITE_ZEROES => {
                let most = self.nvm.and_then(|nvm| nvm.max_write_zeroes_bytes(4096));
                if most.is_some_and(|most| u64::try_from(length).unwrap() > most) {
                    return Err(Status::INVALID_FIELD.do_not_retry());
                }
                let range = in_range(self)?;
                self.storage[range].fill(0);
                Ok(())
            }
            Opcode::DATASET_MANAGEMENT => {
                let count = nvm::range_count(command);
                let bytes = self.get(link, command, data, count * Range::BYTES)?;
                let ranges: Vec<Range> = bytes
                    .chunks_exact(Range::BYTES)
                    .map(|range| Range::parse(range).unwrap())
                    .collect();
                self.check_ranges(&ranges)?;
                for range in ranges {
                    let first = usize::try_from(range.first_block).unwrap() * block_bytes;
                    let length = usize::try_from(range.blocks).unwrap() * block_bytes;
                    self.storage[first..first + length].fill(0);
                }
                Ok(())
            }
            _ => Err(Status::new(StatusType::GENERIC, 0x01).do_not_retry()),
        }
    }

    /// Whether ranges are within the limits of one command.
    fn check_ranges(&self, ranges: &[Range]) -> std::result::Result<(), Status> {
        let Some(nvm) = self.nvm else { return Ok(()) };
        let blocks: u64 = ranges.iter().map(|range| u64::from(range.blocks)).sum();
        let longest = ranges.iter().map(|range| range.blocks).max().unwrap();
        let is_within = ranges.len() <= nvm.max_deallocate_ranges()
            && longest <= nvm.max_deallocate_range_blocks()
            && blocks <= nvm.max_deallocate_blocks();
        // Command Size Limit Exceeded.
        let error = Status::new(StatusType::COMMAND_SPECIFIC, 0x83).do_not_retry();
        is_within.then_some(()).ok_or(error)
    }

    /// What the controller finds when it makes or checks protection information of some blocks.
    fn check_protection(&self, block: &BlockCommand) -> std::result::Result<(), Status> {
        let protection = self.namespace.protection;
        let checks = BlockFlags::CHECK_GUARD
            | BlockFlags::CHECK_APPLICATION_TAG
            | BlockFlags::CHECK_REFERENCE_TAG;
        let not_allowed = match block.opcode {
            Opcode::COMPARE => BlockFlags::PROTECTION_ACTION,
            Opcode::WRITE_ZEROES => checks,
            _ => BlockFlags::empty(),
        };
        if block.flags.intersects(not_allowed) {
            // Invalid Protection Information.
            return Err(Status::new(StatusType::COMMAND_SPECIFIC, 0x81).do_not_retry());
        }
        let action = block.flags.contains(BlockFlags::PROTECTION_ACTION);
        let tagged = block.flags.contains(BlockFlags::CHECK_REFERENCE_TAG);
        let counts = matches!(protection, ProtectionType::TYPE_1 | ProtectionType::TYPE_2);
        let expected = if counts { block.first_block & 0xffff_ffff } else { 0 };
        let is_right = action == (protection != ProtectionType::NONE)
            && tagged == (counts && block.opcode != Opcode::WRITE_ZEROES)
            && u64::from(block.reference_tag) == expected;
        // End-to-end Reference Tag Check Error.
        let error = Status::new(StatusType::MEDIA, 0x84).do_not_retry();
        is_right.then_some(()).ok_or(error)
    }

    /// The data of a command that sends some.
    fn get(
        &mut self,
        link: &Link,
        command: &Command,
        capsule: &[u8],
        length: usize,
    ) -> std::result::Result<Vec<u8>, Status> {
        match command.descriptor().unwrap() {
            Descriptor::InCapsule { offset: 0, length: in_capsule } => {
                assert_eq!(usize::try_from(in_capsule).unwrap(), capsule.len());
                assert_eq!(capsule.len(), length);
                assert!(u64::try_from(capsule.len()).unwrap() <= self.identify.in_capsule_bytes());
                self.in_capsule_bytes += capsule.len();
                Ok(capsule.to_vec())
            }
            Descriptor::Keyed { address, length: keyed, key } => {
                assert_eq!(usize::try_from(keyed).unwrap(), length);
                self.check_transfer(keyed);
                if let Some(nic) = self.nic_for(key) {
                    return nic.read(key, address, length).ok_or_else(|| refuse(link));
                }
                let bytes = self.region(link, key, address, length)?;
                let start = usize::try_from(address - bytes.address).unwrap();
                let bytes = bytes.bytes.lock().unwrap();
                Ok(bytes[start..start + length].to_vec())
            }
            other => panic!("unexpected descriptor {other:?}"),
        }
    }

    /// Writes the data of a command that returns some.
    fn put(&self, link: &Link, command: &Command, bytes: &[u8]) -> std::result::Result<(), Status> {
        let Descriptor::Keyed { address, length, key } = command.descriptor().unwrap() else {
            panic!("a command that returns data has no keyed block");
        };
        self.check_transfer(length);
        let length = bytes.len().min(usize::try_from(length).unwrap());
        if let Some(nic) = self.nic_for(key) {
            let is_there = nic.write(key, address, &bytes[..length]);
            return is_there.then_some(()).ok_or_else(|| refuse(link));
        }
        let region = self.region(link, key, address, length)?;
        let start = usize::try_from(address - region.address).unwrap();
        region.bytes.lock().unwrap()[start..start + length].copy_from_slice(&bytes[..length]);
        Ok(())
    }

    fn check_transfer(&self, length: u32) {
        if let Some(most) = self.identify.max_transfer_bytes(4096) {
            assert!(u64::from(length) <= most, "{length} bytes, {most} at most");
        }
    }

    /// Memory of the host that the target allocated.
    fn region(
        &self,
        link: &Link,
        key: u32,
        address: u64,
        length: usize,
    ) -> std::result::Result<Arc<Region>, Status> {
        let region = self.regions.get(&key).and_then(Weak::upgrade).filter(|region| {
            let size = u64::try_from(region.bytes.lock().unwrap().len()).unwrap();
            let length = u64::try_from(length).unwrap();
            address >= region.address && address + length <= region.address + size
        });
        region.ok_or_else(|| refuse(link))
    }

    /// The way to memory with a key that the target did not give out.
    fn nic_for(&self, key: u32) -> Option<&Nic> {
        self.nic.as_ref().filter(|_| !self.regions.contains_key(&key))
    }

    /// Carries out a command of the admin queue or of Fabrics; event requests have no answer yet.
    fn admin(&mut self, link: &Arc<Link>, command: &Command, data: &[u8]) -> Option<Answer> {
        if let Some(kind) = FabricsType::of(command) {
            return Some(self.fabrics(link, kind, command, data));
        }
        let page = |target: &Self, bytes: Vec<u8>| target.put(link, command, &bytes).map(|()| 0);
        Some(match command.opcode() {
            Opcode::IDENTIFY if !self.identifies => return None,
            Opcode::IDENTIFY => match IdentifyStructure(command.command_dword(10).to_le_bytes()[0])
            {
                IdentifyStructure::CONTROLLER => page(self, self.identify.to_bytes()),
                IdentifyStructure::NAMESPACE if command.namespace_id() == 1 => {
                    page(self, self.namespace.to_bytes())
                }
                IdentifyStructure::ACTIVE_NAMESPACES => {
                    let list: &[u32] = if command.namespace_id() == 0 { &[1] } else { &[] };
                    page(self, active_namespaces_to_bytes(list))
                }
                IdentifyStructure::NAMESPACE_DESCRIPTORS => {
                    page(self, namespace_names_to_bytes(&self.names))
                }
                IdentifyStructure::CONTROLLER_COMMAND_SET => match self.nvm {
                    Some(nvm) => page(self, nvm.to_bytes()),
                    None => Err(Status::INVALID_FIELD.do_not_retry()),
                },
                _ => Err(Status::INVALID_NAMESPACE.do_not_retry()),
            },
            Opcode::SET_FEATURES => {
                let feature = Feature(command.command_dword(10).to_le_bytes()[0]);
                if feature == Feature::NUMBER_OF_QUEUES {
                    Ok(u64::from(QueueCounts::both(self.queues).to_dword()))
                } else if feature == Feature::HOST_BEHAVIOR_SUPPORT {
                    self.get(link, command, data, HostBehavior::BYTES).map(|behavior| {
                        self.keeps_delays = HostBehavior::parse(&behavior).unwrap().retry_delays;
                        0
                    })
                } else {
                    Ok(0)
                }
            }
            Opcode::GET_LOG_PAGE => {
                let log = match LogPage(command.command_dword(10).to_le_bytes()[0]) {
                    LogPage::DISCOVERY => self.discovery_log(),
                    _ => vec![0; 4096],
                };
                let (length, offset) = admin::log_page_range(command);
                let (length, offset) =
                    (usize::try_from(length).unwrap(), usize::try_from(offset).unwrap());
                let mut part = vec![0; length];
                for (to, from) in part.iter_mut().zip(log.iter().skip(offset)) {
                    *to = *from;
                }
                page(self, part)
            }
            Opcode::KEEP_ALIVE => {
                self.keep_alives += 1;
                match self.keep_alive_status? {
                    Status::SUCCESS => Ok(0),
                    status => Err(status),
                }
            }
            Opcode::ASYNCHRONOUS_EVENT_REQUEST => {
                link.state.lock().unwrap().event_requests.push(command.command_id());
                return None;
            }
            Opcode::ABORT => {
                let [a, b, c, d] = command.command_dword(10).to_le_bytes();
                Ok(self.abort(u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])))
            }
            _ => Err(Status::new(StatusType::GENERIC, 0x01).do_not_retry()),
        })
    }

    fn abort(&self, queue: u16, id: u16) -> u64 {
        if !self.aborts {
            return 1;
        }
        for link in self.links.iter().filter_map(Weak::upgrade).filter(|link| link.queue == queue) {
            let was_silent = {
                let mut state = link.state.lock().unwrap();
                let before = state.silent.len();
                state.silent.retain(|silent| *silent != id);
                state.silent.len() < before
            };
            if was_silent {
                link.respond(id, 0, Status::ABORTED_BY_REQUEST);
                return 0;
            }
        }
        1
    }

    fn fabrics(
        &mut self,
        link: &Arc<Link>,
        kind: FabricsType,
        command: &Command,
        data: &[u8],
    ) -> Answer {
        match kind {
            FabricsType::CONNECT => {
                let connect = Connect::from_command(command);
                assert_eq!((connect.queue, connect.entries), (link.queue, link.entries));
                let bytes = self.get(link, command, data, ConnectData::BYTES)?;
                let data = ConnectData::parse(&bytes).unwrap();
                let controller_id = if connect.queue == 0 {
                    assert_eq!(data.controller_id, ConnectData::ANY_CONTROLLER);
                    assert_eq!(link.controller_id, 0);
                    self.next_controller += 1;
                    self.next_controller
                } else {
                    assert_eq!(link.controller_id, data.controller_id);
                    data.controller_id
                };
                let is_known = data.subsystem.as_str() == SUBSYSTEM
                    || (data.subsystem.is_discovery() && !self.discovery.is_empty());
                if !is_known {
                    return Err(Status::new(StatusType::COMMAND_SPECIFIC, 0x82).do_not_retry());
                }
                let result = ConnectResult {
                    controller_id,
                    authentication_required: self.verifier.is_some(),
                    secure_channel_required: false,
                };
                Ok(u64::from(result.to_dword()))
            }
            FabricsType::PROPERTY_GET => match fabrics::property_of(command).unwrap().0 {
                Property::CAPABILITIES => Ok(self.capabilities),
                Property::VERSION => Ok(u64::from(Version::new(2, 0, 0).0)),
                Property::STATUS => {
                    let shut_down = u64::from(link.state.lock().unwrap().is_shut_down) << 3;
                    Ok(u64::from(self.status) | shut_down)
                }
                _ => Err(Status::INVALID_FIELD),
            },
            FabricsType::PROPERTY_SET => {
                let (_, value) = fabrics::property_of(command).unwrap();
                let configuration = Configuration(u32::try_from(value).unwrap());
                let offered = match configuration.command_sets() {
                    // Discovery controllers of old had nothing to offer, and took this.
                    CommandSets::NVM => {
                        self.capabilities & (0xff << 37) == 0 || self.capabilities & 1 << 37 != 0
                    }
                    CommandSets::ALL => self.capabilities & 1 << 43 != 0,
                    CommandSets::NONE => self.capabilities & 1 << 44 != 0,
                    _ => false,
                };
                if !offered {
                    return Err(Status::INVALID_FIELD.do_not_retry());
                }
                link.state.lock().unwrap().is_shut_down = configuration.is_shutdown();
                self.configurations.push(configuration);
                Ok(0)
            }
            FabricsType::AUTHENTICATION_SEND => {
                let length = usize::try_from(fabrics::authentication_length(command)).unwrap();
                let message = self.get(link, command, data, length)?;
                let verifier = self.verifier.as_mut().ok_or(Status::INVALID_FIELD)?;
                let answer = match HostMessage::of(&message) {
                    Some(HostMessage::Negotiate) => verifier.challenge(&message),
                    Some(HostMessage::Reply) => verifier.judge(&message),
                    _ => Vec::new(),
                };
                link.state.lock().unwrap().authentication = Some(answer);
                Ok(0)
            }
            FabricsType::AUTHENTICATION_RECEIVE => {
                let answer = link.state.lock().unwrap().authentication.take();
                self.put(link, command, &answer.ok_or(Status::INVALID_FIELD)?).map(|()| 0)
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn discovery_log(&self) -> Vec<u8> {
        let records = u64::try_from(self.discovery.len()).unwrap();
        let mut log = DiscoveryHeader { generation: 1, records }.to_bytes().to_vec();
        for entry in &self.discovery {
            log.extend_from_slice(&entry.to_bytes());
        }
        log
    }
}

/// The status for a host that does not keep delays.
fn without_delay(status: Status) -> Status {
    Status::from_completion_field(status.to_completion_field() & !(3 << 12))
}

/// The name of the subsystem.
pub(crate) const SUBSYSTEM: &str = "nqn.2024-01.org.example:disk";

pub(crate) fn subsystem() -> Nqn {
    Nqn::new(SUBSYSTEM).unwrap()
}
