//! What can be registered, and what the CPU sees of it.

use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use ibverbs::{
    Access, CompletionStatus, DeviceMemory, HostBuffer, HugePages, MemoryRegion, OwnedBuffer,
    PageAligned, SendWr, SharedBytes,
};
use soft_device::SoftDevice;

use crate::{
    common::{ALL, End, Host, Shape, pattern},
    support::{assert_clean, memory_file, open, part_of},
};

/// A peer writes to a buffer, which comes back with that.
fn goes_around<B: HostBuffer>(host: &Host, buffer: B, length: usize) -> B {
    let (a, _b) = host.ends(Shape { memory: length, ..Shape::default() });
    let region = MemoryRegion::register(&host.domain, buffer, ALL).unwrap();
    assert_eq!(region.len(), length);
    assert_eq!(region.shared_bytes().unwrap().as_ptr(), region.bytes().as_ptr());
    a.put(0, &pattern(9, length));
    let to = region.remote().at(0).unwrap();
    a.post(SendWr::write(a.memory.segment(..).unwrap(), &to).signaled());
    a.sent().outcome().unwrap();
    assert_eq!(region.bytes().to_vec(), pattern(9, length));
    region.into_buffer().unwrap()
}

#[test]
fn vectors_and_slices_of_numbers_come_back_as_the_same_allocation() {
    let device = SoftDevice::new();
    let host = open(&device);
    let mut floats = Vec::with_capacity(100);
    floats.resize(16, 0.0_f32);
    let address = floats.as_ptr();
    let floats = goes_around(&host, floats, 64);
    assert_eq!((floats.as_ptr(), floats.len(), floats.capacity()), (address, 16, 100));
    let bytes: Vec<u8> = floats.iter().flat_map(|float| float.to_ne_bytes()).collect();
    assert_eq!(bytes, pattern(9, 64));

    let words = vec![0_u64; 8].into_boxed_slice();
    let address = words.as_ptr();
    let words = goes_around(&host, words, 64);
    assert_eq!(words.as_ptr(), address);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    assert_eq!(bytes, pattern(9, 64));

    let blocks = goes_around(&host, vec![[0_i16; 4]; 8], 64);
    assert_eq!(blocks.len(), 8);
}

#[test]
fn pages_come_back_as_the_same_allocation() {
    let device = SoftDevice::new();
    let host = open(&device);
    let pages = PageAligned::new(5000).unwrap();
    let address = pages.as_slice().as_ptr();
    assert!(address.addr().is_multiple_of(PageAligned::ALIGNMENT));
    let pages = goes_around(&host, pages, 5000);
    assert_eq!((pages.as_slice().as_ptr(), pages.as_slice()), (address, &pattern(9, 5000)[..]));
}

#[test]
fn huge_pages_come_back_as_the_same_mapping() {
    let pages = match HugePages::new(10_000, 2 << 20) {
        Ok(pages) => pages,
        Err(error) => {
            println!("skipped: {error}");
            return;
        }
    };
    let device = SoftDevice::new();
    let host = open(&device);
    let address = pages.as_slice().as_ptr();
    let pages = goes_around(&host, pages, 2 << 20);
    assert_eq!((pages.as_slice().as_ptr(), pages.as_slice()), (address, &pattern(9, 2 << 20)[..]));
}

#[test]
fn lengths_of_huge_pages_that_cannot_be_are_refused() {
    for (length, page) in [(0, 2 << 20), (1, 0), (1, 3 << 20), (1, 1 << 63), (usize::MAX, 2 << 20)]
    {
        HugePages::new(length, page).unwrap_err();
    }
}

