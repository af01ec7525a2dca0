//! The kernel's support for RDMA, and the device nodes through which programs reach it.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use ibverbs::DeviceSelector;

use super::{
    Check,
    machine::{Machine, name, text},
};

/// Where the nodes are.
const NODES: &str = "/dev/infiniband";

/// Whether `ib_uverbs` is there, without which nothing is.
pub(crate) fn has_verbs(machine: &Machine) -> bool {
    machine.path("/sys/class/infiniband_verbs").exists()
}

pub(crate) fn support(machine: &Machine) -> Check {
    let what = "kernel support (ib_uverbs)";
    let release = machine.kernel_release();
    if has_verbs(machine) {
        return Check::yes(what, format!("loaded, Linux {release}"));
    }
    let detail = format!("not loaded, Linux {release}");
    match machine.could_load("ib_uverbs") {
        Some(true) => Check::no(what, detail, "`modprobe ib_uverbs`"),
        Some(false) => Check::no(
            what,
            format!("{detail}, which has no such module"),
            format!(
                "install the kernel's other modules (Ubuntu: apt install linux-modules-extra-{release}; Debian: \
                 linux-image-amd64 instead of a cloud kernel; Fedora and RHEL: dnf install kernel-modules), \
                 then `modprobe ib_uverbs`"
            ),
        ),
        None => Check::no(
            what,
            detail,
            "`modprobe ib_uverbs` on the host; a container uses the kernel of its host and cannot load it",
        ),
    }
}

/// A device of the kernel and its node.
struct Node {
    device: String,
    path: PathBuf,
}

fn nodes(machine: &Machine, wanted: &DeviceSelector) -> Vec<Node> {
    let verbs = machine.entries("/sys/class/infiniband_verbs");
    let nodes = verbs.iter().filter_map(|entry| {
        let device = text(entry.join("ibdev"))?;
        let path = machine.path(NODES).join(name(entry));
        wanted.wants(&device).then_some(Node { device, path })
    });
    nodes.collect()
}

/// Whether a device can be reached through its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Open,
    Refused,
    NoNode,
}

/// What becomes of opening a device's node.
pub(crate) fn access(machine: &Machine, device: &str) -> Access {
    match nodes(machine, &DeviceSelector::named(device)).first() {
        Some(node) if !node.path.exists() => Access::NoNode,
        Some(node) if open(&node.path).is_err() => Access::Refused,
        // One of unknown name is for libibverbs to find.
        _ => Access::Open,
    }
}

pub(crate) fn device_nodes(machine: &Machine, wanted: &DeviceSelector) -> Vec<Check> {
    let what = "device nodes";
    if !has_verbs(machine) {
        return vec![Check::skipped(what, "the kernel has no support for RDMA")];
    }
    let nodes = nodes(machine, wanted);
    if nodes.is_empty() {
        return vec![Check::skipped(what, "the kernel has no RDMA device")];
    }
    let (there, missing): (Vec<_>, Vec<_>) = nodes.iter().partition(|node| node.path.exists());
    let mut checks = Vec::new();
    let container = "outside of a container udev makes it (`udevadm trigger`)";
    if there.is_empty() {
        checks.push(Check::no(
            what,
            format!("none below {NODES}, and the kernel has {}", names(&missing)),
            format!(
                "give the container `--device {NODES}` (Kubernetes: a device plugin); {container}"
            ),
        ));
        return checks;
    }
    if !missing.is_empty() {
        checks.push(Check::note(
            what,
            format!("no node for {}", names(&missing)),
            format!("a container sees the devices that it was given `--device` for; {container}"),
        ));
    }
    checks.extend(there.iter().map(|node| {
        let what = format!("permission on {} ({})", node.path.display(), node.device);
        permission(machine, what, &node.path, open(&node.path))
    }));
    checks
}

/// The node of the connection manager, which only some programs need.
pub(crate) fn connection_manager_node(machine: &Machine) -> Check {
    let path = machine.path(NODES).join("rdma_cm");
    let what = format!("permission on {}", path.display());
    if path.exists() {
        return permission(machine, what, &path, open(&path));
    }
    Check::note(
        "connection manager (rdma_ucm)",
        format!("{} is not there, which only connections by address and NVMe need", path.display()),
        format!("`modprobe rdma_ucm`; a container needs `--device {NODES}` for all of the folder"),
    )
}

/// Whether the connection manager's node can be used.
pub(crate) fn has_connection_manager(machine: &Machine) -> bool {
    open(&machine.path(NODES).join("rdma_cm")).is_ok()
}

/// Opening tells more than the permission bits: a container's rules are not among them.
fn open(path: &Path) -> io::Result<()> {
    fs::OpenOptions::new().read(true).write(true).open(path).map(drop)
}

