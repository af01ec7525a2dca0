//! Our side between devices with the Python package `efa`, which was made by others for real hardware.
//!
//! It needs the package in `target/python`, fetched for the guest's Python:
//!
//! ```text
//! pip install --no-deps --only-binary=:all: --python-version 3.13 --target target/python efa
//! ```
//!
//! Its own tests, which say what real hardware does, are run too: from its source package, unpacked to
//! `target/python-tests`, with `numpy pytest pluggy iniconfig packaging pygments` beside it in `target/python`.
#![cfg(test)]

#[path = "backend/kernel.rs"]
mod backend;
#[path = "../../ibverbs/tests/common/python.rs"]
mod python;
#[expect(dead_code, reason = "these need few of the tools")]
mod support;

use std::process::Command;

use efa::{
    EndpointInfo, Srd,
    ibverbs::{Operation, RecvWr, RemoteMemory, SendWr},
};
use python::{Python, from_hex, hex, package};
use support::{KEY, Lane, has_devices};

const LENGTH: usize = 50_000;
const MESSAGE: usize = 4_000;

/// The bytes that both sides know.
fn bytes(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|index| u8::try_from((index * 7 + seed) & 0xff).unwrap()).collect()
}

/// The fewest of its tests that must have run; the rest wants GPUs, or what this rdma-core does not have.
const FEWEST: usize = 90;

#[test]
fn what_its_own_tests_say_of_hardware_holds_for_the_model() {
    if !has_devices(2) {
        return;
    }
    let Some(package) = package("efa").filter(|folder| folder.join("pytest").is_dir()) else {
        println!("skipped: no pytest in target/python");
        return;
    };
    let tests = package.with_file_name("python-tests").join("tests");
    if !tests.is_dir() {
        println!("skipped: no source package in target/python-tests");
        return;
    }
    let mut command = Command::new("python3");
    command.args(["-m", "pytest", "--quiet", "-rs", "-p", "no:cacheprovider", "-p", "no:warnings"]);
    // Tests are named from there on, whatever lies above it.
    command.args(["--rootdir", "."]);
    let lane = Lane::open(0);
    if efa::query_completion_queue(&lane.queue).is_err() {
        // They want functions that this release does not have, and do not clean up after that.
        println!("without two tests that need a newer rdma-core");
        for test in ["test_cq.py::test_create_cq_ex", "test_qp.py::test_query_wqs"] {
            command.args(["--deselect", test]);
        }
    }
    drop(lane);
    let output = command
        .arg(".")
        .current_dir(&tests)
        .env("PYTHONPATH", &package)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}{errors}");
    println!("{said}");
    let counts = said.lines().last().unwrap_or_default();
    let passed = counts.split(" passed").next().and_then(|count| count.parse().ok());
    assert!(passed >= Some(FEWEST), "{counts}");
}

#[test]
fn both_directions_of_every_transfer_agree() {
    if !has_devices(2) {
        return;
    }
    let Some(package) = package("efa") else {
        return;
    };
    let lane = Lane::open(0);
    let pair = lane.pair();
    let mut python = Python::start(&package, "efa_1");
    let told = from_hex(&python.hear());
    let endpoint = EndpointInfo::from_bytes(&told[..EndpointInfo::LENGTH]).unwrap();
    let there = RemoteMemory::from_bytes(&told[EndpointInfo::LENGTH..]).unwrap();
    assert_eq!(endpoint.queue_key, KEY);

    let memory = lane.memory(vec![0; LENGTH]);
    let inbox = lane.memory(vec![0; 2 * MESSAGE]);
    let source = lane.memory(vec![0; LENGTH]);
    for id in 0..2 {
        let part = inbox.segment(..MESSAGE).unwrap();
        pair.post_receive(&mut [RecvWr::to(id, part)]).unwrap();
    }
    let mine = [lane.endpoint(&pair).to_bytes().as_slice(), &memory.remote().to_bytes()].concat();
    python.say(&hex(&mine));
    let peer = endpoint.peer(&lane.domain, &lane.port).unwrap();
    assert_eq!(python.hear(), "ready");

    source.bytes().write(0, &bytes(1, MESSAGE)).unwrap();
    let part = source.segment(..MESSAGE).unwrap();
    let send = SendWr::<Srd>::send_with_imm_to(part, peer.destination(), 0x51);
    pair.post_send(&mut [send]).unwrap();
    lane.successes(1);
    assert_eq!(python.hear(), "send");
    source.bytes().write(0, &bytes(2, LENGTH)).unwrap();
    let (all, place) = (source.segment(..).unwrap(), there.at(0).unwrap());
    let write = SendWr::<Srd>::write_with_imm_to(all, &place, peer.destination(), 0x52);
    pair.post_send(&mut [write]).unwrap();
    lane.successes(1);
    assert_eq!(python.hear(), "write");

    python.say("go");
    let sent = lane.completion();
    let sent = sent.outcome().unwrap();
    assert_eq!((sent.operation(), sent.immediate()), (Operation::RECEIVE, Some(0x53)));
    let written = lane.completion();
    let written = written.outcome().unwrap();
    assert_eq!(written.operation(), Operation::RECEIVE_WRITE_WITH_IMMEDIATE);
    assert_eq!(written.immediate(), Some(0x54));
    let mut seen = vec![0; LENGTH];
    memory.bytes().read(0, &mut seen).unwrap();
    assert_eq!(seen, bytes(4, LENGTH));
    inbox.bytes().read(0, &mut seen[..MESSAGE]).unwrap();
    assert_eq!(seen[..MESSAGE], bytes(3, MESSAGE));
    assert_eq!(python.hear(), "wrote");

    memory.bytes().write(0, &bytes(5, LENGTH)).unwrap();
    python.say("read");
    assert_eq!(python.hear(), "read");
    let read = SendWr::<Srd>::read_from(all, &place, peer.destination());
    pair.post_send(&mut [read]).unwrap();
    lane.successes(1);
    source.bytes().read(0, &mut seen).unwrap();
    assert_eq!(seen, bytes(6, LENGTH));
    python.say("done");
    python.finish();
}
