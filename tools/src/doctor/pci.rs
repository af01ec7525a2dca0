//! Where a card sits, how wide and fast its link is, and what its configuration space says.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{
    Check,
    machine::{Machine, name, target, text},
};

/// Looks at the PCI function of a device.
pub(crate) fn look(machine: &Machine, device: &str, function: &Path, has_gpus: bool) -> Vec<Check> {
    let mut checks = vec![Check::yes(device, placement(function))];
    checks.extend(unknown_node(machine, device, function));
    checks.extend(narrow_link(device, function));
    checks.extend(settings(device, function));
    checks.extend(translation(device, function));
    if has_gpus {
        checks.extend(redirection(device, function));
    }
    checks
}

/// Where it is, in the order in which one looks for it.
fn placement(function: &Path) -> String {
    let read = |file: &str| text(function.join(file)).filter(|text| !text.starts_with("Unknown"));
    let mut words = vec![format!("PCI {}", name(function))];
    words.extend(target(function.join("driver")).map(|driver| format!("driver {driver}")));
    words.extend(
        read("numa_node").filter(|node| node != "-1").map(|node| format!("NUMA node {node}")),
    );
    if let (Some(speed), Some(width)) = (read("current_link_speed"), read("current_link_width")) {
        words.push(format!("{speed} x{width}"));
    }
    words.join(", ")
}

/// A machine with several NUMA nodes whose firmware does not say where the card is.
fn unknown_node(machine: &Machine, device: &str, function: &Path) -> Option<Check> {
    let nodes = machine.entries("/sys/devices/system/node");
    let count = nodes.iter().filter(|path| is_numbered(path, "node")).count();
    (count > 1 && text(function.join("numa_node")).as_deref() == Some("-1")).then(|| {
        Check::note(
            format!("{device}: NUMA node"),
            format!("one of {count}, and the firmware does not say which"),
            "update the BIOS; until then measure from each node: `numactl --cpunodebind=N rdma4rs perf …`",
        )
    })
}