#[test]
#[expect(unsafe_code, reason = "registers memory of which nothing is promised")]
fn nothing_cannot_be_registered_and_the_remedy_is_told() {
    let device = SoftDevice::new();
    let host = open(&device);
    let (domain, nowhere, file) = (&host.domain, NonNull::<u8>::dangling(), memory_file(4096));
    let device_memory = DeviceMemory::allocate(&host.context, 64, 0).unwrap();
    // SAFETY: no byte is registered, here and below.
    let foreign = unsafe { domain.register_raw(nowhere, 0, ALL) };
    // SAFETY: as above.
    let of_a_file = unsafe { domain.register_dma_buf(vec![0_u8; 1], part_of(&file, 0, 0, 0), ALL) };
    // SAFETY: as above.
    let of_a_peer = unsafe {
        MemoryRegion::register_peer_memory(domain, vec![0_u8; 1], nowhere, 0, Access::LOCAL_WRITE)
    };
    let refused = [
        MemoryRegion::register(domain, Vec::<u8>::with_capacity(64), ALL).map(drop),
        MemoryRegion::register(domain, Box::<[u64]>::default(), Access::RELAXED_ORDERING).map(drop),
        domain.register(vec![[0_u8; 0]; 64], ALL).map(drop),
        OwnedBuffer::register(domain, Vec::<u8>::new()).map(drop),
        domain.scope(|scope| scope.register::<u8>(&mut [], ALL).map(|_| ())),
        foreign.map(drop),
        of_a_file.map(drop),
        of_a_peer.map(drop),
        MemoryRegion::register_device_memory(domain, device_memory, 32..32, ALL).map(drop),
    ];
    for (index, refused) in refused.into_iter().enumerate() {
        let text = refused.unwrap_err().to_string();
        assert!(
            text.starts_with("a memory region cannot have 0 bytes: give the buffer"),
            "{index}: {text}"
        );
        assert!(text.contains("register nothing"), "{index}: {text}");
    }
    for verb in ["ibv_reg_mr", "ibv_reg_mr_iova", "ibv_reg_dmabuf_mr", "ibv_reg_dm_mr"] {
        assert_eq!(device.calls(verb), 0, "{verb}");
    }
    drop(host);
    assert_clean(&device);
}

#[test]
fn memory_that_nobody_writes_is_a_slice_of_its_owner() {
    let device = SoftDevice::new();
    let host = open(&device);
    for access in [Access::LOCAL_WRITE, Access::LOCAL_WRITE | Access::REMOTE_WRITE, ALL] {
        assert!(host.region(vec![0; 8], access).as_mut_slice().is_none(), "{access:?}");
    }
    for access in [Access::READ_ONLY, Access::REMOTE_READ] {
        let mut region = host.region(vec![0; 8], access);
        region.as_mut_slice().unwrap().copy_from_slice(b"eight by");
        assert_eq!(region.bytes().to_vec(), b"eight by");
    }
}

#[test]
fn a_device_does_not_write_where_it_has_no_right_to() {
    let device = SoftDevice::new();
    let host = open(&device);
    let (a, b) = host.ends(Shape::default());
    let region = host.region(vec![0; 8], Access::REMOTE_READ);
    a.put(0, b"intruder");
    let to = region.remote().at(0).unwrap();
    a.post(SendWr::write(a.memory.segment(..8).unwrap(), &to).signaled());
    assert_eq!(a.sent().status(), CompletionStatus::REMOTE_ACCESS_ERROR);
    let from = a.memory.remote().at(0).unwrap();
    b.post(SendWr::read(region.segment(..).unwrap(), &from).signaled());
    let status = b.sent().status();
    assert!(
        [CompletionStatus::LOCAL_PROTECTION_ERROR, CompletionStatus::WORK_FLUSHED]
            .contains(&status)
    );
    assert_eq!(region.into_buffer().unwrap(), [0; 8]);
}

#[test]
fn regions_that_count_from_zero_are_reached_from_zero() {
    let device = SoftDevice::new();
    let host = open(&device);
    let (a, _b) = host.ends(Shape::default());
    let region = host.region(vec![0; 64], ALL | Access::ZERO_BASED);
    assert_eq!(region.address(), 0);
    a.put(0, &pattern(1, 8));
    let to = region.remote().at(16).unwrap();
    assert_eq!(to.address(), 16);
    a.post(SendWr::write(a.memory.segment(..8).unwrap(), &to).signaled());
    a.sent().outcome().unwrap();
    assert_eq!(region.bytes().to_vec()[16..24], pattern(1, 8));
}

