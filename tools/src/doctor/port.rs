//! A port: its link, its MTU, its addresses, and what its counters remember.

use example_support::chain;
use ibverbs::{Context, GidEntry, GidType, LinkLayer, Mtu, PortAttributes, PortNumber, PortState};

use super::{
    Check, flow_control,
    machine::Machine,
    network::{self, Interface},
};

/// What a device says of a port.
#[derive(Debug, Clone, Copy)]
struct Port {
    state: PortState,
    /// The kernel's number of the state of the wire.
    wire: u8,
    link: LinkLayer,
    megabits: u64,
    mtu: Mtu,
    largest_mtu: Mtu,
}

impl From<&PortAttributes> for Port {
    fn from(attributes: &PortAttributes) -> Self {
        Self {
            state: attributes.state(),
            wire: attributes.as_raw().phys_state,
            link: attributes.link_layer(),
            megabits: attributes.megabits_per_second(),
            mtu: attributes.active_mtu(),
            largest_mtu: attributes.max_mtu(),
        }
    }
}

/// Looks at the ports of a device that are wanted.
pub(crate) fn look(
    machine: &Machine,
    context: &Context,
    wanted: Option<PortNumber>,
    is_efa: bool,
) -> Vec<Check> {
    let device = context.device().name();
    let table = match context.query_gid_table() {
        Ok(table) => table,
        Err(error) => {
            let what = format!("{device}: GIDs");
            return vec![Check::no(what, "cannot be read", chain(&error))];
        }
    };
    let numbers: Vec<PortNumber> = context.ports().into_iter().flatten().collect();
    let numbers = numbers.into_iter().filter(|number| wanted.is_none_or(|port| port == *number));
    let mut ports = Vec::new();
    let mut checks = Vec::new();
    for number in numbers {
        match context.query_port(number) {
            Ok(attributes) => ports.push((number, Port::from(&attributes))),
            Err(error) => {
                let what = format!("{device} port {number}");
                checks.push(Check::no(what, "cannot be queried", chain(&error)));
            }
        }
    }
    let has_active = ports.iter().any(|(_, port)| port.state == PortState::ACTIVE);
    for (number, port) in ports {
        let gids: Vec<&GidEntry> = table.iter().filter(|entry| entry.port == number).collect();
        let interfaces = network::of_port(machine, device, number, &gids);
        let what = format!("{device} port {number}");
        checks.push(link(machine, what.clone(), &port, &interfaces, has_active));
        if port.state != PortState::ACTIVE {
            continue;
        }
        checks.extend(mtu(&what, &port));
        checks.push(addresses(&what, &gids, is_efa));
        for interface in &interfaces {
            checks.extend(self::interface(machine, &what, interface));
        }
        checks.extend(counters(machine, &what, device, number.get()));
    }
    checks
}

/// Whether it carries traffic, and what is in the way if not.
fn link(
    machine: &Machine,
    what: String,
    port: &Port,
    interfaces: &[Interface],
    another_is_active: bool,
) -> Check {
    let Port { state, link, megabits, mtu, .. } = port;
    let kind = if *link == LinkLayer::UNSPECIFIED { String::new() } else { format!("{link}, ") };
    if *state == PortState::ACTIVE {
        return Check::yes(what, format!("active, {kind}{megabits} Mb/s, MTU {mtu}"));
    }
    const POLLING: u8 = 2;
    const DISABLED: u8 = 3;
    const LINK_UP: u8 = 5;
    let wire = match port.wire {
        POLLING => ", looking for the other end",
        DISABLED => ", switched off",
        LINK_UP => ", link up",
        _ => "",
    };
    let detail = format!("{state}{wire}, {kind}").trim_end_matches(", ").to_owned();
    let here = interfaces.iter().find_map(|interface| match interface {
        Interface::Here(name) => Some(name),
        Interface::Elsewhere(_) => None,
    });
    let remedy = match (*link, here) {
        (LinkLayer::INFINIBAND, _) if *state != PortState::DOWN => {
            "the link is up, and no subnet manager configures it: start one (`opensm`) on one host or switch of the \
             network, `sminfo` asks for it"
                .to_owned()
        }
        (LinkLayer::INFINIBAND, _) if port.wire == DISABLED => {
            "somebody switched the port off: `ibportstate -D 0 PORT enable`".to_owned()
        }
        (LinkLayer::INFINIBAND, _) => {
            "no link: check the cable, and the port at its other end".to_owned()
        }
        (LinkLayer::ETHERNET, Some(name)) if network::is_up(machine, name) => {
            format!("{name} is switched on and has no link: check the cable, and the switch's port")
        }
        (LinkLayer::ETHERNET, Some(name)) => format!("`ip link set {name} up`"),
        (LinkLayer::ETHERNET, None) => {
            "bring up the network interface behind it: `rdma link` names it, `ip link set NAME up`".to_owned()
        }
        _ => "look at `dmesg`; load the driver again".to_owned(),
    };
    if another_is_active {
        Check::note(what, detail, format!("if it should be in use: {remedy}"))
    } else {
        let aside = "; `-d ^NAME` leaves a card out that nobody uses";
        Check::no(what, detail, format!("{remedy}{aside}"))
    }
}

