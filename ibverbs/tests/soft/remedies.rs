//! The errors that one meets first say what to do.
#![expect(unsafe_code, reason = "makes libraries that lack something")]

use std::{error::Error as _, ffi::c_int, ptr, time::Duration};

use ibverbs::{
    Access, CompletionStatus, ConnectOptions, DeviceSelector, Devices, Error, GidType, Inline,
    MemoryRegion, Mtu, Posting, QpInfo, QueuePair, QueuePairChange, Rc, RemoteMemory, SendWr, sys,
};
use soft_device::SoftDevice;

use crate::{
    common::{ALL, Shape},
    support::{assert_clean, in_child, listed, log_lines::logged, memory_file, open, part_of},
};

/// A library like that of the soft devices, but for some of its functions.
fn library_with(change: impl FnOnce(&mut sys::Verbs)) -> &'static sys::Library {
    let mut verbs = *soft_device::library().verbs();
    change(&mut verbs);
    // SAFETY: what the tests below put into the table keeps the contract of its name.
    Box::leak(Box::new(unsafe { sys::Library::new("incomplete", verbs) }))
}

fn contains(error: &impl std::fmt::Display, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{text:?} does not say {part:?}");
    }
}

#[test]
fn a_machine_without_a_device_is_told_how_to_get_one() {
    unsafe extern "C" fn empty(count: *mut c_int) -> *mut *mut sys::ibv_device {
        // SAFETY: the caller gives a place for the number.
        unsafe { count.write(0) };
        Box::into_raw(Box::new([ptr::null_mut::<sys::ibv_device>(); 1])).cast()
    }
    let library = library_with(|verbs| verbs.ibv_get_device_list = Some(empty));
    let devices = Devices::of(library).unwrap();
    assert!(devices.is_empty());
    let error = devices.select(&DeviceSelector::default()).unwrap_err();
    contains(&error, &["no RDMA device of any name", "rdma link add rxe0", "(present: none)"]);
}

#[test]
fn a_kernel_without_rdma_is_told_what_to_load() {
    unsafe extern "C" fn refused(_: *mut c_int) -> *mut *mut sys::ibv_device {
        // SAFETY: each thread has its own.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        unsafe { errno.write(libc::ENOSYS) };
        ptr::null_mut()
    }
    let library = library_with(|verbs| verbs.ibv_get_device_list = Some(refused));
    let error = Devices::of(library).unwrap_err();
    contains(&error, &["ibv_get_device_list failed", "modprobe ib_uverbs"]);
    assert_eq!(error.errno(), Some(libc::ENOSYS));
    assert!(error.source().unwrap().to_string().contains("not implemented"));
}

#[test]
fn a_machine_without_rdma_core_is_told_the_packages() {
    let name = "remedies::a_machine_without_rdma_core_is_told_the_packages";
    let Some(output) = in_child(name, &[]) else {
        // A library that cannot be opened is as good as none.
        let none = libc::rlimit { rlim_cur: 3, rlim_max: 3 };
        // SAFETY: the limit is a valid struct.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none) }, 0);
        let error = ibverbs::devices().unwrap_err();
        println!("refused: {error}");
        return;
    };
    let text = String::from_utf8(output.stdout).unwrap();
    contains(&text, &["refused: ", "libibverbs.so.1", "libibverbs1", "rdma-core"]);
}

#[test]
fn a_device_without_permission_or_node_says_how_to_get_it() {
    for (errno, parts) in [
        (libc::EACCES, ["no permission on the device node", "group", "container"]),
        (libc::ENOENT, ["device node", "missing", "--device /dev/infiniband"]),
    ] {
        let device = SoftDevice::new();
        device.refuse("ibv_open_device", 1, errno);
        contains(&listed(&device).open().unwrap_err(), &parts);
        // So does choosing it, when it is the only one.
        device.refuse("ibv_open_device", 1, errno);
        let devices = Devices::of(soft_device::library()).unwrap();
        let error = devices.select(&DeviceSelector::named(device.name())).unwrap_err();
        contains(&error, &parts[..1]);
    }
}

