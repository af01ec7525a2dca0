//! A machine with eight GPUs, laid out as sysfs does.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use super::*;

/// A folder that goes away with it.
struct Tree(PathBuf);

impl Drop for Tree {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Lays out what a description says.
fn tree(description: &str) -> Tree {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name =
        format!("topology-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let tree = Tree(std::env::temp_dir().join(name));
    let root = &tree.0;
    for folder in ["bus/pci/devices", "class/infiniband", "devices/virtual/infiniband"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    for line in description.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let [kind, name, node, way] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            panic!("not four words: {line}");
        };
        if way == "-" {
            // A device in software: in the class, but without a link to a device below it.
            let place = root.join("devices/virtual/infiniband").join(name);
            fs::create_dir_all(&place).unwrap();
            symlink(&place, root.join("class/infiniband").join(name)).unwrap();
            continue;
        }
        let (vendor, class) = match kind {
            "gpu" => ("0x10de", "0x030200"),
            "vga" => ("0x1a03", "0x030000"),
            "nic" => ("0x15b3", "0x020700"),
            _ => panic!("no such kind: {kind}"),
        };
        let place = root.join("devices").join(way);
        fs::create_dir_all(&place).unwrap();
        let files = [("vendor", vendor), ("class", class), ("numa_node", node)];
        for (file, text) in files {
            fs::write(place.join(file), format!("{text}\n")).unwrap();
        }
        let address = way.rsplit('/').next().unwrap();
        symlink(&place, root.join("bus/pci/devices").join(address)).unwrap();
        if kind == "nic" {
            let verbs = place.join("infiniband").join(name);
            fs::create_dir_all(&verbs).unwrap();
            symlink(&place, verbs.join("device")).unwrap();
            symlink(&verbs, root.join("class/infiniband").join(name)).unwrap();
        }
    }
    tree
}

fn machine() -> Topology {
    let tree = tree(include_str!("../../tests/data/eight-gpus.txt"));
    Topology::read_from(&tree.0).unwrap()
}

fn address(text: &str) -> PciAddress {
    text.parse().unwrap()
}

fn names(neighbours: &[Neighbour]) -> Vec<&str> {
    neighbours.iter().map(|each| each.device.name.as_str()).collect()
}

#[test]
fn gpus_and_rdma_devices_are_found_and_nothing_else() {
    let machine = machine();
    assert_eq!(machine.gpus.len(), 8);
    let names: Vec<_> = machine.rdma_devices.iter().map(|each| each.name.as_str()).collect();
    let all = [
        "mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7", "mlx5_10",
        "mlx5_11",
    ];
    assert_eq!(names, all);
    assert_eq!(machine.gpus[0].numa_node, Some(0));
    assert_eq!(machine.gpus[7].numa_node, Some(1));
}

#[test]
fn the_nearest_are_those_below_the_same_switch() {
    let machine = machine();
    assert_eq!(names(&machine.nearest(address("0000:03:00.0"))), ["mlx5_0", "mlx5_1"]);
    assert_eq!(names(&machine.nearest(address("0000:44:00.0"))), ["mlx5_2", "mlx5_3"]);
    assert_eq!(names(&machine.nearest(address("0000:c5:00.0"))), ["mlx5_10"]);
}

#[test]
fn a_ranking_goes_from_the_switch_to_the_other_socket() {
    let machine = machine();
    let ranking = machine.ranking(address("0000:03:00.0"));
    let distances: Vec<_> = ranking.iter().map(|each| each.distance).collect();
    assert_eq!(names(&ranking)[..5], ["mlx5_0", "mlx5_1", "mlx5_6", "mlx5_2", "mlx5_3"]);
    assert_eq!(distances[..2], [Distance::OneSwitch; 2]);
    assert_eq!(distances[2..5], [Distance::HostBridge, Distance::NumaNode, Distance::NumaNode]);
    assert_eq!(distances[5..], [Distance::System; 5]);
    let deep = machine.ranking(address("0000:c6:00.0"));
    assert_eq!(names(&deep)[..2], ["mlx5_10", "mlx5_11"]);
    assert_eq!(deep[1].distance, Distance::SeveralSwitches);
    assert_eq!(deep[2].distance, Distance::NumaNode);
}

#[test]
fn a_machine_without_devices_has_no_neighbours() {
    let empty = Topology::read_from(Path::new("/nonexistent")).unwrap();
    assert_eq!((empty.gpus.len(), empty.rdma_devices.len()), (0, 0));
    assert_eq!(empty.nearest(address("0000:03:00.0")), []);
    assert_eq!(machine().ranking(address("0000:ff:00.0")), []);
    Topology::read().unwrap();
}

#[test]
fn without_numa_two_host_bridges_are_far_apart() {
    let flat = tree("gpu - -1 pci0000:00/0000:00:04.0\nnic efa_0 -1 pci0000:10/0000:10:05.0\n");
    let flat = Topology::read_from(&flat.0).unwrap();
    assert_eq!(flat.gpus[0].numa_node, None);
    assert_eq!(flat.ranking(address("0000:00:04.0"))[0].distance, Distance::System);
}

#[test]
fn addresses_are_read_and_written_and_others_refused() {
    for text in ["0000:1b:00.0", "0001:ff:1f.7", "10000:01:02.3"] {
        assert_eq!(address(text).to_string(), text);
    }
    assert_eq!(address("00000000:1B:00.0").to_string(), "0000:1b:00.0");
    for text in [
        "",
        "1b:00.0",
        "0000:1b:00",
        "0000:1b:20.0",
        "0000:1b:00.8",
        "0000:100:00.0",
        "0:+1:0.0",
        "0000:1b:00.0:1",
    ] {
        text.parse::<PciAddress>().unwrap_err();
    }
}