fn mtu(what: &str, port: &Port) -> Option<Check> {
    let remedy = match port.link {
        LinkLayer::ETHERNET => {
            "raise the interface's MTU (4200 or 9000) on every host and switch of the network"
        }
        LinkLayer::INFINIBAND => {
            "raise it where the subnet manager sets it (`mtu=5` in opensm's partitions.conf is 4096)"
        }
        _ => return None,
    };
    (port.mtu < port.largest_mtu).then(|| {
        let detail = format!("{} of {}", port.mtu, port.largest_mtu);
        Check::note(format!("{what}: MTU"), detail, remedy)
    })
}

fn addresses(what: &str, table: &[&GidEntry], is_efa: bool) -> Check {
    let what = format!("{what}: GIDs");
    let reaches = |entry: &&&GidEntry| {
        is_efa
            || entry.kind == GidType::INFINIBAND
            || !entry.gid.is_link_local() && entry.kind != GidType::ROCE_V1
    };
    let remedy = "give the network interface behind the port an IP address";
    match table.iter().find(reaches) {
        Some(entry) if is_efa => {
            Check::yes(what, format!("{} at index {}", entry.gid, entry.index))
        }
        Some(entry) => {
            Check::yes(what, format!("{} at index {} ({})", entry.gid, entry.index, entry.kind))
        }
        None if table.is_empty() => Check::no(what, "none", remedy),
        None => Check::no(
            what,
            "only link-local ones or RoCE v1: other subnets are not reached, software devices do not loop \
             them back",
            remedy,
        ),
    }
}

fn interface(machine: &Machine, what: &str, interface: &Interface) -> Vec<Check> {
    let name = match interface {
        Interface::Here(name) => name,
        Interface::Elsewhere(name) => {
            return vec![Check::note(
                format!("{what}: interface {name}"),
                "in another network namespace",
                "use the device there (`ip netns exec`), or start the container with the host's network; here \
                 connections by address do not work, and nothing does on devices in software",
            )];
        }
    };
    let mut checks =
        vec![Check::yes(format!("{what}: interface {name}"), network::state(machine, name))];
    for card in network::physical(machine, name) {
        checks.extend(flow_control::look(machine, what, &card));
    }
    checks
}

/// Counters that stay at zero on a good link.
const COUNTERS: [&str; 9] = [
    "counters/symbol_error",
    "counters/link_error_recovery",
    "counters/port_rcv_errors",
    "counters/local_link_integrity_errors",
    "hw_counters/packet_seq_err",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/out_of_sequence",
    "hw_counters/rx_icrc_encapsulated",
    "hw_counters/roce_slow_restart",
];

