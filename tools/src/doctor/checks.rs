//! All checks, from the libraries up to the network. One thing that is missing is told once: what follows from it
//! is not looked at.

use example_support::chain;

use super::{
    Check, Options, Verdict, cards,
    device::{self, Around},
    gpu,
    kernel::{self, Access},
    libraries, locked_memory,
    machine::Machine,
    nvme,
};

/// Everything there is to look at.
pub(crate) fn all(machine: &Machine, options: &Options) -> Vec<Check> {
    let mut libraries = libraries::look(machine);
    let mut checks = std::mem::take(&mut libraries.checks);
    checks.push(kernel::support(machine));
    let cards = cards::without_driver(machine);
    let has_idle_cards = !cards.is_empty();
    checks.extend(cards);
    checks.extend(kernel::device_nodes(machine, &options.device));
    if kernel::has_verbs(machine) {
        checks.push(kernel::connection_manager_node(machine));
    }
    checks.push(locked_memory::look(machine));
    let topology = gpu::topology(machine);
    let has_gpus = topology.as_ref().is_some_and(|topology| !topology.gpus.is_empty());
    let around = Around { machine, libraries: &libraries, wanted: &options.device, has_gpus };
    let (found, works) = devices(&around, has_idle_cards);
    checks.extend(found);
    checks.push(iommu(machine));
    checks.extend(gpu::look(machine, topology.as_ref()));
    let blocked = if !works {
        Some("there is no RDMA device that works")
    } else if !libraries.has_connection_manager {
        Some("librdmacm is not there")
    } else if !kernel::has_connection_manager(machine) {
        Some("the connection manager's node cannot be used")
    } else {
        None
    };
    checks.extend(nvme::look(&options.nvmeof, blocked));
    if !works {
        checks.push(Check::yes(
            "device in software",
            "needs none of this: `cargo run --example write_with_imm`, `rdma4rs perf write bw -d software`",
        ));
    }
    checks
}

/// The devices that are wanted, and whether one of them works.
fn devices(around: &Around<'_>, has_idle_cards: bool) -> (Vec<Check>, bool) {
    let Around { machine, libraries, wanted, .. } = around;
    let what = "RDMA devices";
    let of_kernel = machine.rdma_devices();
    let reason = if !libraries.has_verbs {
        Some("libibverbs is not there")
    } else if !kernel::has_verbs(machine) {
        Some("the kernel has no support for RDMA")
    } else {
        None
    };
    if let Some(reason) = reason {
        let present = match of_kernel.as_slice() {
            [] => String::new(),
            names => format!(" (the kernel has {})", names.join(", ")),
        };
        return (vec![Check::skipped(what, &format!("{reason}{present}"))], false);
    }
    let list = match ibverbs::devices() {
        Ok(list) => list,
        Err(error) => return (vec![Check::no(what, "cannot be listed", chain(&error))], false),
    };
    if list.is_empty() && of_kernel.is_empty() {
        return (vec![none(machine, what, has_idle_cards)], false);
    }
    let wants = |name: &str| wanted.wants(name);
    let (mut checks, mut works) = (Vec::new(), false);
    let (mut unwanted, mut no_node, mut refused, mut unlisted) = (vec![], vec![], vec![], vec![]);
    let mut names = of_kernel;
    // Devices of another library have no files of the kernel.
    names.extend(list.iter().map(|device| device.name().to_owned()));
    names.sort();
    names.dedup();
    for name in names {
        if !wants(&name) {
            unwanted.push(name);
            continue;
        }
        match (kernel::access(machine, &name), list.by_name(&name)) {
            (Access::NoNode, _) => no_node.push(name),
            (Access::Refused, _) => refused.push(name),
            (Access::Open, None) => unlisted.push(name),
            (Access::Open, Some(device)) => {
                let of_device = device::look(around, device);
                works |= of_device.iter().all(|check| check.verdict != Verdict::No);
                checks.extend(of_device);
            }
        }
    }
    if checks.is_empty() && no_node.is_empty() && refused.is_empty() && unlisted.is_empty() {
        let detail =
            format!("none that -d or RDMA_DEVICE wants; there are {}", unwanted.join(", "));
        checks.push(Check::no(what, detail, "leave both out to look at all of them"));
    } else if !unwanted.is_empty() {
        checks.push(Check::skipped(unwanted.join(", "), "-d or RDMA_DEVICE does not want it"));
    }
    if !no_node.is_empty() {
        checks.push(Check::skipped(no_node.join(", "), "the device node is not there"));
    }
    if !refused.is_empty() {
        checks.push(Check::skipped(refused.join(", "), "the device node cannot be opened"));
    }
    if !unlisted.is_empty() {
        checks.push(without_provider(&unlisted));
    }
    (checks, works)
}

/// A kernel that could do RDMA and has nothing to do it with.
fn none(machine: &Machine, what: &str, has_idle_cards: bool) -> Check {
    let interface = cards::ethernet_interface(machine).unwrap_or_else(|| "NAME".to_owned());
    let software = match machine.could_load("rdma_rxe") {
        Some(false) => "this kernel has no rdma_rxe, so no device in software either".to_owned(),
        _ => format!(
            "a device in software: `modprobe rdma_rxe && rdma link add rxe0 type rxe netdev {interface}`"
        ),
    };
    if has_idle_cards {
        return Check::no(what, "none", format!("load the driver of the card above; {software}"));
    }
    Check::no(what, "none, and no card on PCI that is known to do RDMA", software)
}

/// Devices that the kernel has and the library does not list.
fn without_provider(names: &[String]) -> Check {
    Check::no(
        names.join(", "),
        "the kernel has it, and libibverbs has no provider for it",
        "install the providers of libibverbs' own release (Debian and Ubuntu: apt install ibverbs-providers; Fedora and \
         RHEL: dnf install libibverbs), and look at /etc/libibverbs.d and LD_LIBRARY_PATH",
    )
}

fn iommu(machine: &Machine) -> Check {
    if machine.entries("/sys/class/iommu").is_empty() {
        Check::yes("IOMMU", "off, or not shown")
    } else {
        Check::yes("IOMMU", "on; what it does for a card is told with the card")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_devices_is_told_how_to_make_one_in_software() {
        let eth = ("/sys/class/net/ens5/device/vendor", "0x1d0f");
        let check = none(&Machine::made_of("none", &[eth]), "devices", false);
        assert!(check.remedy.contains("type rxe netdev ens5"), "{check:?}");
        let without = [
            ("/proc/sys/kernel/osrelease", "6.1.0"),
            ("/lib/modules/6.1.0/modules.dep", "kernel/ib_uverbs.ko:"),
        ];
        let check = none(&Machine::made_of("none-rxe", &without), "devices", true);
        assert!(check.remedy.starts_with("load the driver of the card above"), "{check:?}");
        assert!(check.remedy.contains("no rdma_rxe"), "{check:?}");
    }
}
