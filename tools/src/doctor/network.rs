//! The network interfaces behind a port.

use std::path::PathBuf;

use ibverbs::{GidEntry, PortNumber};

use super::machine::{Machine, name, text};

/// An interface behind a port, by its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Interface {
    /// In this process's network namespace.
    Here(String),
    /// In another one: the name is that of there.
    Elsewhere(String),
}

/// The interface of one entry of a GID table; `None` where there is none (InfiniBand, EFA).
///
/// Indexes count in each namespace for themselves, so that the name that the device knows has to agree.
pub(crate) fn of_gid(machine: &Machine, device: &str, entry: &GidEntry) -> Option<Interface> {
    of_entry(machine, device, entry.port.get(), entry.index, entry.interface_index)
}

fn of_entry(machine: &Machine, device: &str, port: u8, gid: u8, index: u32) -> Option<Interface> {
    let here = machine.interface(index).filter(|_| index != 0);
    let entry = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/ndevs/{gid}");
    match (machine.text(entry), here) {
        (Some(name), Some(here)) if name == here => Some(Interface::Here(here)),
        (Some(name), _) => Some(Interface::Elsewhere(name)),
        (None, here) => here.map(Interface::Here),
    }
}

/// The interfaces behind a port, each once; without a GID those of the card.
pub(crate) fn of_port(
    machine: &Machine,
    device: &str,
    port: PortNumber,
    table: &[&GidEntry],
) -> Vec<Interface> {
    let mut found: Vec<Interface> =
        table.iter().filter_map(|entry| of_gid(machine, device, entry)).collect();
    if found.is_empty() {
        found = of_card(machine, device, port.get()).into_iter().map(Interface::Here).collect();
    }
    found.sort();
    found.dedup();
    found
}

/// The interfaces of a card that are this port's.
fn of_card(machine: &Machine, device: &str, port: u8) -> Vec<String> {
    let interfaces = machine.entries(format!("/sys/class/infiniband/{device}/device/net"));
    let is_port = |path: &PathBuf| {
        text(path.join("dev_port")).and_then(|text| text.parse::<u8>().ok())
            == Some(port.saturating_sub(1))
    };
    interfaces.into_iter().filter(is_port).map(|path| name(&path)).collect()
}

/// The cards' interfaces below one that is a bond, a VLAN or a bridge; itself if it is a card's; none for one in software.
pub(crate) fn physical(machine: &Machine, interface: &str) -> Vec<String> {
    fn descend(machine: &Machine, interface: &str, depth: u8, found: &mut Vec<String>) {
        let folder = PathBuf::from("/sys/class/net").join(interface);
        if machine.path(folder.join("device")).exists() {
            found.push(interface.to_owned());
            return;
        }
        for entry in machine.entries(folder) {
            if let Some(lower) = name(&entry).strip_prefix("lower_")
                && depth > 0
            {
                descend(machine, lower, depth - 1, found);
            }
        }
    }
    let mut found = Vec::new();
    descend(machine, interface, 4, &mut found);
    found.sort();
    found.dedup();
    found
}

/// State and MTU of an interface.
pub(crate) fn state(machine: &Machine, interface: &str) -> String {
    let read = |file: &str| machine.text(format!("/sys/class/net/{interface}/{file}"));
    let state = match read("operstate").as_deref() {
        // Interfaces in software tell nothing.
        None | Some("unknown") if is_up(machine, interface) => "up".to_owned(),
        None | Some("unknown") => "down".to_owned(),
        Some(state) => state.to_owned(),
    };
    format!("{state}, MTU {}", read("mtu").unwrap_or_default())
}

/// Whether somebody switched it on; it may still have no link.
pub(crate) fn is_up(machine: &Machine, interface: &str) -> bool {
    let flags = machine.text(format!("/sys/class/net/{interface}/flags")).unwrap_or_default();
    let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).unwrap_or(0);
    flags & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_of_another_namespace_is_not_taken_for_the_one_with_its_index_here() {
        let machine = Machine::made_of(
            "namespaces",
            &[
                ("/sys/class/net/eth0/ifindex", "2"),
                ("/sys/class/infiniband/rxe0/ports/1/gid_attrs/ndevs/0", "eth0\n"),
                ("/sys/class/infiniband/rxe1/ports/1/gid_attrs/ndevs/0", "veth1\n"),
            ],
        );
        let of = |device, index| of_entry(&machine, device, 1, 0, index);
        assert_eq!(of("rxe0", 2), Some(Interface::Here("eth0".to_owned())));
        assert_eq!(of("rxe1", 2), Some(Interface::Elsewhere("veth1".to_owned())));
        assert_eq!(of("rxe1", 9), Some(Interface::Elsewhere("veth1".to_owned())));
        // InfiniBand and EFA have none.
        assert_eq!(of("efa_0", 0), None);
    }

    #[test]
    fn the_cards_below_bonds_and_vlans_are_found() {
        let machine = Machine::made_of(
            "bond",
            &[
                ("/sys/class/net/ens1/device/vendor", "0x15b3"),
                ("/sys/class/net/ens2/device/vendor", "0x15b3"),
                ("/sys/class/net/bond0/lower_ens1", "->/sys/class/net/ens1"),
                ("/sys/class/net/bond0/lower_ens2", "->/sys/class/net/ens2"),
                ("/sys/class/net/bond0.7/lower_bond0", "->/sys/class/net/bond0"),
                ("/sys/class/net/dum0/mtu", "1500"),
                ("/sys/class/net/loop0/lower_loop0", "->/sys/class/net/loop0"),
            ],
        );
        assert_eq!(physical(&machine, "bond0.7"), ["ens1", "ens2"]);
        assert_eq!(physical(&machine, "ens1"), ["ens1"]);
        for none in ["dum0", "loop0", "nosuch0"] {
            assert!(physical(&machine, none).is_empty(), "{none}");
        }
    }

    #[test]
    fn the_interface_of_a_port_without_gids_is_the_cards() {
        let card = "/sys/class/infiniband/mlx4_0/device/net";
        let machine = Machine::made_of("card-ports", &[]);
        machine.add(&format!("{card}/ens3/dev_port"), b"0\n");
        machine.add(&format!("{card}/ens3d1/dev_port"), b"1\n");
        let port = PortNumber::new(2).unwrap();
        let expected = [Interface::Here("ens3d1".to_owned())];
        assert_eq!(of_port(&machine, "mlx4_0", port, &[]), expected);
    }

    #[test]
    fn interfaces_that_tell_no_state_are_up_if_switched_on() {
        let state_of = |test: &str, operstate: &str, flags: &str| {
            let folder = "/sys/class/net/eth0";
            let machine = Machine::made_of(test, &[("/sys/class/net/eth0/mtu", "1500")]);
            machine.add(&format!("{folder}/operstate"), operstate.as_bytes());
            machine.add(&format!("{folder}/flags"), flags.as_bytes());
            state(&machine, "eth0")
        };
        assert_eq!(state_of("dummy", "unknown", "0x83"), "up, MTU 1500");
        assert_eq!(state_of("dummy-down", "unknown", "0x82"), "down, MTU 1500");
        assert_eq!(state_of("no-carrier", "lowerlayerdown", "0x1003"), "lowerlayerdown, MTU 1500");
    }
}