fn counters(machine: &Machine, what: &str, device: &str, port: u8) -> Option<Check> {
    let count = |file: &&str| {
        let path = format!("/sys/class/infiniband/{device}/ports/{port}/{file}");
        let count = machine.text(path)?.parse::<u64>().ok().filter(|count| *count > 0)?;
        Some(format!("{} {count}", file.rsplit('/').next().unwrap_or_default()))
    };
    let counts: Vec<String> = COUNTERS.iter().filter_map(count).collect();
    (!counts.is_empty()).then(|| {
        Check::note(
            format!("{what}: errors since the driver was loaded"),
            counts.join(", "),
            "if they grow while bytes move: cable and transceiver for the link's own, PFC and ECN for what was sent \
             again",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    const DOWN: Port = Port {
        state: PortState::DOWN,
        wire: 2,
        link: LinkLayer::INFINIBAND,
        megabits: 10_000,
        mtu: Mtu::BYTES_1024,
        largest_mtu: Mtu::BYTES_4096,
    };

    fn remedy(port: Port, interfaces: &[Interface]) -> String {
        let machine = Machine::made_of(
            "port-links",
            &[("/sys/class/net/up0/flags", "0x1003"), ("/sys/class/net/off0/flags", "0x1002")],
        );
        let check = link(&machine, "port".to_owned(), &port, interfaces, false);
        assert_eq!(check.verdict, Verdict::No);
        check.remedy
    }

    #[test]
    fn a_port_without_link_is_told_apart_from_one_without_subnet_manager() {
        assert!(remedy(DOWN, &[]).starts_with("no link: check the cable"));
        assert!(remedy(Port { wire: 3, ..DOWN }, &[]).contains("ibportstate"));
        let waiting = Port { state: PortState::INITIALIZING, wire: 5, ..DOWN };
        assert!(remedy(waiting, &[]).contains("opensm"));
        let ethernet = Port { link: LinkLayer::ETHERNET, wire: 3, ..DOWN };
        let here = |name: &str| [Interface::Here(name.to_owned())];
        assert!(remedy(ethernet, &here("off0")).starts_with("`ip link set off0 up`"));
        assert!(remedy(ethernet, &here("up0")).starts_with("up0 is switched on and has no link"));
        assert!(remedy(ethernet, &[]).contains("`rdma link`"));
    }

    #[test]
    fn an_unused_port_beside_an_active_one_is_noted() {
        let machine = Machine::made_of("port-unused", &[]);
        let check = link(&machine, "port".to_owned(), &DOWN, &[], true);
        assert_eq!(check.verdict, Verdict::Note);
        assert_eq!(check.detail, "down, looking for the other end, InfiniBand");
    }

    #[test]
    fn a_small_mtu_has_the_remedy_of_its_network() {
        assert!(mtu("port", &DOWN).unwrap().remedy.contains("opensm"));
        let ethernet = Port { link: LinkLayer::ETHERNET, ..DOWN };
        assert!(mtu("port", &ethernet).unwrap().remedy.contains("4200 or 9000"));
        assert_eq!(mtu("port", &Port { link: LinkLayer::UNSPECIFIED, ..DOWN }), None);
        assert_eq!(mtu("port", &Port { mtu: Mtu::BYTES_4096, ..DOWN }), None);
    }

    #[test]
    fn an_interface_elsewhere_is_noted_and_not_looked_at() {
        let machine = Machine::made_of("port-elsewhere", &[]);
        let checks = interface(&machine, "port", &Interface::Elsewhere("veth1".to_owned()));
        assert_eq!(checks.len(), 1);
        assert_eq!(checks[0].verdict, Verdict::Note);
    }

    #[test]
    fn counters_that_count_errors_are_noted_by_name() {
        let folder = "/sys/class/infiniband/mlx5_0/ports/1";
        let machine = Machine::made_of("port-counters", &[]);
        let noted = || counters(&machine, "port", "mlx5_0", 1);
        assert_eq!(noted(), None);
        machine.add(&format!("{folder}/counters/symbol_error"), b"0\n");
        machine.add(&format!("{folder}/counters/port_rcv_data"), b"77\n");
        assert_eq!(noted(), None);
        machine.add(&format!("{folder}/counters/symbol_error"), b"12\n");
        machine.add(&format!("{folder}/hw_counters/out_of_sequence"), b"3\n");
        assert_eq!(noted().unwrap().detail, "symbol_error 12, out_of_sequence 3");
    }
}
