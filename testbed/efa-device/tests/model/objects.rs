use efa_device::DeviceConfig;

use crate::driver::{ALL_ACCESS, Driver, Network, Payload, SRD, srd_pair, u16_at, u32_at};

const NO_RESOURCES: u8 = 1;
const MALFORMED: u8 = 4;
const ILLEGAL: u8 = 5;
const BUSY: u8 = 7;

fn driver() -> Driver {
    Network::calm().device(DeviceConfig::default())
}

#[test]
fn each_kind_of_object_has_its_limit() {
    let network = Network::calm();
    let mut driver = network.device(DeviceConfig {
        max_queue_pairs: 2,
        max_completion_queues: 1,
        max_protection_domains: 1,
        max_address_handles: 1,
        max_memory_regions: 1,
        ..DeviceConfig::default()
    });
    let pd = driver.pd();
    assert_eq!(driver.command(14, &[]), Err(NO_RESOURCES));
    driver.ah(pd, [1; 16]);
    let handle = Payload::default().bytes(0, &[2; 16]).u16(16, pd);
    assert_eq!(driver.command(5, &handle), Err(NO_RESOURCES));
    let cq = driver.cq(16);
    let queue = Payload::default().u8(1, 8).u16(2, 16).u16(20, 1);
    assert_eq!(driver.command(9, &queue), Err(NO_RESOURCES));
    for _ in 0..2 {
        driver.qp(SRD, pd, &cq);
    }
    let payload = driver.qp_payload(SRD, pd, &cq);
    assert_eq!(driver.qp_from(&payload).map(drop), Err(NO_RESOURCES));
    driver.mr(pd, 4096, ALL_ACCESS);
    assert_eq!(driver.command(7, &inline_region(pd, 0x1000, 1)), Err(NO_RESOURCES));
}

#[test]
fn objects_in_use_are_busy() {
    let mut driver = driver();
    let pd = driver.pd();
    let (eq, _) = driver.eq(1);
    let cq = driver.cq_with(16, 1 << 5, 0, eq);
    let qp = driver.qp(SRD, pd, &cq);
    let (mr, _) = driver.mr(pd, 4096, ALL_ACCESS);
    let ah = driver.ah(pd, [1; 16]);
    let domain = Payload::default().u16(0, pd);
    let queue = Payload::default().u16(0, cq.number);
    let events = Payload::default().u16(0, eq);
    assert_eq!(driver.command(19, &events), Err(BUSY));
    assert_eq!(driver.command(10, &queue), Err(BUSY));
    driver.destroy(&qp);
    assert_eq!(driver.command(15, &domain), Err(BUSY));
    driver.deregister(&mr).expect("a region");
    assert_eq!(driver.command(15, &domain), Err(BUSY));
    driver.command(6, &Payload::default().u16(0, ah).u16(2, pd)).expect("a handle");
    driver.command(15, &domain).expect("a free domain");
    driver.command(10, &queue).expect("a free queue");
    driver.command(19, &events).expect("a free queue");
}

#[test]
fn what_does_not_exist_is_an_illegal_parameter() {
    let mut driver = driver();
    for opcode in [2, 3, 4, 6, 8, 10, 15, 17, 19, 26, 27, 28, 29] {
        let payload = Payload::default().u32(0, 7).u32(4, 7).u32(60, 0);
        assert_eq!(driver.command(opcode, &payload), Err(ILLEGAL), "opcode {opcode}");
    }
    let pd = driver.pd();
    let cq = driver.cq(16);
    let good = driver.qp_payload(SRD, pd, &cq);
    let with = |field: usize, value: u32| {
        let mut bytes = good.to_vec();
        bytes[field..field + 4].copy_from_slice(&value.to_le_bytes());
        bytes
    };
    let bad = [
        ("kind", with(0, u32::from(pd) | 3 << 16)),
        ("domain", with(0, 9 | 2 << 16)),
        ("virtual ring", with(0, u32::from(pd) | 2 << 16 | 1 << 24)),
        ("send queue", with(20, 9)),
        ("receive queue", with(24, 9)),
        ("request size", with(36, 16 * 32)),
        ("send depth", with(40, 12)),
        ("receive ring", with(44, 48)),
        ("large send ring", with(36, 1 << 20)),
    ];
    for (what, payload) in bad {
        assert_eq!(driver.qp_from(&payload).map(drop), Err(ILLEGAL), "{what}");
    }
    driver.qp_from(&good).expect("the rest is right");
}