fn is_numbered(path: &Path, word: &str) -> bool {
    let name = name(path);
    let number = name.strip_prefix(word).unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// A PCIe link that runs below what the card could do halves the bandwidth without a word.
fn narrow_link(device: &str, function: &Path) -> Option<Check> {
    let read = |file: &str| text(function.join(file)).filter(|text| !text.starts_with("Unknown"));
    let (width, most) = (read("current_link_width")?, read("max_link_width")?);
    let (speed, fastest) = (read("current_link_speed")?, read("max_link_speed")?);
    // Functions of a virtual machine have links of width 0.
    if width == "0" || most == "0" || most == "255" {
        return None;
    }
    (width != most || speed != fastest).then(|| {
        Check::note(
            format!("{device}: PCIe link"),
            format!("runs at {speed} x{width}, could run at {fastest} x{most}"),
            "put the card into a slot that is wide and fast enough, or look for a riser, a split slot \
             (bifurcation) or a power-saving setting",
        )
    })
}

/// Order of writes and sizes of packets on the bus.
fn settings(device: &str, function: &Path) -> Option<Check> {
    let space = Space::read(function)?;
    let what = format!("{device}: PCIe settings");
    let Some(control) = space.device_control() else {
        return space.is_cut().then(|| Check::skipped(what, "only root may read them"));
    };
    let (payload, request) = (128 << (control >> 5 & 7), 128 << (control >> 12 & 7));
    let sizes = format!("payload {payload} bytes, read requests {request} bytes");
    let is_relaxed = control >> 4 & 1 == 1;
    Some(if is_relaxed {
        Check::yes(what, format!("relaxed ordering allowed, {sizes}"))
    } else {
        Check::note(
            what,
            format!("relaxed ordering is off, {sizes}"),
            "where large writes stay below the rate of the link (AMD's processors, GPUs), allow it in the BIOS; \
             regions ask for it with Access::RELAXED_ORDERING",
        )
    })
}

/// What the IOMMU does with the addresses of the card.
fn translation(device: &str, function: &Path) -> Option<Check> {
    let what = format!("{device}: IOMMU");
    let kind = text(function.join("iommu_group/type"))?;
    Some(if kind == "identity" {
        Check::yes(what, "passes addresses through")
    } else {
        Check::note(
            what,
            format!("translates every address ({kind})"),
            "it costs bandwidth, and keeps GPUs and cards from each other: boot with iommu=pt",
        )
    })
}

/// Bridges that send what two cards have for each other through the processor (access control services).
fn redirection(device: &str, function: &Path) -> Option<Check> {
    let bridges = bridges_above(function);
    let spaces: Vec<(String, Space)> =
        bridges.iter().filter_map(|bridge| Some((name(bridge), Space::read(bridge)?))).collect();
    let what = format!("{device}: access control (ACS) of the bridges above");
    if spaces.iter().any(|(_, space)| space.is_cut()) {
        return Some(Check::skipped(what, "only root may read it"));
    }
    let redirecting: Vec<&str> = spaces
        .iter()
        .filter(|(_, space)| space.redirects() == Some(true))
        .map(|(bridge, _)| bridge.as_str())
        .collect();
    if spaces.is_empty() {
        return None;
    }
    Some(if redirecting.is_empty() {
        Check::yes(what, "off: GPUs below the same switch are reached directly")
    } else {
        Check::note(
            what,
            format!(
                "on at {}: what goes to a GPU goes through the processor",
                redirecting.join(", ")
            ),
            "switch it off in the BIOS, or at each boot with `setpci -s BRIDGE ECAP_ACS+6.w=0000`; virtual \
             machines that are given cards need it on",
        )
    })
}

/// The bridges between a function and the processor, the nearest first.
fn bridges_above(function: &Path) -> Vec<PathBuf> {
    let above = function.ancestors().skip(1);
    above.take_while(|path| path.join("config").exists()).map(Path::to_path_buf).collect()
}

/// The configuration space of a function, as far as it may be read: 64 bytes, or all of it for root.
#[derive(Debug)]
struct Space(Vec<u8>);

impl Space {
    fn read(function: &Path) -> Option<Self> {
        fs::read(function.join("config")).ok().map(Self)
    }

    /// Whether only its beginning was to be had.
    fn is_cut(&self) -> bool {
        self.0.len() <= 64
    }

    fn half_word(&self, at: usize) -> Option<u16> {
        let bytes = self.0.get(at..at.checked_add(2)?)?;
        Some(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    /// Where a capability of this number is.
    fn capability(&self, number: u8) -> Option<usize> {
        // A list that leads back into itself ends as well.
        let mut at = usize::from(*self.0.get(0x34)?);
        for _ in 0..48 {
            let &[found, next] = self.0.get(at & !3..(at & !3) + 2)? else { return None };
            match found {
                _ if at < 0x40 => return None,
                found if found == number => return Some(at & !3),
                _ => at = usize::from(next),
            }
        }
        None
    }

    /// Where an extended capability of this number is.
    fn extended_capability(&self, number: u16) -> Option<usize> {
        let mut at = 0x100;
        for _ in 0..512 {
            let (found, next) = (self.half_word(at)?, self.half_word(at + 2)?);
            if found == number {
                return Some(at);
            }
            at = usize::from(next >> 4);
            if at < 0x100 {
                return None;
            }
        }
        None
    }

    /// The device control register of PCI Express.
    fn device_control(&self) -> Option<u16> {
        const EXPRESS: u8 = 0x10;
        self.half_word(self.capability(EXPRESS)? + 8)
    }

    /// Whether requests and completions between peers are redirected, or all sent upstream; `None` where there is no
    /// such control.
    fn redirects(&self) -> Option<bool> {
        const ACCESS_CONTROL: u16 = 0x0d;
        const REDIRECT_OR_FORWARD: u16 = 0b1_1100;
        let control = self.half_word(self.extended_capability(ACCESS_CONTROL)? + 6)?;
        Some(control & REDIRECT_OR_FORWARD != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    const BRIDGE: &str = "/sys/devices/pci0000:00/0000:00:01.0";
    const FUNCTION: &str = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0";

    fn function(test: &str, files: &[(&str, &str)]) -> (Machine, PathBuf) {
        let machine = Machine::made_of(test, &[]);
        for (name, text) in files {
            machine.add(&format!("{FUNCTION}/{name}"), text.as_bytes());
        }
        let path = machine.path(FUNCTION);
        (machine, path)
    }

    /// A space with PCI Express at 0x60, and access control at 0x148 behind another extended capability.
    fn space(device_control: u16, access_control: u16) -> Vec<u8> {
        let mut space = vec![0; 4096];
        space[0x34] = 0x40;
        space[0x40..0x42].copy_from_slice(&[0x01, 0x60]);
        space[0x60..0x62].copy_from_slice(&[0x10, 0x00]);
        space[0x68..0x6a].copy_from_slice(&device_control.to_le_bytes());
        space[0x100..0x104].copy_from_slice(&[0x01, 0x00, 0x81, 0x14]);
        space[0x148..0x14c].copy_from_slice(&[0x0d, 0x00, 0x01, 0x00]);
        space[0x14e..0x150].copy_from_slice(&access_control.to_le_bytes());
        space
    }

    #[test]
    fn what_the_machine_does_not_tell_is_left_out_of_the_placement() {
        let (_machine, path) =
            function("bare", &[("numa_node", "-1\n"), ("current_link_speed", "Unknown\n")]);
        assert_eq!(placement(&path), "PCI 0000:01:00.0");
        let files = [
            ("driver", "->/sys/bus/pci/drivers/mlx5_core"),
            ("numa_node", "1\n"),
            ("current_link_speed", "32.0 GT/s PCIe\n"),
            ("current_link_width", "16\n"),
        ];
        let (_machine, path) = function("placed", &files);
        let expected = "PCI 0000:01:00.0, driver mlx5_core, NUMA node 1, 32.0 GT/s PCIe x16";
        assert_eq!(placement(&path), expected);
    }

    #[test]
    fn a_link_below_what_the_card_can_is_noted() {
        let link = |test: &str, width: &str, speed: &str| {
            let files = [
                ("current_link_width", width),
                ("max_link_width", "16"),
                ("current_link_speed", speed),
                ("max_link_speed", "32.0 GT/s PCIe"),
            ];
            narrow_link("mlx5_0", &function(test, &files).1)
        };
        assert_eq!(link("wide", "16", "32.0 GT/s PCIe"), None);
        let check = link("narrow", "8", "32.0 GT/s PCIe").unwrap();
        assert_eq!(check.detail, "runs at 32.0 GT/s PCIe x8, could run at 32.0 GT/s PCIe x16");
        assert!(link("slow", "16", "16.0 GT/s PCIe").is_some());
        assert_eq!(link("virtual", "0", "Unknown"), None);
    }

    #[test]
    fn a_card_on_no_known_node_is_noted_where_there_are_several() {
        let (machine, path) = function("nodes", &[("numa_node", "-1")]);
        assert_eq!(unknown_node(&machine, "mlx5_0", &path), None);
        for node in ["node0", "node1", "node_x"] {
            machine.add(&format!("/sys/devices/system/node/{node}/cpulist"), b"0");
        }
        assert!(unknown_node(&machine, "mlx5_0", &path).unwrap().detail.starts_with("one of 2"));
    }

    #[test]
    fn the_settings_are_read_where_they_may_be() {
        let (machine, path) = function("settings", &[]);
        let config = format!("{FUNCTION}/config");
        assert_eq!(settings("mlx5_0", &path), None);
        machine.add(&config, &space(0x5930, 0));
        let check = settings("mlx5_0", &path).unwrap();
        let expected = "relaxed ordering allowed, payload 256 bytes, read requests 4096 bytes";
        assert_eq!(check.detail, expected);
        machine.add(&config, &space(0x2810, 0));
        let relaxed = "relaxed ordering allowed, payload 128 bytes, read requests 512 bytes";
        assert_eq!(settings("mlx5_0", &path).unwrap().detail, relaxed);
        machine.add(&config, &space(0x2800, 0));
        assert_eq!(settings("mlx5_0", &path).unwrap().verdict, Verdict::Note);
        machine.add(&config, &space(0x2810, 0)[..64]);
        assert_eq!(settings("mlx5_0", &path).unwrap().verdict, Verdict::Skipped);
    }

    #[test]
    fn no_bytes_of_a_configuration_space_make_the_reader_fail_badly() {
        let mut state = 1_u64;
        for length in [0, 1, 63, 64, 65, 255, 256, 257, 4095, 4096] {
            for _ in 0..200 {
                let mut bytes = space(0, 0);
                bytes.truncate(length);
                for byte in &mut bytes {
                    state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
                    if state >> 61 == 0 {
                        *byte = (state >> 32).to_le_bytes()[0];
                    }
                }
                let space = Space(bytes);
                let _ = (space.device_control(), space.redirects());
            }
        }
        // A list that leads back into itself.
        let mut bytes = space(0, 0);
        bytes[0x40..0x42].copy_from_slice(&[0x01, 0x40]);
        bytes[0x100..0x104].copy_from_slice(&[0x01, 0x00, 0x01, 0x10]);
        assert_eq!((Space(bytes.clone()).device_control(), Space(bytes).redirects()), (None, None));
    }

    #[test]
    fn bridges_that_redirect_are_named() {
        let (machine, path) = function("bridges", &[]);
        machine.add(&format!("{FUNCTION}/config"), &space(0, 0));
        assert_eq!(redirection("mlx5_0", &path), None);
        machine.add(&format!("{BRIDGE}/config"), &space(0, 0x1d));
        let check = redirection("mlx5_0", &path).unwrap();
        assert!(check.detail.starts_with("on at 0000:00:01.0: "), "{check:?}");
        machine.add(&format!("{BRIDGE}/config"), &space(0, 0x01));
        assert_eq!(redirection("mlx5_0", &path).unwrap().verdict, Verdict::Yes);
        machine.add(&format!("{BRIDGE}/config"), &space(0, 0x1d)[..64]);
        assert_eq!(redirection("mlx5_0", &path).unwrap().verdict, Verdict::Skipped);
    }

    #[test]
    fn the_iommu_is_judged_by_what_it_does_for_the_card() {
        let kind = |test: &str, kind: &str| {
            let (machine, path) =
                function(test, &[("iommu_group", "->/sys/kernel/iommu_groups/7")]);
            machine.add("/sys/kernel/iommu_groups/7/type", kind.as_bytes());
            translation("mlx5_0", &path).unwrap().verdict
        };
        assert_eq!(kind("identity", "identity\n"), Verdict::Yes);
        assert_eq!(kind("translated", "DMA-FQ\n"), Verdict::Note);
        assert_eq!(translation("mlx5_0", &function("none", &[]).1), None);
    }
}