#[test]
fn memory_that_cannot_be_pinned_names_the_limit() {
    let name = "remedies::memory_that_cannot_be_pinned_names_the_limit";
    let Some(output) = in_child(name, &[]) else {
        let limit = libc::rlimit { rlim_cur: 65536, rlim_max: 65536 };
        // SAFETY: the limit is a valid struct.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) }, 0);
        let device = SoftDevice::new();
        let host = open(&device);
        for access in [ALL, ALL | Access::RELAXED_ORDERING] {
            device.refuse("ibv_reg_mr", 1, libc::ENOMEM);
            let error = MemoryRegion::register(&host.domain, vec![0; 64], access).unwrap_err();
            println!("refused: {error}");
        }
        return;
    };
    let text = String::from_utf8(output.stdout).unwrap();
    contains(&text, &["locked-memory limit is 65536 bytes", "ulimit -l unlimited", "LimitMEMLOCK"]);
    contains(&text, &["ibv_reg_mr failed", "ibv_reg_mr_iova2 failed"]);
}

#[test]
fn memory_that_is_not_there_is_refused() {
    let device = SoftDevice::new();
    let host = open(&device);
    let nowhere = ptr::NonNull::new(ptr::without_provenance_mut(0x10_0000)).unwrap();
    // SAFETY: it is refused, so that nothing is promised.
    let error = unsafe { host.domain.register_raw(nowhere, 4096, ALL) }.unwrap_err();
    contains(&error, &["ibv_reg_mr failed", "the memory is not mapped"]);
}

#[test]
fn a_gid_index_that_cannot_be_used_says_what_to_look_at() {
    let device = SoftDevice::builder()
        .gids(vec![
            soft_device::GidEntry { gid: [0; 16], kind: sys::IBV_GID_TYPE_ROCE_V2 },
            soft_device::GidEntry {
                gid: "fe80::1".parse::<ibverbs::Gid>().unwrap().0,
                kind: sys::IBV_GID_TYPE_ROCE_V2,
            },
        ])
        .build();
    let context = listed(&device).open().unwrap();
    let local_port = |index| context.local_port(&DeviceSelector::default().gid_index(index));
    contains(&local_port(2).unwrap_err(), &["the GID index cannot be 2: it must be from 0 to 1"]);
    let empty = local_port(0).unwrap_err();
    contains(&empty, &["port 1 has no usable GID", "leave RDMA_GID_INDEX unset", "rdma link"]);
    let (port, log) = logged(|| local_port(1).unwrap());
    assert_eq!(port.gid.kind, GidType::ROCE_V2);
    contains(&log, &["WARN", "GID 1", "is link-local", "no router forwards it"]);
    // Where there is nothing better, it is taken, with the same warning.
    let (port, log) = logged(|| context.local_port(&DeviceSelector::default()).unwrap());
    assert_eq!(port.gid.index, 1);
    contains(&log, &["is link-local"]);
}

#[test]
fn a_port_without_any_gid_says_how_to_get_one() {
    let device = SoftDevice::builder().gids(Vec::new()).build();
    let context = listed(&device).open().unwrap();
    let error = context.local_port(&DeviceSelector::default()).unwrap_err();
    contains(&error, &["port 1 has no usable GID", "IP address"]);
}

#[test]
fn a_peer_that_sends_something_else_is_named_with_the_numbers() {
    let error = QpInfo::from_bytes(&[0; 27]).unwrap_err();
    contains(
        &error,
        &["queue pair information from the peer is malformed: it has 27 bytes and not 28; do both"],
    );
    let error = QpInfo::from_bytes(&[0; 28]).unwrap_err();
    contains(&error, &["malformed", "the port number cannot be 0"]);
    let error = RemoteMemory::from_bytes(&[0; 28]).unwrap_err();
    contains(
        &error,
        &["remote memory from the peer is malformed: it has 28 bytes and not 20; do both"],
    );
}

#[test]
fn a_peer_of_another_mtu_is_named_with_the_numbers() {
    let small = SoftDevice::builder().mtu(sys::IBV_MTU_1024).build();
    let host = open(&small);
    let (a, b) = (host.end(Shape::default()), host.end(Shape::default()));
    let peer = QpInfo { mtu: Mtu::BYTES_512, ..b.pair.endpoint(&host.port) };
    let options = ConnectOptions::new(&host.port);
    let error = a.pair.connect(&peer, &options.clone().mtu(Mtu::BYTES_1024)).unwrap_err();
    contains(
        &error,
        &["MTU of 1024 bytes", "this side carries 1024 and that of the peer 512", "leave out"],
    );
    // What is not asked for is the smaller one of both.
    let pair = b.pair.connect(&peer, &options).unwrap();
    assert_eq!(pair.query().unwrap().as_raw().path_mtu, sys::IBV_MTU_512);
}

