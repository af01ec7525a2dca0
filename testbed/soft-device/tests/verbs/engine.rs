//! Memory that only an engine reaches.
#![expect(unsafe_code, reason = "raw verbs")]
#![expect(
    clippy::unwrap_in_result,
    clippy::panic_in_result_fn,
    clippy::multiple_unsafe_ops_per_block,
    reason = "a test"
)]
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each call is made on live objects of a test"
)]

use std::{
    ffi::c_int,
    io,
    sync::{Arc, Mutex},
};

use rdma_sys as c;
use soft_device::{DmaAddress, DmaEngine, SoftDevice};

use crate::support::{ALL, Options, Side, Work, call, errno, pair, reap};

/// Memory of another device, from this address on.
const START: u64 = 0x7f00_0000_0000;

#[derive(Debug, Default)]
struct Memory {
    bytes: Mutex<Vec<u8>>,
    broken: Mutex<bool>,
}

impl Memory {
    fn range(&self, at: DmaAddress<'_>, length: usize) -> io::Result<std::ops::Range<usize>> {
        if *self.broken.lock().unwrap() {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        assert_eq!(at.iova - START, at.offset);
        let start = usize::try_from(at.offset).unwrap();
        Ok(start..start + length)
    }
}

impl DmaEngine for Memory {
    fn attach(&self, at: DmaAddress<'_>, length: u64) -> io::Result<()> {
        if at.offset + length > 8192 {
            return Err(io::Error::from_raw_os_error(libc::ERANGE));
        }
        self.bytes.lock().unwrap().resize(8192, 0);
        Ok(())
    }

    fn read(&self, at: DmaAddress<'_>, bytes: &mut [u8]) -> io::Result<()> {
        let range = self.range(at, bytes.len())?;
        bytes.copy_from_slice(&self.bytes.lock().unwrap()[range]);
        Ok(())
    }

    fn write(&self, at: DmaAddress<'_>, bytes: &[u8]) -> io::Result<()> {
        let range = self.range(at, bytes.len())?;
        self.bytes.lock().unwrap()[range].copy_from_slice(bytes);
        Ok(())
    }
}

/// Registers a file that cannot be mapped.
fn register(side: &Side, offset: u64, length: usize) -> *mut c::ibv_mr {
    let fd = unsafe { libc::eventfd(0, 0) };
    let access = c_int::try_from(ALL).unwrap();
    let mr =
        unsafe { call!(ibv_reg_dmabuf_mr(side.pd, offset, length, START + offset, fd, access)) };
    let refusal = errno();
    unsafe { libc::close(fd) };
    unsafe { *libc::__errno_location() = refusal };
    mr
}

/// The status of a request.
fn done(side: &Side, work: Work<'_>) -> u32 {
    side.send(work);
    reap(side, side.send_cq).status
}

#[test]
fn every_operation_reaches_memory_behind_an_engine() {
    let device = SoftDevice::new();
    let (mut a, b) = pair(&device, Options::default());
    assert!(register(&b, 0, 4096).is_null());
    let memory = Arc::new(Memory::default());
    device.set_dma_engine(memory.clone());
    assert!(register(&b, 4096, 4097).is_null());
    assert_eq!(errno(), libc::ERANGE);
    let mr = register(&b, 4096, 4096);
    assert!(!mr.is_null(), "errno {}", errno());
    let c::ibv_mr { rkey, lkey, .. } = unsafe { *mr };
    let there = START + 4096 + 8;
    a.memory[..8].copy_from_slice(b"far away");
    let near = [a.segment(0, 8)];
    let work = |opcode| Work { remote: there, rkey, ..Work::new(1, opcode, &[]) };
    assert_eq!(done(&a, Work { segments: &near, ..work(c::IBV_WR_RDMA_WRITE) }), 0);
    assert_eq!(&memory.bytes.lock().unwrap()[4104..4112], b"far away");
    let behind = [a.segment(100, 8)];
    assert_eq!(done(&a, Work { segments: &behind, ..work(c::IBV_WR_RDMA_READ) }), 0);
    assert_eq!(&a.memory[100..108], b"far away");
    let add = work(c::IBV_WR_ATOMIC_FETCH_AND_ADD);
    assert_eq!(done(&a, Work { compare_add: 1, segments: &near, ..add }), 0);
    assert_eq!(memory.bytes.lock().unwrap()[4104], b'f' + 1);
    // Into a receive, and as the source of a write.
    let local = c::ibv_sge { addr: there, length: 8, lkey };
    assert_eq!(b.receive(&[(1, &[local])]), (0, 1));
    a.memory[..8].copy_from_slice(b"received");
    a.send(Work::new(2, c::IBV_WR_SEND, &near));
    assert_eq!(reap(&b, b.receive_cq).status, 0);
    assert_eq!(reap(&a, a.send_cq).status, 0);
    b.send(Work::new(3, c::IBV_WR_RDMA_WRITE, &[local]).to(&a, 200));
    assert_eq!(reap(&b, b.send_cq).status, 0);
    assert_eq!(&a.memory[200..208], b"received");

    *memory.broken.lock().unwrap() = true;
    assert_eq!(
        done(&a, Work { segments: &near, ..work(c::IBV_WR_RDMA_WRITE) }),
        c::IBV_WC_GENERAL_ERR
    );
    *memory.broken.lock().unwrap() = false;
    assert_eq!(unsafe { call!(ibv_dereg_mr(mr)) }, 0);
}

#[test]
fn writes_that_are_held_back_come_with_a_flush_or_a_read_or_the_end() {
    let device = SoftDevice::new();
    let memory = Arc::new(Memory::default());
    device.set_dma_engine(memory.clone());
    let (mut a, b) = pair(&device, Options::default());
    let mr = register(&b, 0, 4096);
    let rkey = unsafe { (*mr).rkey };
    device.hold_inbound_writes(true);
    let seen = || memory.bytes.lock().unwrap()[0];
    for value in [1, 2] {
        a.memory[0] = value;
        let list = [a.segment(0, 1)];
        let work = Work { remote: START, rkey, ..Work::new(1, c::IBV_WR_RDMA_WRITE, &list) };
        a.send(work);
        assert_eq!(reap(&a, a.send_cq).status, 0);
        assert_eq!(seen(), value - 1);
        if value == 1 {
            device.flush_inbound_writes();
        } else {
            a.send(Work { opcode: c::IBV_WR_RDMA_READ, ..work });
            assert_eq!(reap(&a, a.send_cq).status, 0);
        }
        assert_eq!(seen(), value);
    }
    a.memory[0] = 3;
    let list = [a.segment(0, 1)];
    a.send(Work { remote: START, rkey, ..Work::new(1, c::IBV_WR_RDMA_WRITE, &list) });
    assert_eq!(unsafe { call!(ibv_dereg_mr(mr)) }, 0);
    assert_eq!(seen(), 3);
}
