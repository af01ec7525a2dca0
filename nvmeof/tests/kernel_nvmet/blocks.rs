//! Connecting, discovering, and moving blocks.
#![expect(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use crate::target::{ADDRESS, Nvmet, has_target, options, pattern, read_device, run};
use nvmeof::{
    Buffer, Controller, Error, Namespace, Nqn, Options, Part, Request,
    wire::{
        discovery::SubsystemType, event::AsynchronousEvent, identify_namespace::NamespaceName,
        log_page::ChangedNamespaces, nvm::Range,
    },
};

#[test]
fn a_controller_tells_what_it_is() {
    if !has_target() {
        return;
    }
    let target = Nvmet::new("identity");
    let controller = target.connect(options().io_queues(4)).unwrap();
    assert_eq!(controller.identify().model_number, "Linux");
    assert_eq!(controller.identify().subsystem, target.nqn());
    assert_eq!(controller.queues(), 4);
    assert!(controller.in_capsule_bytes() > 0, "the kernel takes data in capsules");
    assert_eq!(controller.namespaces().unwrap(), [1]);
    let namespace = controller.namespace(1).unwrap();
    assert_eq!(namespace.bytes(), 128 << 20);
    let has_uuid = namespace.names().iter().any(|name| matches!(name, NamespaceName::Uuid(_)));
    assert!(has_uuid, "{:?}", namespace.names());
    // The kernel describes a namespace that is not there by zeros.
    assert!(matches!(
        controller.namespace(9),
        Err(Error::Command { .. } | Error::InvalidArgument { .. })
    ));
    controller.close();
}

#[test]
fn names_and_uris_lead_to_the_target_too() {
    if !has_target() {
        return;
    }
    let target = Nvmet::new("uri");
    let uri = format!("nvme+rdma://{ADDRESS}:4420/{}?nr_io_queues=2", target.nqn());
    let found = nvmeof::Target::from_uri(&uri).unwrap();
    let options = found.options.clone().host(crate::target::host());
    let nqn = found.subsystem.clone();
    let controller = Controller::connect_with(&found.address, nqn, options).unwrap();
    assert_eq!(controller.queues(), 2);
}

#[test]
fn a_subsystem_that_is_not_there_is_refused_with_words() {
    if !has_target() {
        return;
    }
    let target = Nvmet::new("there");
    let other = Nqn::new("nqn.2024-01.org.example:not-there").unwrap();
    let error = Controller::connect_with(ADDRESS, other, options()).unwrap_err();
    assert!(matches!(error, Error::ConnectRefused { .. }), "{error:?}");
    assert!(error.to_string().contains("the subsystem's name"), "{error}");
    drop(target);
}

#[test]
fn a_port_where_nobody_listens_is_an_error_and_not_a_wait() {
    if !has_target() {
        return;
    }
    let target = Nvmet::new("elsewhere");
    let started = Instant::now();
    let nqn = Nqn::new(target.nqn()).unwrap();
    let error = Controller::connect_with(&format!("{ADDRESS}:4999"), nqn, options()).unwrap_err();
    assert!(matches!(error, Error::Transport { .. } | Error::TimedOut { .. }), "{error:?}");
    assert!(started.elapsed() < Duration::from_secs(150));
}

#[test]
fn discovery_lists_subsystems_and_follows_referrals() {
    if !has_target() {
        return;
    }
    let first = Nvmet::new("first");
    let second = Nvmet::beside("second", 4421);
    first.refer("other", ADDRESS, 4421);
    second.refer("back", ADDRESS, 4420);
    let found = nvmeof::discover(ADDRESS, &options()).unwrap();
    first.forget_referral("other");
    second.forget_referral("back");
    let names: Vec<&str> = found
        .entries
        .iter()
        .filter(|entry| entry.subsystem_type == SubsystemType::NVM)
        .map(|entry| entry.subsystem.as_str())
        .collect();
    assert!(names.contains(&first.nqn()) && names.contains(&second.nqn()), "{names:?}");
    assert!(found.failures.is_empty(), "{:?}", found.failures);
}