#[test]
fn completion_queues_of_wrong_shapes_are_refused() {
    let mut driver = driver();
    let good = || Payload::default().u8(1, 8).u16(2, 16).u16(20, 1);
    driver.command(9, &good()).expect("no fault");
    let bad = [
        good().u16(2, 12),
        good().u16(2, 0),
        good().u8(1, 6),
        good().u8(1, 4 | 1 << 5),
        good().u8(0, 1 << 6),
        good().u16(20, 2),
        good().u8(0, 1 << 5).u16(4, 3),
    ];
    for payload in bad {
        assert_eq!(driver.command(9, &payload), Err(ILLEGAL));
    }
}

#[test]
fn event_queues_need_their_own_vector_and_a_power_of_two() {
    let mut driver = driver();
    let good = || Payload::default().u16(0, 64).u8(2, 1).u8(3, 4).u64(4, 0x1000);
    driver.command(18, &good()).expect("no fault");
    for payload in [good().u8(2, 0), good().u8(2, 9), good().u16(0, 63), good().u8(3, 8)] {
        assert_eq!(driver.command(18, &payload), Err(ILLEGAL));
    }
}

fn inline_region(pd: u16, length: u64, pages: usize) -> Payload {
    (0..pages)
        .fold(Payload::default(), |payload, page| {
            payload.u64(4 + 8 * page, 0x10_0000 + 0x1000 * page as u64)
        })
        .u16(0, pd)
        .u64(36, length)
        .u8(44, 12)
        .u8(45, 7)
        .u64(52, 0x5000_0123)
        .u32(60, 0)
}

#[test]
fn short_regions_have_their_pages_in_the_command() {
    let mut driver = driver();
    let pd = driver.pd();
    let keys = driver.command(7, &inline_region(pd, 3 * 4096, 4)).expect("a region");
    assert_ne!(u32_at(&keys, 0), u32_at(&keys, 4), "local and remote key differ");
    assert_eq!(keys[8], 7, "all interconnects are valid");
    assert_eq!(driver.command(7, &inline_region(pd, 4 * 4096, 4)), Err(MALFORMED), "five pages");
}

#[test]
fn regions_of_wrong_shapes_are_refused() {
    let mut driver = driver();
    let pd = driver.pd();
    let good = || inline_region(pd, 4096, 2);
    let bad = [
        ("length 0", good().u64(36, 0)),
        ("end of address space", good().u64(52, u64::MAX - 100)),
        ("page size", good().u8(44, 11)),
        ("huge page size", good().u8(44, 63)),
        ("physical", good().u8(44, 12 | 0x80)),
        ("page address", good().u64(4, 0x10_0001)),
        ("domain", good().u16(0, 9)),
    ];
    for (what, payload) in bad {
        assert_eq!(driver.command(7, &payload), Err(ILLEGAL), "{what}");
    }
    let endless = good().u64(36, 1 << 60);
    assert_eq!(driver.command(7, &endless), Err(NO_RESOURCES));
    let short_list = good().u32(4, 8).u64(8, 0x2000).u64(36, 8192);
    assert_eq!(driver.command_with(7, 2, &short_list), Err(MALFORMED));
    let no_memory = good().u32(4, 64).u64(8, u64::MAX - 7);
    assert_eq!(driver.command_with(7, 2, &no_memory), Err(MALFORMED));
}

/// Writes a chain of chunks for `pages` and returns the length and address of the first.
fn chunks(driver: &mut Driver, pages: &[u64]) -> (u32, u64) {
    let lists: Vec<u64> = pages
        .chunks(512)
        .map(|part| {
            let list = driver.allocate(4096);
            driver
                .write(list, &part.iter().flat_map(|page| page.to_le_bytes()).collect::<Vec<_>>());
            list
        })
        .collect();
    // Three addresses to a chunk, where the driver has 510, to make a chain of a small region.
    let mut next = (0, 0);
    for part in lists.chunks(3).rev() {
        let chunk = driver.allocate(4096);
        let mut bytes: Vec<u8> = part.iter().flat_map(|list| list.to_le_bytes()).collect();
        bytes.extend(u32::to_le_bytes(next.0));
        bytes.extend(u64::to_le_bytes(next.1));
        driver.write(chunk, &bytes);
        next = (u32::try_from(bytes.len()).unwrap(), chunk);
    }
    next
}

