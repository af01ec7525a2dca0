//! Everything that reads bytes or text of others, fed with captured messages that were damaged in many
//! ways: whatever comes out is a value or an error, in little time, and what was read is written back so
//! that it is read the same.
//!
//! A fixed number of rounds by default, the same ones each time; `NVMEOF_FUZZ_SECONDS=600` goes on for so
//! long, and prints the seed of the round that fails.
#![expect(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::{
    fmt::Debug,
    fs,
    panic::catch_unwind,
    time::{Duration, Instant},
};

use nvmeof::{
    Configuration, Nqn, Result, Secret, Status, Target,
    wire::{
        Command, Completion, admin, auth,
        block_format::BlockFormat,
        discovery,
        event::AsynchronousEvent,
        fabrics::{self, FabricsType},
        features::QueueCounts,
        identify::IdentifyController,
        identify_namespace::{IdentifyNamespace, parse_active_namespaces, parse_namespace_names},
        identify_nvm::IdentifyNvm,
        log_page::ChangedNamespaces,
        nvm::{self, BlockCommand, Range},
        property::{self, Capabilities, ControllerStatus, Version},
        rdma,
    },
};

/// Rounds without a time to go on for.
const ROUNDS: u64 = 100_000;

/// A message of each kind: what the kernel said, and what we say ourselves.
fn seeds() -> Vec<Vec<u8>> {
    let folder = format!("{}/tests/captured", env!("CARGO_MANIFEST_DIR"));
    let mut seeds: Vec<Vec<u8>> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| fs::read(entry.unwrap().path()).unwrap())
        .collect();
    assert_eq!(seeds.len(), 4);
    let connect = fabrics::ConnectData {
        host_id: [7; 16],
        controller_id: 1,
        subsystem: Nqn::discovery(),
        host: Nqn::discovery(),
    };
    let request =
        rdma::ConnectionRequest { queue: 1, host_receives: 128, host_sends: 128, controller_id: 1 };
    let read = nvm::flush(1).data(nvmeof::wire::Descriptor::Keyed {
        address: 1 << 40,
        length: 4096,
        key: 77,
    });
    let completion =
        Completion { result: 3, submission_queue_head: 5, command_id: 9, status: Status::SUCCESS };
    let challenge = auth::Challenge {
        transaction: 1,
        hash: auth::HashId(1),
        group: auth::GroupId(1),
        sequence: 4,
        challenge: vec![9; 32],
        public_value: vec![8; 256],
    };
    seeds.extend([
        connect.to_bytes().to_vec(),
        request.to_bytes().to_vec(),
        read.as_bytes().to_vec(),
        completion.to_bytes().to_vec(),
        challenge.to_bytes(),
        b"nvme+rdma://[fd00::1]:4420/nqn.2024-01.org.example:disk?nr_io_queues=2".to_vec(),
        b"DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:".to_vec(),
        br#"[{"hostnqn": "nqn.2024-01.org.example:host", "subsystems": [{"nqn": "nqn.2024-01.org.example:disk",
            "ports": [{"transport": "rdma", "traddr": "10.99.0.1", "trsvcid": "4420"}]}]}]"#
            .to_vec(),
    ]);
    seeds
}

/// What was read is read again from what is written of it.
fn again<T: PartialEq + Debug>(
    bytes: &[u8],
    read: impl Fn(&[u8]) -> Result<T>,
    written: impl Fn(&T) -> Vec<u8>,
) {
    if let Ok(first) = read(bytes) {
        assert_eq!(read(&written(&first)).unwrap(), first);
    }
}

