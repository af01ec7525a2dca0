//! Namespaces on different things, and what of our commands reaches these.
#![expect(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use crate::{
    devices::{CachedDisk, FileSystem, ProtectedDisk, Trace},
    target::{Nvmet, has_target, options, pattern, read_device},
};
use nvmeof::{Error, Namespace, wire::nvm::Range};

/// The second address of the device that loops back.
const ADDRESS_6: &str = "fd00:99::1";

/// From one block to 64 MiB, and lengths that end within a page or a command.
fn lengths(block: usize) -> [usize; 7] {
    [block, 2 * block, 7 * block, 64 << 10, (1 << 20) + block, 5 << 20, 64 << 20]
}

/// Writes and reads every length, and looks at what stands behind the namespace each time.
fn move_every_length(
    controller: &nvmeof::Controller,
    namespace: &Namespace,
    behind: &Path,
    read_behind: fn(&Path, u64, usize) -> Vec<u8>,
) {
    let block = namespace.block_size() as usize;
    for (round, length) in lengths(block).into_iter().enumerate() {
        let bytes = pattern(length, round as u64 + 40);
        let buffer = controller.allocate(length).unwrap();
        buffer.write_at(0, &bytes).unwrap();
        let first = round as u64 * 3;
        namespace.write(first, &buffer).unwrap();
        let held = read_behind(behind, first * block as u64, length);
        assert!(held == bytes, "something else is there after writing {length} bytes");
        buffer.write_at(0, &vec![0; length]).unwrap();
        namespace.read(first, &buffer).unwrap();
        assert!(buffer.to_vec() == bytes, "{length} bytes are read differently");
    }
}

fn read_file(path: &Path, offset: u64, length: usize) -> Vec<u8> {
    let start = usize::try_from(offset).unwrap();
    fs::read(path).unwrap()[start..start + length].to_vec()
}