#[test]
fn segments_lie_inside_of_their_region() {
    let device = SoftDevice::new();
    let host = open(&device);
    let region = host.region(vec![0; 100], ALL);
    let start = region.address();
    for (segment, at, length) in [
        (region.segment(..), 0, 100),
        (region.segment(10..), 10, 90),
        (region.segment(..=9), 0, 10),
        (region.segment(100..100), 100, 0),
    ] {
        let segment = segment.unwrap();
        assert_eq!((segment.address(), segment.len()), (start + at, length));
        assert_eq!(segment.local_key(), region.local_key());
    }
    #[expect(clippy::reversed_empty_ranges, reason = "they are to be refused")]
    let outside = [
        region.segment(0..101),
        region.segment(101..),
        region.segment(5..4),
        region.segment(..=100),
    ];
    for segment in outside {
        let text = segment.unwrap_err().to_string();
        assert!(text.contains("the memory region, which has 100 bytes"), "{text}");
    }
    region.segment(..=usize::MAX).unwrap_err();
    region.segment(usize::MAX..).unwrap_err();
}

/// Bytes of one of two transfers, whichever came first or last.
fn is_a_mixture(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0x55 || *byte == 0xaa)
}

#[test]
fn shared_bytes_are_read_while_a_peer_writes_them() {
    let device = SoftDevice::new();
    let host = open(&device);
    let (a, b) = host.ends(Shape { memory: 8192, ..Shape::default() });
    a.memory.bytes().fill(0, 4096, 0x55).unwrap();
    a.memory.bytes().fill(4096, 4096, 0xaa).unwrap();
    b.memory.bytes().fill(0, 4096, 0x55).unwrap();
    let to = b.memory.remote().part(0..4096).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..400 {
                let at = (round % 2) * 4096;
                a.post(SendWr::write(a.memory.segment(at..at + 4096).unwrap(), &to).signaled());
                a.sent().outcome().unwrap();
            }
            stop.store(true, Ordering::Release);
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let mut bytes = vec![0; 4000];
                while !stop.load(Ordering::Acquire) {
                    b.memory.bytes().read(33, &mut bytes).unwrap();
                    assert!(is_a_mixture(&bytes));
                    let word = b.memory.bytes().get::<u64>(64).unwrap();
                    assert!([0x5555_5555_5555_5555, 0xaaaa_aaaa_aaaa_aaaa].contains(&word));
                }
            });
        }
    });
    assert_eq!(b.get(0, 4096), [0xaa; 4096]);
}

#[test]
fn shared_bytes_are_written_while_a_peer_reads_them() {
    let device = SoftDevice::new();
    let host = open(&device);
    let (a, b) = host.ends(Shape { memory: 4096, ..Shape::default() });
    b.memory.bytes().fill(0, 4096, 0x55).unwrap();
    let from = b.memory.remote().at(0).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..400 {
                a.post(SendWr::read(a.memory.segment(..).unwrap(), &from).signaled());
                a.sent().outcome().unwrap();
                assert!(is_a_mixture(&a.get(0, 4096)));
            }
            stop.store(true, Ordering::Release);
        });
        while !stop.load(Ordering::Acquire) {
            b.memory.bytes().fill(1, 4000, 0xaa).unwrap();
            b.memory.bytes().fill(1, 4000, 0x55).unwrap();
        }
    });
}

#[test]
fn a_word_that_a_peer_counts_in_is_waited_on() {
    let device = SoftDevice::new();
    let host = open(&device);
    let (a, b) = host.ends(Shape::default());
    let word = b.memory.bytes().word(64).unwrap();
    let to = b.memory.remote().part(64..72).unwrap();
    std::thread::scope(|scope| {
        let a: &End = &a;
        scope.spawn(move || {
            for _ in 0..100 {
                let into = a.memory.segment(..8).unwrap();
                a.post(SendWr::fetch_and_add(into, &to, 1).signaled());
                a.sent().outcome().unwrap();
            }
        });
        while word.load(Ordering::Acquire) < 100 {
            std::thread::yield_now();
        }
    });
    assert_eq!(word.load(Ordering::Relaxed), 100);
}

#[test]
fn shared_bytes_go_to_other_threads() {
    let device = SoftDevice::new();
    let host = open(&device);
    let region = Arc::new(host.region(vec![0; 800], ALL));
    std::thread::scope(|scope| {
        for thread in 0..8_u8 {
            let bytes: SharedBytes<'_> = region.bytes();
            scope.spawn(move || bytes.write(usize::from(thread) * 100, &[thread; 100]).unwrap());
        }
    });
    let expected: Vec<u8> = (0..8).flat_map(|thread| [thread; 100]).collect();
    assert_eq!(region.bytes().to_vec(), expected);
}
