//! Memory behind descriptors: regions of dma-bufs, and completion queues in one.
#![expect(unsafe_code, reason = "vouches for memory behind descriptors")]

use std::{os::fd::AsFd, sync::Arc};

use efa::{
    EfaCapabilities, Error, QueueMemory, Srd,
    ibverbs::{DmaBufPart, MemoryRegion, RemoteMemory, SendWr},
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