#[test]
fn numbers_of_a_connection_that_cannot_be_are_refused() {
    let device = SoftDevice::new();
    let host = open(&device);
    let options = ConnectOptions::new(&host.port);
    for (options, text) in [
        (options.clone().retries(8), "the number of retries cannot be 8: it must be from 0 to 7"),
        (
            options.clone().receiver_not_ready_retries(8),
            "the number of receiver-not-ready retries cannot be 8",
        ),
        (
            options.clone().service_level(16),
            "the service level cannot be 16: it must be from 0 to 15",
        ),
        (options.clone().flow_label(1 << 20), "the flow label cannot be 1048576"),
        (options.clone().incoming_reads(17), "17 incoming reads"),
        (options.clone().outgoing_reads(17), "17 outgoing reads"),
        (options.clone().pkey_index(99), "partition key index 99"),
    ] {
        let end = host.end(Shape::default());
        let peer = end.pair.endpoint(&host.port);
        contains(&end.pair.connect(&peer, &options).unwrap_err(), &[text]);
    }
    drop(host);
    assert_clean(&device);
}

#[test]
fn a_change_of_state_that_is_refused_says_the_likely_cause() {
    for (nth, errno, parts) in [
        (1, libc::EINVAL, ["from reset to initialized", "port 1"]),
        (2, libc::EINVAL, ["from initialized to ready to receive", "MTU code 5"]),
        (2, libc::ENETUNREACH, ["from initialized to ready to receive", "no route from GID 1"]),
        (2, libc::ETIMEDOUT, ["from initialized to ready to receive", "answers ARP"]),
        (3, libc::EINVAL, ["from ready to receive to ready to send", "timeout code"]),
        (3, libc::EIO, ["from ready to receive to ready to send", "the device refused"]),
    ] {
        let device = SoftDevice::new();
        let host = open(&device);
        let end = host.end(Shape::default());
        let peer = end.pair.endpoint(&host.port);
        device.refuse("ibv_modify_qp", nth, errno);
        let error = end.pair.connect(&peer, &ConnectOptions::new(&host.port)).unwrap_err();
        contains(&error, &parts);
        assert_eq!(error.errno(), Some(errno));
    }
}

/// `rxe` takes what it does not need in a state, as long as the state stays.
#[test]
fn attributes_that_a_state_does_not_take_are_named() {
    let device = SoftDevice::new();
    let host = open(&device);
    let pair = host.end(Shape::default()).pair;
    let error = pair.modify(&QueuePairChange::within().mtu(Mtu::BYTES_256)).unwrap_err();
    contains(
        &error,
        &["not change its attributes in state \"reset\"", "it does not take IBV_QP_PATH_MTU"],
    );
    drop((pair, host));
    assert_clean(&device);
}

#[test]
fn a_verb_that_the_library_lacks_names_the_release_that_brought_it() {
    let device = SoftDevice::new();
    let library = library_with(|verbs| verbs.ibv_reg_dmabuf_mr = None);
    let devices = Devices::of(library).unwrap();
    let context = devices.by_name(device.name()).unwrap().open().unwrap();
    let domain = context.allocate_protection_domain().unwrap();
    let file = memory_file(4096);
    let part = part_of(&file, 0, 4096, 0);
    // SAFETY: nothing is registered.
    let error = unsafe { domain.register_dma_buf(Vec::<u8>::new(), part, ALL) }.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }));
    contains(&error, &["ibv_reg_dmabuf_mr is not available", "rdma-core 34"]);
}

#[test]
fn a_device_without_extended_posting_says_so_when_it_is_asked_for() {
    let device = SoftDevice::builder().extended_posting(false).build();
    let host = open(&device);
    let queue = host.queue(8);
    let builder = || QueuePair::<Rc, _>::builder(&host.domain, &queue, &queue);
    let error = builder().posting(Posting::Extended).create().unwrap_err();
    contains(&error, &["ibv_create_qp_ex is not available", "the device does not have it"]);
    assert_eq!(builder().create().unwrap().posting(), Posting::Classic);
}