#[test]
fn an_indirect_page_list_is_followed_through_its_chain() {
    let network = Network::calm();
    let [mut a, mut b] = srd_pair(&network);
    // 2100 pages in reverse order, of which most are one page over and over.
    let (first, shared) = (b.driver.allocate(4096), b.driver.allocate(4096));
    let last = b.driver.allocate(4096);
    let mut pages = vec![shared; 2100];
    pages[0] = first;
    pages[2099] = last;
    let (length, chunk) = chunks(&mut b.driver, &pages);
    let payload = Payload::default()
        .u16(0, b.pd)
        .u32(4, length)
        .u64(8, chunk)
        .u64(36, 2100 * 4096)
        .u8(44, 12)
        .u8(45, ALL_ACCESS)
        .u64(52, 0x9000_0000);
    let keys = b.driver.command_with(7, 2 | 4, &payload).expect("a region");
    let remote = crate::driver::Buffer {
        address: 0x9000_0000 + 2099 * 4096 + 7,
        length: 5,
        key: u32_at(&keys, 4),
    };
    a.fill(0, b"chain");
    let post = crate::driver::Post::write(1, a.mr.local(0, 5), remote).to(a.ah, &b.qp);
    a.post(post);
    network.settle();
    assert_eq!(a.only().status, 0);
    assert_eq!(b.driver.machine.bytes(last + 7, 5), b"chain");
}

#[test]
fn a_broken_chain_of_page_lists_ends_as_malformed() {
    let mut driver = driver();
    let pd = driver.pd();
    let region = |length: u32, chunk: u64| {
        Payload::default()
            .u16(0, pd)
            .u32(4, length)
            .u64(8, chunk)
            .u64(36, 2000 * 4096)
            .u8(44, 12)
            .u8(45, 7)
            .u64(52, 0x9000_0000)
    };
    let pages = vec![0x10_0000; 600];
    let (length, chunk) = chunks(&mut driver, &pages);
    // The chain ends before 2000 pages.
    assert_eq!(driver.command_with(7, 6, &region(length, chunk)), Err(MALFORMED));
    for length in [0, 12, 19, 4097, u32::MAX] {
        assert_eq!(driver.command_with(7, 6, &region(length, chunk)), Err(MALFORMED), "{length}");
    }
    assert_eq!(driver.command_with(7, 6, &region(20, u64::MAX - 100)), Err(MALFORMED));
}

#[test]
fn a_destination_has_one_address_handle_in_each_domain() {
    let mut driver = driver();
    let (one, two) = (driver.pd(), driver.pd());
    let ah = driver.ah(one, [7; 16]);
    assert_eq!(driver.ah(one, [7; 16]), ah);
    assert_ne!(driver.ah(two, [7; 16]), ah);
    let nowhere = Payload::default().bytes(0, &[7; 16]).u16(16, 99);
    assert_eq!(driver.command(5, &nowhere), Err(ILLEGAL));
}

#[test]
fn a_new_queue_pair_in_an_old_place_has_a_new_number() {
    let mut driver = driver();
    let pd = driver.pd();
    let cq = driver.cq(16);
    let old = driver.qp(SRD, pd, &cq);
    driver.destroy(&old);
    let new = driver.qp(SRD, pd, &cq);
    assert_ne!(old.number, new.number);
    assert_eq!(old.number & 0xff, new.number & 0xff, "the same place in the provider's table");
    assert_eq!(driver.command(3, &Payload::default().u32(0, old.handle)), Err(ILLEGAL));
}

#[test]
fn statistics_count_what_went_over_the_wire() {
    let network = Network::calm();
    let [mut a, mut b] = srd_pair(&network);
    b.post_receive(1, 0, 100);
    let send = crate::driver::Post::send(1, &[a.mr.local(0, 60)]).to(a.ah, &b.qp);
    let write = crate::driver::Post::write(2, a.mr.local(0, 1000), b.mr.remote(0, 1000));
    let read = crate::driver::Post::read(3, a.mr.local(0, 10), b.mr.remote(0, 10));
    for post in [send, write.to(a.ah, &b.qp), read.to(a.ah, &b.qp)] {
        a.post(post);
    }
    network.settle();
    let group = |driver: &mut Driver, kind| {
        let counts = driver.command(13, &Payload::default().u8(12, kind)).expect("counts");
        (0..6).map(|n| crate::driver::u64_at(&counts, 8 * n)).collect::<Vec<u64>>()
    };
    assert_eq!(group(&mut a.driver, 0)[..2], [1060, 2], "sent bytes and packets");
    assert_eq!(group(&mut b.driver, 0)[2..4], [1060, 2], "received bytes and packets");
    assert_eq!(group(&mut a.driver, 1)[..2], [60, 1]);
    assert_eq!(group(&mut b.driver, 1)[2..4], [60, 1]);
    assert_eq!(group(&mut a.driver, 2)[..2], [1, 10]);
    assert_eq!(group(&mut b.driver, 2)[3], 10);
    assert_eq!(group(&mut a.driver, 3)[..2], [1, 1000]);
    assert_eq!(group(&mut b.driver, 3)[3], 1000);
    assert_eq!(u16_at(&a.drain()[0].entry, 0), 1);
}