#[test]
fn what_we_write_is_on_the_device_and_what_is_there_is_read() {
    if !has_target() {
        return;
    }
    let target = Nvmet::new("blocks");
    let controller = target.connect(options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let block = namespace.block_size() as usize;
    for (round, length) in
        [block, 2 * block, 7 * block, 4096, 8192, 64 << 10, (1 << 20) + block, 64 << 20]
            .into_iter()
            .enumerate()
    {
        let bytes = pattern(length, round as u64 + 1);
        let buffer = controller.allocate(length).unwrap();
        buffer.write_at(0, &bytes).unwrap();
        let first = round as u64 * 3;
        namespace.write(first, &buffer).unwrap();
        let held = read_device(Path::new("/dev/ram0"), first * block as u64, length);
        assert!(held == bytes, "the device holds something else after writing {length} bytes");
        buffer.write_at(0, &vec![0; length]).unwrap();
        namespace.read(first, &buffer).unwrap();
        assert!(buffer.to_vec() == bytes, "{length} bytes are read differently");
    }
}

#[test]
fn a_namespace_on_a_file_works_as_well() {
    if !has_target() {
        return;
    }
    let mut target = Nvmet::new("file");
    let file = target.add_file(2, 32 << 20);
    let controller = target.connect(options()).unwrap();
    assert_eq!(controller.namespaces().unwrap(), [1, 2]);
    let namespace = controller.namespace(2).unwrap();
    let bytes = pattern(3 << 20, 7);
    let buffer = controller.allocate(bytes.len()).unwrap();
    buffer.write_at(0, &bytes).unwrap();
    namespace.write(16, &buffer).unwrap();
    namespace.flush().unwrap();
    let start = 16 * namespace.block_size() as usize;
    assert!(fs::read(&file).unwrap()[start..start + bytes.len()] == bytes);
    buffer.write_at(0, &vec![0; bytes.len()]).unwrap();
    namespace.read(16, &buffer).unwrap();
    assert!(buffer.to_vec() == bytes);
}

#[test]
fn the_other_commands_reach_the_device() {
    if !has_target() {
        return;
    }
    let target = Nvmet::new("commands");
    let controller = target.connect(options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let block = namespace.block_size() as usize;
    let ram = Path::new("/dev/ram0");
    let buffer = controller.allocate(64 * block).unwrap();
    buffer.write_at(0, &vec![0xee; 64 * block]).unwrap();
    namespace.write_through(0, &buffer).unwrap();
    namespace.flush().unwrap();
    assert_eq!(read_device(ram, 0, block), vec![0xee; block]);
    namespace.write_zeroes(8, 16).unwrap();
    assert_eq!(read_device(ram, 8 * block as u64, 16 * block), vec![0; 16 * block]);
    assert_eq!(read_device(ram, 24 * block as u64, block), vec![0xee; block]);
    namespace
        .deallocate(&[Range { first_block: 32, blocks: 8 }, Range { first_block: 48, blocks: 8 }])
        .unwrap();
    if controller.identify().optional_commands.has_compare() {
        assert!(!namespace.compare(0, &buffer).unwrap());
    } else {
        assert!(matches!(namespace.compare(0, &buffer), Err(Error::Unsupported { .. })));
    }
}

#[test]
fn the_end_of_the_namespace_is_respected_by_both_sides() {
    if !has_target() {
        return;
    }
    let target = Nvmet::new("end");
    let controller = target.connect(options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let buffer = controller.allocate(2 * namespace.block_size() as usize).unwrap();
    namespace.read(namespace.blocks() - 2, &buffer).unwrap();
    assert!(matches!(
        namespace.read(namespace.blocks() - 1, &buffer),
        Err(Error::OutOfRange { .. })
    ));
}

#[test]
fn every_number_of_queues_and_every_depth_carries_requests() {
    if !has_target() {
        return;
    }
    let mut target = Nvmet::at("queues", ADDRESS);
    target.allow_entries(256);
    target.add_ram(1);
    target.link();
    // One entry of a queue stays free: depths from 1 to 128.
    for (queues, entries) in
        [(1, 129), (2, 2), (3, 17), (4, 65), (5, 3), (6, 33), (7, 9), (8, 129), (8, 2)]
    {
        let settings = options().io_queues(queues).queue_entries(entries);
        let controller = target.connect(settings).unwrap();
        assert_eq!(controller.queues(), usize::from(queues));
        let namespace = controller.namespace(1).unwrap();
        let count = usize::from(entries) + 10;
        thread::scope(|scope| {
            for number in 0..u64::from(queues) {
                let (controller, namespace) = (&controller, &namespace);
                scope.spawn(move || fill(controller, namespace, entries, number * 1024, count));
            }
        });
        let buffer = controller.allocate(count * 4096).unwrap();
        for number in 0..u64::from(queues) {
            let first = number * 1024;
            let expected: Vec<u8> =
                (first..).take(count).flat_map(|seed| pattern(4096, seed)).collect();
            namespace.read(first * 8, &buffer).unwrap();
            assert!(buffer.to_vec() == expected, "queue {number} of {queues}, read by us");
            let held = read_device(Path::new("/dev/ram0"), first * 4096, count * 4096);
            assert!(held == expected, "queue {number} of {queues}, on the device");
        }
    }
}

/// Writes pages from `first` on, each with a pattern of its number, as many at once as the queue takes.
fn fill(controller: &Controller, namespace: &Namespace, entries: u16, first: u64, count: usize) {
    let mut queue = controller.take_queue().unwrap();
    assert_eq!(queue.depth(), usize::from(entries) - 1);
    for page in (first..).take(count) {
        let buffer = controller.allocate(4096).unwrap();
        buffer.write_at(0, &pattern(4096, page)).unwrap();
        let mut request = Request::write(namespace, page * 8, buffer);
        while let Err(refused) = queue.submit(request) {
            assert!(matches!(refused.error, Error::QueueFull { .. }));
            request = refused.request;
            queue.wait(Duration::from_secs(60)).unwrap().result.unwrap();
        }
    }
    while queue.pending() > 0 {
        queue.wait(Duration::from_secs(60)).unwrap().result.unwrap();
    }
}

#[test]
fn many_threads_block_on_few_queues() {
    if !has_target() {
        return;
    }
    let target = Nvmet::new("threads");
    let controller = target.connect(options().io_queues(2)).unwrap();
    let namespace = controller.namespace(1).unwrap();
    thread::scope(|scope| {
        for thread in 0..6_u64 {
            let (controller, namespace) = (&controller, &namespace);
            scope.spawn(move || {
                let buffer = controller.allocate(64 << 10).unwrap();
                let part = Part::new(&buffer, 4096..12_288).unwrap();
                for round in 0..10 {
                    let bytes = pattern(8192, thread * 100 + round);
                    buffer.write_at(4096, &bytes).unwrap();
                    namespace.write(thread * 1024, &part).unwrap();
                    buffer.write_at(4096, &[0; 8192]).unwrap();
                    namespace.read(thread * 1024, &part).unwrap();
                    assert!(buffer.to_vec()[4096..12_288] == bytes);
                }
            });
        }
    });
}

#[test]
fn the_kernel_reads_what_we_wrote_and_we_read_what_the_kernel_wrote() {
    if !has_target() {
        return;
    }
    let target = Nvmet::new("kernel");
    run("modprobe", &["nvme-rdma"]);
    let controller = target.connect(options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    run("nvme", &["connect", "-t", "rdma", "-a", ADDRESS, "-s", "4420", "-n", target.nqn()]);
    let device = kernel_device();
    for (seed, first, length) in [(21, 3, 512), (23, 2048, 1 << 20), (25, 8192, 64 << 20)] {
        let buffer = controller.allocate(length).unwrap();
        buffer.write_at(0, &pattern(length, seed)).unwrap();
        namespace.write(first, &buffer).unwrap();
        let read = read_device(&device, first * 512, length);
        assert!(read == pattern(length, seed), "the kernel reads other {length} bytes");

        let theirs = pattern(length, seed + 1);
        fs::write("/tmp/theirs", &theirs).unwrap();
        let unit = length.min(64 << 10);
        run(
            "dd",
            &[
                "if=/tmp/theirs",
                &format!("of={}", device.display()),
                &format!("bs={unit}"),
                &format!("seek={}", first * 512 / unit as u64),
                "oflag=direct",
                "status=none",
            ],
        );
        namespace.read(first, &buffer).unwrap();
        assert!(buffer.to_vec() == theirs, "we read other {length} bytes");
    }
    fs::remove_file("/tmp/theirs").unwrap();
    run("nvme", &["disconnect", "-n", target.nqn()]);
}

/// The block device that `nvme connect` made, once it is there.
fn kernel_device() -> std::path::PathBuf {
    let started = Instant::now();
    loop {
        let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        let name = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .find(|name| name.starts_with("nvme") && !name.contains('c'));
        if let Some(name) = name {
            let path = Path::new("/dev").join(name);
            if path.exists() {
                return path;
            }
        }
        assert!(started.elapsed() < Duration::from_secs(60), "no block device appeared");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_new_namespace_is_announced() {
    if !has_target() {
        return;
    }
    let mut target = Nvmet::new("event");
    let controller = target.connect(options()).unwrap();
    assert_eq!(controller.next_event(Duration::ZERO), None);
    target.add_file(5, 1 << 20);
    let event = controller.next_event(Duration::from_secs(60));
    assert_eq!(event, Some(AsynchronousEvent::NamespaceChanged));
    assert_eq!(controller.changed_namespaces().unwrap(), ChangedNamespaces::Listed(vec![5]));
    assert_eq!(controller.namespaces().unwrap(), [1, 5]);
}

#[test]
fn two_controllers_to_two_subsystems_work_at_once() {
    if !has_target() {
        return;
    }
    let first = Nvmet::new("left");
    let second = Nvmet::beside("right", 4421);
    thread::scope(|scope| {
        for (target, seed) in [(&first, 1), (&second, 2)] {
            scope.spawn(move || {
                let controller = target.connect(options()).unwrap();
                let namespace = controller.namespace(1).unwrap();
                let buffer: Buffer = controller.allocate(1 << 20).unwrap();
                for round in 0..5 {
                    let bytes = pattern(1 << 20, seed * 100 + round);
                    buffer.write_at(0, &bytes).unwrap();
                    namespace.write(round * 2048, &buffer).unwrap();
                    buffer.write_at(0, &vec![0; bytes.len()]).unwrap();
                    namespace.read(round * 2048, &buffer).unwrap();
                    assert!(buffer.to_vec() == bytes);
                }
            });
        }
    });
}

#[test]
fn a_target_without_in_capsule_data_gets_everything_by_key() {
    if !has_target() {
        return;
    }
    let target = Nvmet::new("keyed");
    let without: Options = options().in_capsule_data(false);
    let controller = target.connect(without).unwrap();
    assert_eq!(controller.in_capsule_bytes(), 0);
    let namespace = controller.namespace(1).unwrap();
    let buffer = controller.allocate(4096).unwrap();
    buffer.write_at(0, &pattern(4096, 31)).unwrap();
    namespace.write(40, &buffer).unwrap();
    let held = read_device(Path::new("/dev/ram0"), 40 * u64::from(namespace.block_size()), 4096);
    assert!(held == pattern(4096, 31));
}