/// Reads the bytes as everything that they might be.
fn read_all(bytes: &[u8]) {
    again(bytes, Completion::parse, |it| it.to_bytes().to_vec());
    again(bytes, IdentifyController::parse, IdentifyController::to_bytes);
    again(bytes, IdentifyNvm::parse, IdentifyNvm::to_bytes);
    again(bytes, IdentifyNamespace::parse, IdentifyNamespace::to_bytes);
    again(bytes, discovery::DiscoveryHeader::parse, |it| it.to_bytes().to_vec());
    again(bytes, discovery::DiscoveryEntry::parse, |it| it.to_bytes().to_vec());
    again(bytes, fabrics::ConnectData::parse, |it| it.to_bytes().to_vec());
    again(bytes, rdma::ConnectionRequest::parse, |it| it.to_bytes().to_vec());
    again(bytes, rdma::ConnectionAccept::parse, |it| it.to_bytes().to_vec());
    again(bytes, rdma::RejectReason::parse, |it| it.to_bytes().to_vec());
    again(bytes, Range::parse, |it| it.to_bytes().to_vec());
    again(bytes, auth::Negotiate::parse, auth::Negotiate::to_bytes);
    again(bytes, auth::Challenge::parse, auth::Challenge::to_bytes);
    again(bytes, auth::Reply::parse, auth::Reply::to_bytes);
    let _read_or_refused = (
        auth::Success1::parse(bytes),
        auth::HostMessage::of(bytes),
        parse_active_namespaces(bytes),
        parse_namespace_names(bytes),
        ChangedNamespaces::parse(bytes),
    );
    if let Ok(identify) = IdentifyController::parse(bytes) {
        let _numbers = (identify.in_capsule_bytes(), identify.max_transfer_bytes(1 << 27));
    }
    if let Ok(nvm) = IdentifyNvm::parse(bytes) {
        assert!((1..=Range::MAX).contains(&nvm.max_deallocate_ranges()));
        assert!(nvm.max_deallocate_range_blocks() > 0 && nvm.max_deallocate_blocks() > 0);
        assert_ne!(nvm.max_write_zeroes_bytes(1 << 27), Some(0));
    }
    if let Ok(namespace) = IdentifyNamespace::parse(bytes) {
        let _bytes = namespace.format().map(BlockFormat::block_bytes);
    }
    if let Ok(command) = Command::parse(bytes) {
        let block = BlockCommand::from_command(&command);
        let _parts = (
            command.descriptor(),
            FabricsType::of(&command),
            fabrics::Connect::from_command(&command),
            fabrics::property_of(&command),
            admin::log_page_range(&command),
            nvm::range_count(&command),
        );
        if let Ok(data) = command.descriptor() {
            let built = block.to_command(data);
            assert_eq!(BlockCommand::from_command(&built).first_block, block.first_block);
        }
    }
    if let Ok(completion) = Completion::parse(bytes) {
        let low = completion.dword0();
        let _dwords = (
            AsynchronousEvent::from_dword(low),
            fabrics::ConnectResult::from_dword(low),
            fabrics::ConnectComplaint::from_dword(low).parameter(),
            QueueCounts::from_dword(low).pairs(),
            ControllerStatus(low).is_ready(),
            Version(low).to_string(),
            completion.status.to_string(),
        );
        let capabilities = Capabilities(completion.result);
        assert!((1..=1 << 16).contains(&capabilities.max_queue_entries()));
        let _numbers = (capabilities.timeout(), capabilities.min_page_size());
        let enabled = property::Configuration::enabled(4096).select(capabilities.command_sets());
        assert_eq!(enabled.command_sets(), capabilities.command_sets());
    }
    let text = String::from_utf8_lossy(bytes);
    let _read_or_refused = (
        Configuration::parse(&text),
        Target::from_uri(&text),
        text.parse::<Nqn>(),
        text.parse::<Secret>(),
        text.parse::<nvmeof::HostId>(),
    );
}

/// A small generator (`SplitMix64`).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % (bound.max(1) as u64)).unwrap()
    }

    /// One of the seeds, damaged.
    fn damaged(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = seeds[self.below(seeds.len())].clone();
        for _ in 0..=self.below(6) {
            let at = self.below(bytes.len());
            let byte = self.next().to_le_bytes()[0];
            let bytes_in_head = bytes.len().clamp(1, 64);
            match self.below(7) {
                // The head is where the numbers are that matter.
                0 | 1 if !bytes.is_empty() => bytes[at % bytes_in_head] = byte,
                2 if !bytes.is_empty() => bytes[at] ^= 1 << (byte % 8),
                3 if !bytes.is_empty() => bytes[at..].iter_mut().take(8).for_each(|b| *b = 0xff),
                4 => bytes.truncate(at),
                5 => bytes.insert(at, byte),
                _ => {
                    let other = &seeds[self.below(seeds.len())];
                    let from = self.below(other.len());
                    let part = other[from..].iter().take(40).copied();
                    let end = (at + part.len()).min(bytes.len());
                    bytes.splice(at..end, part);
                }
            }
        }
        bytes
    }
}

#[test]
fn damaged_messages_are_read_or_refused() {
    let seeds = seeds();
    seeds.iter().for_each(|seed| read_all(seed));
    let seconds = std::env::var("NVMEOF_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let started = Instant::now();
    let mut seed = match seconds {
        // Another run does other rounds.
        Some(_) => u64::from(std::process::id()) << 32,
        None => 0,
    };
    let mut rounds = 0_u64;
    while seconds.map_or(rounds < ROUNDS, |most: u64| started.elapsed() < Duration::from_secs(most))
    {
        rounds += 1;
        seed += 1;
        let bytes = Random(seed).damaged(&seeds);
        if let Err(panic) = catch_unwind(|| read_all(&bytes)) {
            println!("seed {seed}: {bytes:02x?}");
            std::panic::resume_unwind(panic);
        }
    }
    println!("{rounds} rounds");
}
