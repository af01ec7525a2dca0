//! Network cards that could do RDMA and do not, because a driver is missing.

use std::path::{Path, PathBuf};

use super::{
    Check,
    machine::{Machine, name, target, text},
};

/// Drivers of network cards, and the module that adds RDMA to each.
const RDMA_PARTS: [(&str, &str); 10] = [
    ("mlx5_core", "mlx5_ib"),
    ("mlx4_core", "mlx4_ib"),
    ("bnxt_en", "bnxt_re"),
    ("ice", "irdma"),
    ("idpf", "irdma"),
    ("cxgb4", "iw_cxgb4"),
    ("qede", "qedr"),
    ("hns3", "hns_roce_hw_v2"),
    ("mana", "mana_ib"),
    ("ionic", "ionic_rdma"),
];

/// What a card without a driver needs, by vendor and the beginning of the device's number.
const DRIVERS: [(&str, &str, &str); 3] =
    [("0x1d0f", "0xefa", "efa"), ("0x15b3", "0x100", "mlx4_core"), ("0x15b3", "0x10", "mlx5_core")];

/// PCI's class of network controllers.
const NETWORK: &str = "0x02";

pub(crate) fn without_driver(machine: &Machine) -> Vec<Check> {
    let functions = machine.entries("/sys/bus/pci/devices");
    functions.iter().filter_map(|function| look(machine, function)).collect()
}

fn look(machine: &Machine, function: &Path) -> Option<Check> {
    let is_network = text(function.join("class"))?.starts_with(NETWORK);
    if !is_network || function.join("infiniband").exists() {
        return None;
    }
    let (vendor, device) = (text(function.join("vendor"))?, text(function.join("device"))?);
    let card = format!("PCI {} ({vendor}:{device})", name(function)).replace("0x", "");
    let Some(driver) = target(function.join("driver")) else {
        let known =
            DRIVERS.iter().find(|(of, prefix, _)| *of == vendor && device.starts_with(prefix));
        let (_, _, module) = known?;
        let remedy = install(machine, module);
        return Some(Check::note(card, "can do RDMA and has no driver", remedy));
    };
    if driver == "vfio-pci" && DRIVERS.iter().any(|(of, ..)| *of == vendor) {
        let remedy = "it belongs to a virtual machine, or to a program of user space";
        return Some(Check::note(card, "has the driver vfio-pci: no RDMA on this side", remedy));
    }
    let (_, module) = RDMA_PARTS.iter().find(|(of, _)| *of == driver)?;
    let detail = format!("has the driver {driver} and no RDMA device");
    let remedy = if machine.has_module(module) {
        format!(
            "{module} is loaded: look at `dmesg`, whether the card has RDMA and has it switched on (`devlink dev \
             param show`)"
        )
    } else {
        install(machine, module)
    };
    Some(Check::note(card, detail, remedy))
}

fn install(machine: &Machine, module: &str) -> String {
    let modprobe = format!("`modprobe {module}`");
    match machine.could_load(module) {
        Some(false) if module == "efa" => {
            format!(
                "install the EFA software of AWS, whose kernel module this kernel lacks; {modprobe}"
            )
        }
        Some(false) => {
            format!(
                "this kernel lacks {module}: install its other modules, or the vendor's driver; {modprobe}"
            )
        }
        _ => modprobe,
    }
}

/// An interface that a device in software could be made of.
pub(crate) fn ethernet_interface(machine: &Machine) -> Option<String> {
    let interfaces = machine.entries("/sys/class/net");
    let real: Vec<PathBuf> =
        interfaces.into_iter().filter(|path| path.join("device").exists()).collect();
    real.first().map(|path| name(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A network card of this identity, and what else there is.
    fn notes(test: &str, identity: (&str, &str), more: &[(&str, &str)]) -> Vec<Check> {
        let function = "/sys/bus/pci/devices/0000:01:00.0";
        let machine = Machine::made_of(test, more);
        machine.add(&format!("{function}/class"), b"0x020700\n");
        machine.add(&format!("{function}/vendor"), identity.0.as_bytes());
        machine.add(&format!("{function}/device"), identity.1.as_bytes());
        without_driver(&machine)
    }

    const CONNECTX_7: (&str, &str) = ("0x15b3", "0x1021");
    const DRIVER: &str = "/sys/bus/pci/devices/0000:01:00.0/driver";

    #[test]
    fn a_card_without_any_driver_is_told_which_one() {
        for (test, identity, module) in [
            ("bare-7", CONNECTX_7, "`modprobe mlx5_core`"),
            ("bare-3", ("0x15b3", "0x1003"), "`modprobe mlx4_core`"),
            ("bare-efa", ("0x1d0f", "0xefa2"), "`modprobe efa`"),
        ] {
            let checks = notes(test, identity, &[]);
            assert_eq!(checks[0].remedy, module);
        }
        assert_eq!(notes("bare-other", ("0x8086", "0x1533"), &[]), []);
        let checks = notes("bare-name", CONNECTX_7, &[]);
        assert_eq!(checks[0].what, "PCI 0000:01:00.0 (15b3:1021)");
    }

    #[test]
    fn a_card_whose_driver_has_an_rdma_part_is_told_to_load_it() {
        let core = (DRIVER, "->/sys/bus/pci/drivers/mlx5_core");
        let checks = notes("core", CONNECTX_7, &[core]);
        assert_eq!(checks[0].remedy, "`modprobe mlx5_ib`");
        let loaded = [core, ("/sys/module/mlx5_ib/refcnt", "0")];
        assert!(notes("core-loaded", CONNECTX_7, &loaded)[0].remedy.contains("dmesg"));
        let works = [core, ("/sys/bus/pci/devices/0000:01:00.0/infiniband/mlx5_0/x", "")];
        assert_eq!(notes("core-works", CONNECTX_7, &works), []);
    }

    #[test]
    fn a_card_that_was_given_away_and_a_kernel_without_the_module_are_told_apart() {
        let away = (DRIVER, "->/sys/bus/pci/drivers/vfio-pci");
        assert!(notes("vfio", CONNECTX_7, &[away])[0].detail.contains("vfio-pci"));
        let kernel = [
            ("/proc/sys/kernel/osrelease", "6.1.0"),
            ("/lib/modules/6.1.0/modules.dep", "kernel/net/veth.ko:"),
        ];
        let checks = notes("no-efa", ("0x1d0f", "0xefa1"), &kernel);
        assert!(checks[0].remedy.contains("EFA software of AWS"), "{checks:?}");
    }
}