#[test]
fn blocks_of_4096_bytes_are_moved_on_a_block_device() {
    if !has_target() {
        return;
    }
    let disk = CachedDisk::new(4096, 80);
    let mut target = Nvmet::at("large-blocks", crate::target::ADDRESS);
    target.add_namespace(1, disk.path());
    target.link();
    let controller = target.connect(options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    assert_eq!((namespace.block_size(), namespace.bytes()), (4096, 80 << 20));
    move_every_length(&controller, &namespace, disk.path(), read_device);
    let half = controller.allocate(512).unwrap();
    assert!(matches!(namespace.read(0, &half), Err(Error::InvalidArgument { .. })));
    drop(target);
}

#[test]
fn blocks_of_4096_bytes_are_moved_on_a_file() {
    if !has_target() {
        return;
    }
    let mut target = Nvmet::at("large-file", crate::target::ADDRESS);
    let file = target.add_file(1, 80 << 20);
    target.link();
    let controller = target.connect(options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    assert_eq!((namespace.block_size(), namespace.bytes()), (4096, 80 << 20));
    move_every_length(&controller, &namespace, &file, read_file);
}

#[test]
fn forced_unit_access_and_flushes_reach_a_device_with_a_cache() {
    if !has_target() {
        return;
    }
    let disk = CachedDisk::new(512, 16);
    let mut target = Nvmet::at("cache", crate::target::ADDRESS);
    target.add_namespace(1, disk.path());
    target.link();
    let controller = target.connect(options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let buffer = controller.allocate(8192).unwrap();
    let trace = Trace::of(disk.path());

    namespace.write(0, &buffer).unwrap();
    let plain = trace.issued();
    assert!(!plain.is_empty() && plain.iter().all(|(what, _)| !what.contains('F')), "{plain:?}");
    trace.forget();
    namespace.write_through(16, &buffer).unwrap();
    let forced = trace.issued();
    let bytes: u64 = forced.iter().filter(|(what, _)| what.contains("WF")).map(|(_, b)| b).sum();
    assert_eq!(bytes, 8192, "{forced:?}");
    trace.forget();
    namespace.flush().unwrap();
    let flushed = trace.issued();
    assert!(flushed.iter().any(|(what, _)| what.starts_with('F')), "{flushed:?}");
    trace.forget();
    namespace.deallocate(&[Range { first_block: 8, blocks: 64 }]).unwrap();
    let discarded = trace.issued();
    let bytes: u64 = discarded.iter().filter(|(what, _)| what.contains('D')).map(|(_, b)| b).sum();
    assert_eq!(bytes, 64 * 512, "{discarded:?}");
    drop((trace, target));
}

#[test]
fn forced_unit_access_and_flushes_of_a_file_reach_the_device_under_it() {
    if !has_target() {
        return;
    }
    let disk = CachedDisk::new(4096, 64);
    let file_system = FileSystem::new(disk.path());
    let file = file_system.path().join("namespace");
    fs::write(&file, vec![7; 8 << 20]).unwrap();
    let mut target = Nvmet::at("cached-file", crate::target::ADDRESS);
    target.add_namespace(1, &file);
    target.link();
    let controller = target.connect(options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let buffer = controller.allocate(64 << 10).unwrap();
    namespace.write(0, &buffer).unwrap();
    namespace.flush().unwrap();

    let trace = Trace::of(disk.path());
    for durable in [Namespace::write_through, |namespace: &Namespace, first, buffer: &_| {
        namespace.write(first, buffer)?;
        namespace.flush()
    }] {
        trace.forget();
        durable(&namespace, 16, &buffer).unwrap();
        let issued = trace.issued();
        assert!(issued.iter().any(|(what, _)| what.contains('F')), "{issued:?}");
    }
    drop((trace, target, file_system));
}

#[test]
fn zeroes_and_deallocated_blocks_are_seen_on_the_ram_disk() {
    if !has_target() {
        return;
    }
    let target = Nvmet::new("zeroes");
    // The target takes the ranges out of the command, or reads them from here.
    for in_capsule in [true, false] {
        let controller = target.connect(options().in_capsule_data(in_capsule)).unwrap();
        let namespace = controller.namespace(1).unwrap();
        let ram = Path::new("/dev/ram0");
        let buffer = controller.allocate(1 << 20).unwrap();
        buffer.write_at(0, &vec![0xee; 1 << 20]).unwrap();
        namespace.write(0, &buffer).unwrap();
        namespace.write_zeroes(3, 1000).unwrap();
        assert_eq!(read_device(ram, 0, 3 * 512), vec![0xee; 3 * 512]);
        assert_eq!(read_device(ram, 3 * 512, 1000 * 512), vec![0; 1000 * 512]);
        assert_eq!(read_device(ram, 1003 * 512, 512), vec![0xee; 512]);
        // Whole pages, which are what the ram disk can give back.
        let ranges =
            [Range { first_block: 1024, blocks: 8 }, Range { first_block: 1040, blocks: 16 }];
        namespace.deallocate(&ranges).unwrap();
        assert_eq!(read_device(ram, 1024 * 512, 4096), vec![0; 4096]);
        assert_eq!(read_device(ram, 1032 * 512, 4096), vec![0xee; 4096]);
        assert_eq!(read_device(ram, 1040 * 512, 8192), vec![0; 8192]);
        assert_eq!(read_device(ram, 1056 * 512, 512), vec![0xee; 512]);
    }
}

#[test]
fn zeroes_and_deallocated_blocks_are_seen_in_the_file() {
    if !has_target() {
        return;
    }
    let file_system = FileSystem::new(Path::new("/dev/ram1"));
    let file = file_system.path().join("namespace");
    fs::write(&file, vec![0xee; 8 << 20]).unwrap();
    let mut target = Nvmet::at("file-zeroes", crate::target::ADDRESS);
    target.add_namespace(1, &file);
    target.link();
    let controller = target.connect(options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let block = u64::from(namespace.block_size());
    namespace.flush().unwrap();
    let allocated = fs::metadata(&file).unwrap().blocks();

    namespace.write_zeroes(16, 32).unwrap();
    namespace.deallocate(&[Range { first_block: 512, blocks: 512 }]).unwrap();
    let bytes = fs::read(&file).unwrap();
    let is_hole = |index: u64| (16..48).contains(&index) || (512..1024).contains(&index);
    for (index, held) in (0..).zip(bytes.chunks_exact(usize::try_from(block).unwrap())) {
        let expected = if is_hole(index) { 0 } else { 0xee };
        assert!(held.iter().all(|byte| *byte == expected), "block {index}");
    }
    let left = fs::metadata(&file).unwrap().blocks();
    assert!(allocated - left >= 512 * block / 512, "{allocated} and {left} sectors");
    drop((target, file_system));
}

#[test]
fn a_file_that_cannot_be_zeroed_is_a_status_and_changes_nothing() {
    if !has_target() {
        return;
    }
    let mut target = Nvmet::at("no-zeroes", crate::target::ADDRESS);
    // Memory has no way to make a range of a file zero.
    let file = target.add_file(1, 1 << 20);
    fs::write(&file, vec![0xee; 1 << 20]).unwrap();
    target.link();
    let controller = target.connect(options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let error = namespace.write_zeroes(0, 8).unwrap_err();
    assert!(matches!(error, Error::Command { operation: "write zeroes", .. }), "{error:?}");
    assert!(fs::read(&file).unwrap().iter().all(|byte| *byte == 0xee));
    namespace.deallocate(&[Range { first_block: 8, blocks: 8 }]).unwrap();
    assert_eq!(read_file(&file, 8 * 4096, 8 * 4096), vec![0; 8 * 4096]);
}

#[test]
fn comparing_is_refused_here_because_this_target_cannot() {
    if !has_target() {
        return;
    }
    let target = Nvmet::new("compare");
    let controller = target.connect(options()).unwrap();
    assert!(!controller.identify().optional_commands.has_compare());
    let namespace = controller.namespace(1).unwrap();
    let buffer = controller.allocate(512).unwrap();
    let error = namespace.compare(0, &buffer).unwrap_err();
    assert!(matches!(error, Error::Unsupported { what: "compare", .. }), "{error:?}");
}

#[test]
fn protection_information_stays_at_a_target_whose_device_does_not_move_it() {
    if !has_target() {
        return;
    }
    let disk = ProtectedDisk::new();
    let mut target = Nvmet::at("protected", crate::target::ADDRESS);
    target.protect();
    target.add_namespace(1, disk.path());
    target.link();
    let controller = target.connect(options()).unwrap();
    // rxe offers no integrity offload, so that the target shows blocks without metadata, and the
    // kernel makes and checks what the disk carries.
    let namespace = controller.namespace(1).unwrap();
    assert_eq!((namespace.block_size(), namespace.bytes()), (512, 16 << 20));
    let bytes = pattern(1 << 20, 77);
    let buffer = controller.allocate(bytes.len()).unwrap();
    buffer.write_at(0, &bytes).unwrap();
    namespace.write(8, &buffer).unwrap();
    assert!(read_device(disk.path(), 8 * 512, bytes.len()) == bytes);
    buffer.write_at(0, &vec![0; bytes.len()]).unwrap();
    namespace.read(8, &buffer).unwrap();
    assert!(buffer.to_vec() == bytes);
    drop((controller, namespace, target));
    drop(disk);
}

#[test]
fn a_target_is_found_and_used_at_an_address_of_ipv6() {
    if !has_target() {
        return;
    }
    let mut target = Nvmet::at("six", ADDRESS_6);
    target.add_ram(1);
    target.link();
    let found = nvmeof::discover(ADDRESS_6, &options()).unwrap();
    let entry = found.entries.iter().find(|entry| entry.subsystem.as_str() == target.nqn());
    assert_eq!(entry.unwrap().address, ADDRESS_6);
    for address in [ADDRESS_6.to_owned(), format!("[{ADDRESS_6}]:4420")] {
        let nqn = nvmeof::Nqn::new(target.nqn()).unwrap();
        let controller =
            nvmeof::Controller::connect_with(&address, nqn, options().io_queues(2)).unwrap();
        let namespace = controller.namespace(1).unwrap();
        let bytes = pattern(3 << 20, 66);
        let buffer = controller.allocate(bytes.len()).unwrap();
        buffer.write_at(0, &bytes).unwrap();
        namespace.write(100, &buffer).unwrap();
        assert!(read_device(Path::new("/dev/ram0"), 100 * 512, bytes.len()) == bytes);
        buffer.write_at(0, &vec![0; bytes.len()]).unwrap();
        namespace.read(100, &buffer).unwrap();
        assert!(buffer.to_vec() == bytes);
    }
}