#[test]
fn a_queue_that_is_full_says_what_to_do() {
    let device = SoftDevice::new();
    let host = open(&device);
    let (a, _b) = host.ends(Posting::Classic.into());
    let error = loop {
        if let Err(error) = a.pair.post_send(&mut [SendWr::send(Inline(&[]))]) {
            break error;
        }
    };
    contains(error.error(), &["ibv_post_send failed", "the queue is full", "poll completions"]);
    // The message has the reason in it, and the chain goes on behind that.
    assert!(error.to_string().ends_with(&error.error().to_string()), "{error}");
    let cause = |error: &dyn std::error::Error| error.source().unwrap().to_string();
    assert_eq!(cause(&error), cause(error.error()));
    assert!(cause(&error).contains("os error 12"), "{}", cause(&error));
}

#[test]
fn failed_work_says_what_to_look_at() {
    let device = SoftDevice::new();
    let host = open(&device);
    // A peer that does not answer.
    let options = ConnectOptions::new(&host.port)
        .access(ALL)
        .timeout(Duration::from_micros(8))
        .retries(1)
        .receiver_not_ready_retries(1)
        .receiver_not_ready_timer(Duration::from_micros(10));
    let (a, b) = host.ends_with(Shape::default(), &options);
    drop(b);
    a.post(SendWr::send(a.memory.segment(..8).unwrap()).id(1));
    let failure = a.sent().outcome().unwrap_err();
    assert_eq!(failure.status, CompletionStatus::RETRIES_EXCEEDED);
    contains(&failure, &["work request 1", "transport retries exceeded", "does not answer"]);
    // A peer that posts no receive.
    let (a, b) = host.ends_with(Shape::default(), &options);
    a.post(SendWr::send(a.memory.segment(..8).unwrap()).id(2));
    let failure = a.sent().outcome().unwrap_err();
    assert_eq!(failure.status, CompletionStatus::RECEIVER_NOT_READY);
    contains(&failure, &["receiver not ready", "posted too few receives"]);
    drop(b);
    // A key that opens nothing any more.
    let (a, b) = host.ends(Shape::default());
    let remote = b.memory.remote();
    drop(b.memory);
    let from = a.memory.segment(..8).unwrap();
    a.post(SendWr::write(from, &remote.at(0).unwrap()).id(3));
    let failure = a.sent().outcome().unwrap_err();
    assert_eq!(failure.status, CompletionStatus::REMOTE_ACCESS_ERROR);
    contains(&failure, &["remote access error", "the key is wrong or stale"]);
    // A message longer than the receive that it finds.
    let (a, b) = host.ends(Shape::default());
    b.receive(1, 0, 4);
    a.post(SendWr::send(a.memory.segment(..8).unwrap()).id(4));
    let failure = a.sent().outcome().unwrap_err();
    assert_eq!(failure.status, CompletionStatus::REMOTE_INVALID_REQUEST);
    contains(&failure, &["the message is longer than its receive"]);
    let failure = b.received().outcome().unwrap_err();
    assert_eq!(failure.status, CompletionStatus::LOCAL_LENGTH_ERROR);
    contains(&failure, &["longer than the posted receive"]);
    // An operation that the peer did not allow.
    let (a, b) = host.ends_with(Shape::default(), &ConnectOptions::new(&host.port));
    let to = b.memory.remote().at(0).unwrap();
    a.post(SendWr::write(a.memory.segment(..8).unwrap(), &to).id(5));
    let failure = a.sent().outcome().unwrap_err();
    contains(&failure, &["does not allow"]);
}

#[test]
fn a_broken_completion_queue_is_told_from_an_empty_one() {
    let device = SoftDevice::new();
    let host = open(&device);
    let queue = host.queue(8);
    device.refuse("ibv_poll_cq", 1, libc::EIO);
    let mut slots = ibverbs::Completion::slots::<4>();
    contains(&queue.poll(&mut slots).unwrap_err(), &["ibv_poll_cq failed"]);
    assert!(queue.poll(&mut slots).unwrap().is_empty());
    assert!(queue.poll(&mut []).unwrap().is_empty());
}
