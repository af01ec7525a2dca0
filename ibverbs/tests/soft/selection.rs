//! The environment chooses device, port and GID.

use ibverbs::{DeviceSelector, Devices, Error};
use soft_device::SoftDevice;

use crate::support::{assert_clean, in_child, listed};

/// Variables of the environment, by their names.
type Variables = [(&'static str, &'static str)];

/// What the child of the test chose, or its error.
fn chosen(name: &str, variables: &Variables) -> Option<String> {
    let Some(output) = in_child(name, variables) else {
        let devices = [0, 1, 2, 3].map(|_| SoftDevice::builder().ports(2).build());
        devices[3].set_port_active(1, false);
        devices[3].set_port_active(2, false);
        devices[2].set_port_active(1, false);
        match choose() {
            Ok(line) => println!("chosen: {line}"),
            Err(error) => println!("chosen: error: {error}"),
        }
        devices.iter().for_each(assert_clean);
        return None;
    };
    assert!(output.status.success(), "{output:?}");
    Some(said(&output.stdout))
}

fn said(output: &[u8]) -> String {
    let text = String::from_utf8(output.to_vec()).unwrap();
    text.lines().find_map(|line| line.split_once("chosen: ")).unwrap().1.to_owned()
}

fn choose() -> Result<String, Error> {
    let selector = DeviceSelector::from_env()?;
    let context = Devices::of(soft_device::library())?.select(&selector)?.open()?;
    let port = context.local_port(&selector)?;
    Ok(format!("{} port {} GID {}", context.device().name(), port.port, port.gid.index))
}

#[test]
fn device_port_and_gid_are_what_the_environment_says() {
    let name = "selection::device_port_and_gid_are_what_the_environment_says";
    let cases: [(&Variables, &str); 11] = [
        (&[], "soft0 port 1 GID 1"),
        (&[("RDMA_DEVICE", "soft1")], "soft1 port 1 GID 1"),
        (&[("RDMA_DEVICE", "=soft1")], "soft1 port 1 GID 1"),
        (&[("RDMA_DEVICE", "^soft0")], "soft1 port 1 GID 1"),
        (&[("RDMA_DEVICE", "^=soft0,soft1")], "soft2 port 2 GID 1"),
        (&[("RDMA_DEVICE", "soft1:2")], "soft1 port 2 GID 1"),
        (&[("RDMA_DEVICE", "soft3,soft1")], "soft1 port 1 GID 1"),
        (&[("RDMA_PORT", "2")], "soft0 port 2 GID 1"),
        (&[("RDMA_DEVICE", "soft1:1"), ("RDMA_PORT", "2")], "soft1 port 1 GID 1"),
        (&[("RDMA_GID_INDEX", "0")], "soft0 port 1 GID 0"),
        (&[("RDMA_DEVICE", " soft1 "), ("RDMA_GID_INDEX", " 0 ")], "soft1 port 1 GID 0"),
    ];
    for (variables, expected) in cases {
        let Some(chosen) = chosen(name, variables) else { return };
        assert_eq!(chosen, expected, "{variables:?}");
    }
}