fn permission(machine: &Machine, what: String, path: &Path, opened: io::Result<()>) -> Check {
    let Err(error) = opened else { return Check::yes(what, "may be read and written") };
    let (mode, group) = fs::metadata(path).map_or((0, 0), |data| (data.mode() & 0o777, data.gid()));
    let group = group_name(machine, group);
    let remedy = match error.raw_os_error() {
        Some(code) if code == rustix::io::Errno::ACCESS.raw_os_error() => {
            if group == "root" {
                let kernel = if name(path) == "rdma_cm" { "rdma_cm" } else { "uverbs*" };
                format!(
                    "only root may: rdma-core's udev rules open it to all, a rule of yours can to a group \
                     (KERNEL==\"{kernel}\", GROUP=\"rdma\", MODE=\"0660\")"
                )
            } else {
                format!("`usermod -aG {group} USER`, and log in again")
            }
        }
        Some(code) if code == rustix::io::Errno::PERM.raw_os_error() => {
            format!("the container may not use it: give it `--device {NODES}`, or its device rules")
        }
        Some(code) if code == rustix::io::Errno::NXIO.raw_os_error() => {
            "there is no such device any more: look at `dmesg`, and load its driver again"
                .to_owned()
        }
        _ => "look at `dmesg`".to_owned(),
    };
    Check::no(what, format!("{error} (mode {mode:o}, group {group})"), remedy)
}

/// The name of a group, its number where there is none.
fn group_name(machine: &Machine, id: u32) -> String {
    let groups = machine.text("/etc/group").unwrap_or_default();
    let of_line = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(id)).then(|| name.to_owned())
    };
    groups.lines().find_map(of_line).unwrap_or_else(|| id.to_string())
}

fn names(nodes: &[&Node]) -> String {
    nodes.iter().map(|node| node.device.as_str()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    const ALL: &str = "";

    fn wanted(text: &str) -> DeviceSelector {
        text.parse().unwrap()
    }

    #[test]
    fn a_kernel_without_the_module_has_another_remedy_than_one_that_did_not_load_it() {
        let release = ("/proc/sys/kernel/osrelease", "6.8.0-1012-aws");
        let modules = "/lib/modules/6.8.0-1012-aws/modules.dep";
        for (files, words) in [
            (vec![release, (modules, "kernel/a/ib_uverbs.ko.zst: b")], "`modprobe ib_uverbs`"),
            (
                vec![release, (modules, "kernel/a/ext4.ko.zst:")],
                "linux-modules-extra-6.8.0-1012-aws",
            ),
            (vec![release], "on the host"),
        ] {
            let check = support(&Machine::made_of("support", &files));
            assert_eq!(check.verdict, Verdict::No);
            assert!(check.remedy.contains(words), "{check:?}");
        }
        let loaded = [release, ("/sys/class/infiniband_verbs/abi_version", "6")];
        let check = support(&Machine::made_of("support-loaded", &loaded));
        assert_eq!(check, Check::yes("kernel support (ib_uverbs)", "loaded, Linux 6.8.0-1012-aws"));
    }

    fn two_devices(test: &str, nodes: &[&str]) -> Machine {
        let machine = Machine::made_of(
            test,
            &[
                ("/sys/class/infiniband_verbs/abi_version", "6"),
                ("/sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n"),
                ("/sys/class/infiniband_verbs/uverbs1/ibdev", "mlx5_1\n"),
            ],
        );
        for node in nodes {
            machine.add(&format!("{NODES}/{node}"), b"");
        }
        machine
    }

    #[test]
    fn no_nodes_are_one_thing_and_some_that_are_missing_are_noted() {
        let checks = device_nodes(&two_devices("no-nodes", &[]), &wanted(ALL));
        assert_eq!(checks.len(), 1);
        assert_eq!(checks[0].verdict, Verdict::No);
        assert!(checks[0].detail.ends_with("the kernel has mlx5_0, mlx5_1"), "{checks:?}");

        let machine = two_devices("one-node", &["uverbs1"]);
        let checks = device_nodes(&machine, &wanted(ALL));
        assert_eq!(checks[0].detail, "no node for mlx5_0");
        assert_eq!((checks[0].verdict, checks[1].verdict), (Verdict::Note, Verdict::Yes));
        assert!(checks[1].what.ends_with("uverbs1 (mlx5_1)"), "{checks:?}");
        assert_eq!(access(&machine, "mlx5_0"), Access::NoNode);
        assert_eq!(access(&machine, "mlx5_1"), Access::Open);
        // A folder cannot be opened to write, not even by root.
        let machine = two_devices("refused", &["uverbs0/x"]);
        assert_eq!(access(&machine, "mlx5_0"), Access::Refused);

        let checks = device_nodes(&machine, &wanted("mlx5_1"));
        assert_eq!(checks.len(), 1, "{checks:?}");
    }

    #[test]
    fn without_the_kernels_support_nodes_are_not_looked_at() {
        let checks = device_nodes(&Machine::made_of("no-support", &[]), &wanted(ALL));
        assert_eq!(checks[0].verdict, Verdict::Skipped);
    }

    #[test]
    fn each_refusal_of_a_node_has_its_remedy() {
        let machine = Machine::made_of("groups", &[("/etc/group", "root:x:0:\nrdma:x:117:me\n")]);
        assert_eq!(
            (group_name(&machine, 117), group_name(&machine, 5)),
            ("rdma".into(), "5".into())
        );
        machine.add("/dev/infiniband/uverbs0", b"");
        let path = machine.path("/dev/infiniband/uverbs0");
        for (errno, words) in [
            (rustix::io::Errno::ACCESS, "USER"),
            (rustix::io::Errno::PERM, "--device"),
            (rustix::io::Errno::NXIO, "dmesg"),
        ] {
            // Files of a test belong to whoever runs it.
            let machine = Machine::made_of("no-groups", &[("/etc/group", "wheel:x:999:\n")]);
            let check = permission(&machine, "node".to_owned(), &path, Err(errno.into()));
            assert!(check.remedy.contains(words), "{check:?}");
        }
    }
}
