//! Memory behind descriptors: regions of dma-bufs, and completion queues in one.
#![expect(unsafe_code, reason = "vouches for memory behind descriptors")]

use std::{
    cell::OnceCell,
    ffi::{c_uint, c_ulonglong, c_void},
    os::fd::{AsFd, IntoRawFd, RawFd},
    sync::Arc,
};

use efa::{
    EfaCapabilities, Error, QueueMemory, Srd,
    ibverbs::{DmaBufPart, MemoryRegion, RecvWr, RemoteMemory, SendWr},
};

use crate::support::{ALL, Both, Lane, has_devices, memory_file::MemoryFile, pattern};

const PAGE: u64 = DmaBufPart::PAGE;

#[test]
fn a_part_of_a_dma_buf_is_written_and_read_by_the_peer() {
    if !has_devices(2) {
        return;
    }
    const LENGTH: usize = 60_000;
    let both = Both::new();
    let file = MemoryFile::new(32 * 4096);
    let dma_buf = file.dma_buf();
    let part = DmaBufPart { fd: dma_buf.as_fd(), offset: 2 * PAGE, length: LENGTH, address: 0 };
    // SAFETY: the pages are reached through this region and by file I/O only, and stay the file's.
    let target =
        unsafe { MemoryRegion::register_dma_buf(&both.far.domain, Vec::<u8>::new(), part, ALL) };
    let target = target.unwrap();
    // The kernel holds the pages.
    drop(dma_buf);
    let there = RemoteMemory::from_bytes(&target.remote().to_bytes()).unwrap().at(0).unwrap();
    assert_eq!(there.address(), 0);

    let source = both.near.memory(pattern(1, LENGTH));
    let back = both.near.memory(vec![0; LENGTH]);
    let to = both.to_far.destination();
    let write = SendWr::<Srd>::write_to(source.segment(..).unwrap(), &there, to);
    both.near_pair.post_send(&mut [write]).unwrap();
    both.near.successes(1);
    assert_eq!(file.read(2 * PAGE, LENGTH), pattern(1, LENGTH));
    assert_eq!(file.read(0, 2 * 4096), [0; 2 * 4096]);

    file.write(2 * PAGE, &pattern(2, LENGTH));
    let read = SendWr::<Srd>::read_from(back.segment(..).unwrap(), &there, to);
    both.near_pair.post_send(&mut [read]).unwrap();
    both.near.successes(1);
    assert_eq!(back.into_buffer().unwrap(), pattern(2, LENGTH));
}

/// Where the GPU that there is not has its memory.
const DEVICE_MEMORY: u64 = 0x7fab_0000_0000;
const DEVICE_PAGES: usize = 32;

thread_local! {
    /// What stands in for the memory of a GPU.
    static MEMORY: OnceCell<MemoryFile> = const { OnceCell::new() };
}

/// `cuMemGetHandleForAddressRange`, for memory of the host.
unsafe extern "C" fn export(
    handle: *mut c_void,
    address: u64,
    size: usize,
    _kind: c_uint,
    _flags: c_ulonglong,
) -> c_uint {
    let fd = MEMORY.with(|memory| {
        let file = memory.get_or_init(|| MemoryFile::new(DEVICE_PAGES * 4096));
        file.dma_buf_of(address - DEVICE_MEMORY, size as u64)
    });
    // SAFETY: the contract of the driver's function: a place for a descriptor.
    unsafe { handle.cast::<RawFd>().write(fd.into_raw_fd()) };
    0
}

#[test]
fn memory_that_is_registered_as_that_of_a_gpu_is_written_and_read_at_any_offset() {
    const LENGTH: usize = 60_000;
    if !has_devices(2) {
        return;
    }
    let both = Both::new();
    for offset in [0, 3 * PAGE, 2 * PAGE + 0x200, PAGE + 0xfff] {
        let range = DEVICE_MEMORY + offset..DEVICE_MEMORY + offset + LENGTH as u64;
        // SAFETY: the pages are reached through this region and by file I/O only, and stay the file's.
        let target = unsafe {
            cuda_interop::register_exported(export, &both.far.domain, Vec::<u8>::new, range, ALL)
        };
        let target = target.unwrap();
        let there = RemoteMemory::from_bytes(&target.remote().to_bytes()).unwrap();
        assert_eq!((there.address(), there.len()), (DEVICE_MEMORY + offset, LENGTH as u64));
        let there = there.at(0).unwrap();

        let bytes = pattern(usize::try_from(offset).unwrap(), LENGTH);
        let source = both.near.memory(bytes.clone());
        let to = both.to_far.destination();
        let write = SendWr::<Srd>::write_to(source.segment(..).unwrap(), &there, to);
        both.near_pair.post_send(&mut [write]).unwrap();
        both.near.successes(1);
        let stored =
            |from: u64, length| MEMORY.with(|memory| memory.get().unwrap().read(from, length));
        assert_eq!(stored(offset, LENGTH), bytes, "at {offset:#x}");

        let back = both.near.memory(vec![0; LENGTH]);
        let read = SendWr::<Srd>::read_from(back.segment(..).unwrap(), &there, to);
        both.near_pair.post_send(&mut [read]).unwrap();
        both.near.successes(1);
        assert_eq!(back.into_buffer().unwrap(), bytes, "at {offset:#x}");

        // The far side receives into the end of it, with a key of its own.
        let into = [target.segment(LENGTH - 5000..).unwrap()];
        both.far_pair.post_receive(&mut [RecvWr::to(1, &into)]).unwrap();
        let message = [source.segment(..5000).unwrap()];
        let send = SendWr::<Srd>::send_with_imm_to(&message, to, 1);
        both.near_pair.post_send(&mut [send]).unwrap();
        both.near.successes(1);
        both.far.successes(1);
        assert_eq!(stored(offset + LENGTH as u64 - 5000, 5000), bytes[..5000], "at {offset:#x}");
        target.into_buffer().unwrap();
    }
}

#[test]
fn a_completion_queue_lies_in_memory_of_the_caller_where_the_device_can() {
    if !has_devices(2) {
        return;
    }
    let mut near = Lane::open(0);
    // The device wants it in one piece, which is sure of one page only.
    let file = MemoryFile::new(4096);
    let dma_buf = file.dma_buf();
    let mapped = file.map();
    let memory = QueueMemory { fd: dma_buf.as_fd(), offset: 0, length: PAGE, mapped };
    // SAFETY: zeroed, mapped for the rest of the process, and touched by nobody else.
    let builder = unsafe { efa::completion_queue(&near.context, 32).memory(memory) };
    let wanted = EfaCapabilities::CQ_WITH_EXT_MEM_DMABUF;
    if efa::query_device(&near.context).unwrap().require(wanted).is_err() {
        let error = builder.create().unwrap_err();
        assert!(matches!(error, Error::MissingCapability { missing, .. } if missing == wanted));
        return;
    }
    near.queue = Arc::new(builder.create().unwrap());
    let far = Lane::open(1);
    let both = Both::between(near, far, |builder| builder);
    let source = both.near.memory(pattern(3, 4096));
    let target = both.far.memory(vec![0; 4096]);
    for _ in 0..10 {
        let there = target.remote().at(0).unwrap();
        let bytes = source.segment(..).unwrap();
        let write = SendWr::<Srd>::write_to(bytes, &there, both.to_far.destination());
        both.near_pair.post_send(&mut [write]).unwrap();
        both.near.successes(1);
    }
    assert!(file.read(0, 4096).iter().any(|byte| *byte != 0), "the queue lies elsewhere");
}
