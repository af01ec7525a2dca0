//! Memory behind a descriptor: offset, address and length are checked, and the address is kept.
#![expect(unsafe_code, reason = "registers memory by its descriptor")]

use std::os::unix::fs::FileExt;

use ibverbs::{Access, Error, MemoryRegion, SendWr};
use soft_device::SoftDevice;

use crate::{
    common::{ALL, Host, Shape, pattern},
    support::{assert_clean, memory_file, open, part_of},
    udmabuf,
};

fn register(
    host: &Host,
    file: &std::fs::File,
    offset: u64,
    length: usize,
    address: u64,
) -> Result<MemoryRegion<'static, Vec<u8>>, Error> {
    let part = part_of(file, offset, length, address);
    // SAFETY: the file is used through this region and through file I/O only.
    unsafe { MemoryRegion::register_dma_buf(&host.domain, Vec::<u8>::new(), part, ALL) }
}

#[test]
fn a_part_is_reached_at_the_address_that_it_was_given() {
    let device = SoftDevice::new();
    let host = open(&device);
    let (a, _b) = host.ends(Shape::default());
    let file = memory_file(3 * 4096);
    // What the device calls the first byte has nothing to do with where the CPU would find it.
    let region = register(&host, &file, 4096 + 64, 1000, 0x7000_0000_0040).unwrap();
    assert_eq!((region.address(), region.len()), (0x7000_0000_0040, 1000));
    assert_eq!(region.remote().at(8).unwrap().address(), 0x7000_0000_0048);
    assert!(region.shared_bytes().is_none(), "the CPU may not reach it at all");
    drop(file.try_clone().unwrap());
    a.put(0, &pattern(1, 100));
    let to = region.remote().at(900).unwrap();
    a.post(SendWr::write(a.memory.segment(..100).unwrap(), &to).signaled());
    a.sent().outcome().unwrap();
    let mut found = [0; 100];
    file.read_exact_at(&mut found, 4096 + 64 + 900).unwrap();
    assert_eq!(found[..], pattern(1, 100));
    // And it is a segment of this side's requests.
    let to = a.memory.remote().at(1000).unwrap();
    let (a2, _b2) = host.ends(Shape::default());
    a2.post(SendWr::write(region.segment(900..).unwrap(), &to).signaled());
    a2.sent().outcome().unwrap();
    assert_eq!(a.get(1000, 100), pattern(1, 100));
}

#[test]
fn the_descriptor_may_be_closed_while_the_region_lives() {
    let device = SoftDevice::new();
    let host = open(&device);
    let (a, _b) = host.ends(Shape::default());
    let file = memory_file(4096);
    let other = file.try_clone().unwrap();
    let region = register(&host, &file, 0, 4096, 0).unwrap();
    drop(file);
    let to = region.remote().at(0).unwrap();
    a.post(SendWr::write(a.memory.segment(..8).unwrap(), &to).signaled());
    a.sent().outcome().unwrap();
    region.into_buffer().unwrap();
    drop(other);
}

#[test]
fn offset_and_address_must_agree_within_a_page() {
    let device = SoftDevice::new();
    let host = open(&device);
    let file = memory_file(8192);
    for (offset, address) in [(1, 0), (0, 1), (64, 0x1000), (4096, 0x1fff)] {
        let error = register(&host, &file, offset, 8, address).unwrap_err();
        assert!(error.to_string().contains("differ within a page"), "{error}");
    }
    assert_eq!(device.calls("ibv_reg_dmabuf_mr"), 0, "refused before anything is called");
    register(&host, &file, 64, 8, 0x1040).unwrap();
    drop(host);
    assert_clean(&device);
}

#[test]
fn lengths_that_cannot_be_are_refused() {
    let device = SoftDevice::new();
    let host = open(&device);
    let file = memory_file(8192);
    let message = |outcome: Result<_, Error>| outcome.map(drop).unwrap_err().to_string();
    let text = message(register(&host, &file, 0, 0, 0));
    assert!(text.contains("a memory region cannot have 0 bytes"), "{text}");
    let text = message(register(&host, &file, u64::MAX - 4095, 8192, 0));
    assert!(
        text.contains("cannot be 8192: it must be from 1 to 4095; offset and address"),
        "{text}"
    );
    // Where the region is called so that it would end past the address space.
    let text = message(register(&host, &file, 0, 8192, u64::MAX - 4095));
    assert!(
        text.contains("cannot be 8192: it must be from 1 to 4095; offset and address"),
        "{text}"
    );
    assert_eq!(device.calls("ibv_reg_dmabuf_mr"), 0, "refused before anything is called");
    // What only the kernel knows.
    let error = register(&host, &file, 4096, 4097, 0).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EINVAL));
}

#[test]
fn remote_rights_need_local_ones() {
    let device = SoftDevice::new();
    let host = open(&device);
    let file = memory_file(4096);
    let (part, access) = (part_of(&file, 0, 4096, 0), Access::REMOTE_WRITE);
    // SAFETY: nothing is registered.
    let refused = unsafe { host.domain.register_dma_buf(Vec::<u8>::new(), part, access) };
    assert!(refused.unwrap_err().to_string().contains("add Access::LOCAL_WRITE"));
}

#[test]
fn a_device_that_cannot_says_what_would() {
    let device = SoftDevice::new();
    let host = open(&device);
    let file = memory_file(4096);
    device.refuse("ibv_reg_dmabuf_mr", 1, libc::EOPNOTSUPP);
    let error = register(&host, &file, 0, 4096, 0).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EOPNOTSUPP));
    assert!(error.to_string().contains("Linux 5.12"), "{error}");
}

#[test]
fn a_real_dma_buf_is_registered() {
    let Some(buffer) = udmabuf::create(8192) else {
        println!("skipped: /dev/udmabuf cannot be opened; try `modprobe udmabuf`");
        return;
    };
    let device = SoftDevice::new();
    let host = open(&device);
    let (a, _b) = host.ends(Shape::default());
    let region = register(&host, &buffer.dma_buf, 4096, 4096, 0x4000).unwrap();
    a.put(0, &pattern(5, 64));
    let to = region.remote().at(32).unwrap();
    a.post(SendWr::write(a.memory.segment(..64).unwrap(), &to).signaled());
    a.sent().outcome().unwrap();
    let mut found = [0; 64];
    buffer.memory.read_exact_at(&mut found, 4096 + 32).unwrap();
    assert_eq!(found[..], pattern(5, 64));
    // The dma-buf is as long as its memory, and not longer.
    register(&host, &buffer.dma_buf, 4096, 4097, 0x4000).unwrap_err();
}