#[test]
fn what_the_environment_cannot_have_says_what_there_is() {
    let name = "selection::what_the_environment_cannot_have_says_what_there_is";
    let cases: [(&Variables, &[&str]); 9] = [
        (
            &[("RDMA_DEVICE", "mlx5_0")],
            &[
                "no RDMA device named mlx5_0*",
                "set RDMA_DEVICE to one of the devices that are present",
                "soft0 (not selected)",
            ],
        ),
        (
            &[("RDMA_DEVICE", "soft3")],
            &["named soft3 with an active port", "ip link set", "port 1 is down"],
        ),
        (
            &[("RDMA_DEVICE", "soft1:3")],
            &["the port number cannot be 3: it must be from 1 to 2; the device has"],
        ),
        (&[("RDMA_DEVICE", "soft1:x")], &["RDMA_DEVICE=\"soft1:x\"", "NAME[:PORT]"]),
        (&[("RDMA_PORT", "0")], &["RDMA_PORT=\"0\" cannot be read: it must be a port number"]),
        (
            &[("RDMA_PORT", "one")],
            &["RDMA_PORT=\"one\" cannot be read: it must be a port number from 1 to 255"],
        ),
        (
            &[("RDMA_GID_INDEX", "2")],
            &["the GID index cannot be 2: it must be from 0 to 1; the port's table"],
        ),
        (&[("RDMA_GID_INDEX", "256")], &["RDMA_GID_INDEX=\"256\"", "from 0 to 255"]),
        (&[("RDMA_DEVICE", "^")], &["RDMA_DEVICE=\"^\""]),
    ];
    for (variables, expected) in cases {
        let Some(chosen) = chosen(name, variables) else { return };
        assert!(chosen.starts_with("error: "), "{variables:?}: {chosen}");
        for text in expected {
            assert!(chosen.contains(text), "{variables:?}: {chosen}");
        }
    }
}

#[test]
fn a_device_is_chosen_by_its_whole_name_from_code() {
    let device = SoftDevice::new();
    let devices = Devices::of(soft_device::library()).unwrap();
    let selected = devices.select(&DeviceSelector::named(device.name())).unwrap();
    assert_eq!(selected.name(), device.name());
    let prefix = &device.name()[..device.name().len() - 1];
    assert_ne!(
        devices.select(&DeviceSelector::named(prefix)).ok().map(|device| device.name().to_owned()),
        Some(device.name().to_owned())
    );
}

#[test]
fn a_device_describes_itself() {
    let device = SoftDevice::new();
    let entry = listed(&device);
    let context = entry.open().unwrap();
    assert_eq!(entry.guid().unwrap(), context.query_device().unwrap().node_guid());
    assert_eq!(format!("soft{}", entry.index().unwrap()), entry.name());
    assert!(entry.node_name().starts_with("uverbs"), "{}", entry.node_name());
    assert_eq!(entry.node_type(), ibverbs::NodeType::CHANNEL_ADAPTER);
    assert_eq!(entry.node_type().to_string(), "channel adapter");
    assert_eq!(ibverbs::NodeType(77).to_string(), "node type 77");
    assert_eq!(entry.transport_type(), ibverbs::TransportType::INFINIBAND);
    assert_eq!(entry.transport_type().to_string(), "InfiniBand");
    assert_eq!(ibverbs::TransportType(77).to_string(), "transport 77");
    assert_eq!(context.ports().unwrap().count(), 1);
    assert_eq!(format!("{entry:?}"), format!("Device({:?})", device.name()));
}

#[test]
fn a_table_with_more_entries_than_a_request_can_name_is_read() {
    let gids = (0..300_u16)
        .map(|index| {
            let [high, low] = index.to_be_bytes();
            let gid = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, high, low];
            soft_device::GidEntry { gid, kind: ibverbs::sys::IBV_GID_TYPE_ROCE_V2 }
        })
        .collect();
    let device = SoftDevice::builder().gids(gids).build();
    let context = listed(&device).open().unwrap();
    let table = context.query_gid_table().unwrap();
    assert_eq!(table.len(), 256, "an address vector has eight bits for the index");
    assert_eq!(table[255].index, 255);
    context.local_port(&DeviceSelector::default()).unwrap();
}

#[test]
fn an_entry_of_the_table_is_read_by_its_index() {
    let device = SoftDevice::new();
    let context = listed(&device).open().unwrap();
    let table = context.query_gid_table().unwrap();
    assert!(!table.is_empty());
    for entry in table {
        assert_eq!(context.query_gid_entry(entry.port, entry.index).unwrap(), entry);
        assert_eq!(context.query_gid(entry.port, entry.index).unwrap(), entry.gid);
    }
    let past = context.query_gid_entry(ibverbs::PortNumber::FIRST, 255).unwrap_err();
    assert!(matches!(past, Error::Verb { .. }), "{past}");
}
