//! Our reliable connection with the Python package `ibverbs`, which was made by others for real hardware.
//!
//! It needs the package in `target/python`, fetched for the guest's Python:
//!
//! ```text
//! pip install --no-deps --only-binary=:all: --python-version 3.13 --target target/python ibverbs
//! ```
#![cfg(test)]

#[expect(dead_code, reason = "this needs few of the tools")]
mod common;
#[expect(dead_code, reason = "this needs few of the tools")]
#[path = "common/kernel.rs"]
mod kernel;
#[path = "common/python.rs"]
mod python;

use common::{ALL, Shape};
use ibverbs::{ConnectOptions, Operation, PacketSequence, QpInfo, RecvWr, RemoteMemory, SendWr};
use kernel::{LOOPBACK, open};
use python::{Python, from_hex, hex, package};

const LENGTH: usize = 50_000;

/// The bytes that both sides know.
fn bytes(seed: usize) -> Vec<u8> {
    (0..LENGTH).map(|index| u8::try_from((index * 7 + seed) & 0xff).unwrap()).collect()
}

#[test]
fn both_directions_of_every_transfer_agree() {
    let Some(host) = open(LOOPBACK) else { return };
    let Some(package) = package("ibverbs") else { return };
    // The first half is for one-sided requests, the second for messages.
    let end = host.end(Shape { memory: 2 * LENGTH, ..Shape::default() });
    let mine = end.pair.endpoint(&host.port);
    let place = end.memory.remote();
    let mut python = Python::start(&package, LOOPBACK);
    python.say(&hex(&[mine.to_bytes().as_slice(), &place.to_bytes()].concat()));
    let told = from_hex(&python.hear());
    let theirs = QpInfo::from_bytes(&told[..QpInfo::LENGTH]).unwrap();
    assert_eq!(
        (theirs.first_packet, theirs.gid),
        (PacketSequence::new(0x00ab_cdef).unwrap(), mine.gid)
    );
    let there = RemoteMemory::from_bytes(&told[QpInfo::LENGTH..]).unwrap().at(0).unwrap();
    let end = end.connect(&theirs, &ConnectOptions::new(&host.port).access(ALL));
    let one_sided = end.memory.segment(..LENGTH).unwrap();
    let message = end.memory.segment(LENGTH..).unwrap();
    for id in 0..2 {
        end.pair.post_receive(&mut [RecvWr::to(id, message)]).unwrap();
    }
    python.say("ready");
    assert_eq!(python.hear(), "ready");

    // Ours to theirs.
    end.memory.bytes().write(0, &bytes(1)).unwrap();
    end.pair.post_send(&mut [SendWr::send(one_sided).signaled()]).unwrap();
    end.sent().outcome().unwrap();
    assert_eq!(python.hear(), "send");
    end.memory.bytes().write(0, &bytes(2)).unwrap();
    let write = SendWr::write_with_imm(one_sided, &there, 0xC0DE).signaled();
    end.pair.post_send(&mut [write]).unwrap();
    end.sent().outcome().unwrap();
    assert_eq!(python.hear(), "write");

    // Theirs to ours.
    python.say("go");
    let sent = end.received();
    assert_eq!(sent.outcome().unwrap().operation(), Operation::RECEIVE);
    let written = end.received();
    let written = written.outcome().unwrap();
    assert_eq!(written.operation(), Operation::RECEIVE_WRITE_WITH_IMMEDIATE);
    assert_eq!(written.immediate(), Some(0xBEEF));
    let mut seen = vec![0; LENGTH];
    end.memory.bytes().read(LENGTH, &mut seen).unwrap();
    assert_eq!(seen, bytes(3));
    end.memory.bytes().read(0, &mut seen).unwrap();
    assert_eq!(seen, bytes(4));
    assert_eq!(python.hear(), "wrote");

    // Each reads the other's memory.
    end.memory.bytes().write(0, &bytes(5)).unwrap();
    python.say("read");
    assert_eq!(python.hear(), "read");
    end.pair.post_send(&mut [SendWr::read(one_sided, &there).signaled()]).unwrap();
    end.sent().outcome().unwrap();
    end.memory.bytes().read(0, &mut seen).unwrap();
    assert_eq!(seen, bytes(6));
    python.say("done");
    python.finish();
}
