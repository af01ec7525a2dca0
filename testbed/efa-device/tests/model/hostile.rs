//! A guest that means harm gets nonsense back; the model goes on.

use std::time::Duration;

use efa_device::{DeviceConfig, FabricConfig, GuestMemory};

use crate::driver::{End, Network, Post, crc16, srd_pair};

/// Numbers that look random and are the same in every run.
struct Noise(u64);

impl Noise {
    fn u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.0 ^ self.0 >> 29
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.u64() >> 7) % bound
    }

    fn u32(&mut self) -> u32 {
        (self.u64() >> 20) as u32
    }

    /// Bytes among which the values that hurt are frequent.
    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < length {
            let word = match self.below(6) {
                0 => 0,
                1 => u64::MAX,
                2 => self.below(8),
                3 => self.below(16 << 20) & !0xfff,
                _ => self.u64(),
            };
            bytes.extend(word.to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }
}

fn still_works(network: &Network, [a, b]: &mut [End; 2]) {
    for end in [&mut *a, &mut *b] {
        end.driver.probe();
        end.pd = end.driver.pd();
        end.cq = end.driver.cq(16);
        let cq = end.cq;
        end.qp = end.driver.qp(crate::driver::SRD, end.pd, &cq);
    }
    let (to_b, to_a) = (b.driver.gid, a.driver.gid);
    a.ah = a.driver.ah(a.pd, to_b);
    b.ah = b.driver.ah(b.pd, to_a);
    let (mr, physical) = b.driver.mr(b.pd, 4096, 7);
    (b.mr, b.physical) = (mr, physical);
    b.post_receive(1, 0, 64);
    a.post(Post::inline(1, b"alive").to(a.ah, &b.qp));
    network.advance(Duration::from_secs(2));
    network.settle();
    assert_eq!(b.only().status, 0);
    assert_eq!(b.bytes(0, 5), b"alive");
}

#[test]
fn random_commands_never_stop_the_model() {
    let network = Network::calm();
    let mut ends = srd_pair(&network);
    let mut noise = Noise(1);
    for round in 0..20_000 {
        let driver = &mut ends[round % 2].driver;
        let mut entry = noise.bytes(128);
        entry[2] = noise.below(32) as u8;
        entry[4..6].fill(0);
        let checksum = crc16(&entry);
        entry[4..6].copy_from_slice(&checksum.to_le_bytes());
        driver.submit_entry(&entry);
        assert!(driver.response().is_some(), "round {round}");
    }
    still_works(&network, &mut ends);
}

#[test]
fn random_send_requests_each_complete_once() {
    let network = Network::new(FabricConfig::default());
    let mut ends = srd_pair(&network);
    let [a, b] = &mut ends;
    let qp = a.qp;
    a.driver.set_rnr_retry(&qp, 0);
    let mut noise = Noise(2);
    let mut completed = 0;
    for _ in 0..2_000_u32 {
        let mut request = noise.bytes(64);
        request[2] = noise.below(4) as u8 | (noise.u32() as u8 & 0xf0);
        if noise.below(2) == 0 {
            request[4..6].copy_from_slice(&b.qp.number.to_le_bytes());
            request[12..14].copy_from_slice(&a.ah.to_le_bytes());
            request[16..20].copy_from_slice(&crate::driver::QKEY.to_le_bytes());
            request[36..40].copy_from_slice(&a.mr.lkey.to_le_bytes());
        }
        let slot = usize::from(a.qp.sent % 16) * 64;
        a.driver.machine.send_queues.lock().unwrap()[slot..slot + 64].copy_from_slice(&request);
        a.qp.sent = a.qp.sent.wrapping_add(1);
        a.driver.ring(a.qp.send_doorbell.into(), a.qp.sent.into());
        network.advance(Duration::from_secs(1));
        network.advance(Duration::from_secs(1));
        completed += a.drain().len();
    }
    assert_eq!(completed, 2_000);
    still_works(&network, &mut ends);
}

#[test]
fn random_receive_descriptors_never_stop_the_model() {
    let network = Network::calm();
    let mut ends = srd_pair(&network);
    let [a, b] = &mut ends;
    let mut noise = Noise(3);
    for id in 0..2_000 {
        let junk = noise.bytes(16);
        let buffer = crate::driver::Buffer {
            address: crate::driver::u64_at(&junk, 0),
            length: noise.below(1 << 16) as u32,
            key: if noise.below(2) == 0 { b.mr.lkey } else { noise.u32() & 0xff_ffff },
        };
        b.driver.post_receive(&mut b.qp, id, &[buffer]);
        a.post(Post::inline(id, b"x").to(a.ah, &b.qp));
        network.settle();
        assert_eq!((a.drain().len(), b.drain().len()), (1, 1));
    }
    still_works(&network, &mut ends);
}

#[test]
fn random_register_and_doorbell_writes_never_stop_the_model() {
    let network = Network::new(FabricConfig::default());
    let mut ends = srd_pair(&network);
    let mut noise = Noise(4);
    for round in 0..50_000_u32 {
        let driver = &ends[(round % 2) as usize].driver;
        let value = match noise.below(3) {
            0 => noise.below(20) as u32,
            1 => noise.u32(),
            _ => u32::MAX,
        };
        if noise.below(2) == 0 {
            driver.write_register(noise.below(0x80), value);
        } else {
            driver.ring(noise.below(1 << 22), value);
        }
        network.advance(Duration::from_micros(10));
    }
    still_works(&network, &mut ends);
}

#[test]
fn doorbells_that_claim_more_than_a_queue_holds_are_ignored() {
    let network = Network::calm();
    let [mut a, mut b] = srd_pair(&network);
    a.driver.ring(a.qp.send_doorbell.into(), 17);
    a.driver.ring(a.qp.receive_doorbell.into(), 65);
    network.settle();
    assert_eq!(a.drain(), []);
    b.post_receive(1, 0, 64);
    a.post(Post::inline(1, b"x").to(a.ah, &b.qp));
    network.settle();
    assert_eq!(a.only().status, 0);
}

#[test]
fn a_driver_that_does_not_wait_for_completions_has_no_more_under_way_than_its_queue_holds() {
    let network = Network::calm();
    let [mut a, mut b] = srd_pair(&network);
    for _ in 0..100 {
        for id in 0..16 {
            a.post(Post::inline(id, b"x").to(a.ah, &b.qp));
        }
    }
    // Sixteen wait for a receive, sixteen in their queue; the other doorbells claimed too much.
    network.settle();
    assert_eq!(a.drain(), []);
    for id in 0..40 {
        b.post_receive(id, 0, 64);
    }
    network.settle();
    assert_eq!((a.drain().len(), b.drain().len()), (32, 32));
}

#[test]
fn rings_outside_memory_lose_their_entries_and_nothing_else() {
    let network = Network::calm();
    let mut driver = network.device(DeviceConfig::default());
    driver.write_register(0x14, 0xffff_ffff);
    driver.submit(14, 0, &[]);
    assert_eq!(driver.response(), None);
    driver.probe();
    driver.write_register(0x24, 0xffff_ffff);
    driver.submit(14, 0, &[]);
    assert_eq!(driver.response(), None);
    driver.probe();
    driver.pd();
    assert!(driver.machine.read(u64::MAX, &mut [0]).is_err());
}
