//! The checks, from the libraries up to the network.

use std::{
    fs,
    path::{Path, PathBuf},
};

use ibverbs::{Context, Device, GidEntry, GidType, LinkLayer, PortNumber, PortState};
use rustix::{
    fs::{Access, access},
    process::{Resource, getrlimit},
};

use super::{Check, sysfs};

/// Everything there is to look at on this machine.
pub(crate) fn all() -> Vec<Check> {
    let mut checks = libraries();
    checks.push(kernel());
    checks.extend(device_nodes());
    checks.push(locked_memory());
    checks.extend(devices());
    checks.push(iommu());
    checks.extend(gpu_memory());
    checks
}

fn libraries() -> Vec<Check> {
    let library = match rdma_sys::Library::system() {
        Ok(library) => library,
        Err(error) => return vec![Check::no("libibverbs", "not there", error.to_string())],
    };
    let mut checks = vec![Check::yes("libibverbs", loaded("libibverbs.so"))];
    checks.push(match library.connection_manager() {
        Ok(_) => Check::yes("librdmacm", loaded("librdmacm.so")),
        Err(error) => Check::note("librdmacm", "not there", error.to_string()),
    });
    checks.push(match library.efa() {
        Ok(_) => Check::yes("libefa", loaded("libefa.so")),
        Err(error) => {
            Check::note("libefa", "not there, which only EFA devices need", error.to_string())
        }
    });
    let missing = [
        ("dma-bufs", library.verbs().ibv_reg_dmabuf_mr.is_some(), "ibv_reg_dmabuf_mr"),
        ("GID tables", library.verbs()._ibv_query_gid_table.is_some(), "_ibv_query_gid_table"),
        ("extended posting", library.verbs().ibv_qp_to_qp_ex.is_some(), "ibv_qp_to_qp_ex"),
    ];
    for (what, there, verb) in missing {
        if !there {
            let since = rdma_sys::since(verb).unwrap_or("a newer release");
            let remedy = format!("install rdma-core {since} or later");
            checks.push(Check::note(what, format!("this libibverbs lacks {verb}"), remedy));
        }
    }
    checks
}

/// The file that a library was loaded from, whose name carries rdma-core's release.
fn loaded(file: &str) -> String {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let path = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    path.filter(|path| path.contains(file))
        .map(|path| fs::canonicalize(path).unwrap_or_else(|_| PathBuf::from(path)))
        .map(|path| path.display().to_string())
        .next()
        .unwrap_or_else(|| "loaded".to_owned())
}

fn kernel() -> Check {
    let what = "kernel support (ib_uverbs)";
    if Path::new("/sys/class/infiniband_verbs").exists() {
        Check::yes(what, "loaded")
    } else {
        Check::no(
            what,
            "not loaded",
            "try `modprobe ib_uverbs`; in a container, the host must have it",
        )
    }
}

fn device_nodes() -> Vec<Check> {
    let folder = "/dev/infiniband";
    let nodes: Vec<PathBuf> = sysfs::entries(folder)
        .into_iter()
        .filter(|path| sysfs::name(path).starts_with("uverbs") || path.ends_with("rdma_cm"))
        .collect();
    if nodes.is_empty() {
        let remedy = "load the driver of your device; a container needs `--device /dev/infiniband`";
        return vec![Check::no("device nodes", format!("none below {folder}"), remedy)];
    }
    nodes
        .iter()
        .map(|node| {
            let what = format!("permission on {}", node.display());
            match access(node, Access::READ_OK | Access::WRITE_OK) {
                Ok(()) => Check::yes(what, "may be read and written"),
                Err(error) => Check::no(
                    what,
                    error.to_string(),
                    "add the user to the node's group (often `rdma`), or give the container the device",
                ),
            }
        })
        .collect()
}

fn locked_memory() -> Check {
    let what = "locked memory (ulimit -l)";
    match getrlimit(Resource::Memlock).current {
        None => Check::yes(what, "unlimited"),
        Some(bytes) if bytes >= 1 << 30 => Check::yes(what, format!("{} MiB", bytes >> 20)),
        Some(bytes) => Check::no(
            what,
            format!("{} KiB: registrations beyond that fail with ENOMEM", bytes >> 10),
            "`ulimit -l unlimited`, /etc/security/limits.conf, systemd's LimitMEMLOCK=infinity, or docker's \
             --ulimit memlock=-1",
        ),
    }
}

fn devices() -> Vec<Check> {
    let devices = match ibverbs::devices() {
        Ok(devices) => devices,
        Err(error) => {
            return vec![Check::no("RDMA devices", "cannot be listed", error.to_string())];
        }
    };
    if devices.is_empty() {
        return vec![Check::no(
            "RDMA devices",
            "none",
            "load the driver of your device; software devices: `rdma link add rxe0 type rxe netdev eth0`",
        )];
    }
    devices.iter().flat_map(device).collect()
}

fn device(device: &Device) -> Vec<Check> {
    let name = device.name();
    let context = match device.open() {
        Ok(context) => context,
        Err(error) => return vec![Check::no(name, "cannot be opened", error.to_string())],
    };
    let mut checks = vec![Check::yes(name, placement(Path::new(device.sysfs_path())))];
    checks.extend(narrow_link(name, Path::new(device.sysfs_path())));
    let table = context.query_gid_table().unwrap_or_default();
    for port in context.ports().into_iter().flatten() {
        checks.extend(self::port(&context, port, &table));
    }
    checks
}

/// Where a device sits.
fn placement(sysfs: &Path) -> String {
    let Ok(function) = fs::canonicalize(sysfs.join("device")) else {
        return "a device in software".to_owned();
    };
    let numa = sysfs::text(function.join("numa_node")).unwrap_or_else(|| "-1".to_owned());
    let speed = sysfs::text(function.join("current_link_speed")).unwrap_or_default();
    let width = sysfs::text(function.join("current_link_width")).unwrap_or_default();
    format!("PCI {}, NUMA node {numa}, {speed} x{width}", sysfs::name(&function))
}

/// A PCIe link that runs below what both ends could do halves the bandwidth without a word.
fn narrow_link(name: &str, sysfs: &Path) -> Option<Check> {
    let function = fs::canonicalize(sysfs.join("device")).ok()?;
    let read = |file: &str| sysfs::text(function.join(file));
    let (width, most) = (read("current_link_width")?, read("max_link_width")?);
    let (speed, fastest) = (read("current_link_speed")?, read("max_link_speed")?);
    (width != most || speed != fastest).then(|| {
        Check::note(
            format!("{name}: PCIe link"),
            format!("runs at {speed} x{width}, could run at {fastest} x{most}"),
            "put the card into a slot that is wide enough, or look for a riser or power-saving setting",
        )
    })
}

fn port(context: &Context, port: PortNumber, table: &[GidEntry]) -> Vec<Check> {
    let what = format!("{} port {port}", context.device().name());
    let attributes = match context.query_port(port) {
        Ok(attributes) => attributes,
        Err(error) => return vec![Check::no(what, "cannot be queried", error.to_string())],
    };
    let summary = format!(
        "{}, {}, {} Mb/s, MTU {}",
        attributes.state(),
        attributes.link_layer(),
        attributes.megabits_per_second(),
        attributes.active_mtu()
    );
    if attributes.state() != PortState::ACTIVE {
        let remedy = if attributes.link_layer() == LinkLayer::INFINIBAND {
            "check the cable, and that a subnet manager runs (`sminfo`)"
        } else {
            "bring the interface up: `ip link set DEV up`"
        };
        return vec![Check::no(what, summary, remedy)];
    }
    let mut checks = vec![Check::yes(&what, summary)];
    if attributes.active_mtu() < attributes.max_mtu() {
        checks.push(Check::note(
            format!("{what}: MTU"),
            format!("{} of {}", attributes.active_mtu(), attributes.max_mtu()),
            "raise the interface's MTU (4200 or 9000) on every host and switch of the network",
        ));
    }
    let mine: Vec<&GidEntry> = table.iter().filter(|entry| entry.port == port).collect();
    checks.push(gids(&what, &mine));
    if attributes.link_layer() == LinkLayer::ETHERNET {
        checks.extend(interfaces(&what, &mine));
    }
    checks
}

fn gids(what: &str, table: &[&GidEntry]) -> Check {
    let what = format!("{what}: GIDs");
    let routable = |entry: &&&GidEntry| {
        !entry.gid.is_link_local() && entry.kind != GidType::ROCE_V1
            || entry.kind == GidType::INFINIBAND
    };
    match table.iter().find(routable) {
        Some(entry) => {
            Check::yes(what, format!("{} at index {} ({})", entry.gid, entry.index, entry.kind))
        }
        None if table.is_empty() => {
            Check::no(what, "none", "give the network interface behind the port an IP address")
        }
        None => Check::no(
            what,
            "only link-local ones or RoCE v1: other subnets are not reached, software devices do not loop \
             them back",
            "give the network interface behind the port an IP address",
        ),
    }
}

/// The network interfaces behind a port, each once.
fn interfaces(what: &str, table: &[&GidEntry]) -> Vec<Check> {
    let mut indexes: Vec<u32> = table.iter().map(|entry| entry.interface_index).collect();
    indexes.sort_unstable();
    indexes.dedup();
    let mut checks = Vec::new();
    for name in indexes.into_iter().filter_map(sysfs::interface_name) {
        let folder = Path::new("/sys/class/net").join(&name);
        let mtu = sysfs::text(folder.join("mtu")).unwrap_or_default();
        let state = sysfs::text(folder.join("operstate")).unwrap_or_default();
        checks.push(Check::yes(format!("{what}: interface {name}"), format!("{state}, MTU {mtu}")));
        checks.push(congestion(&format!("{what}: congestion control of {name}"), &folder));
    }
    checks
}

/// ECN, where the driver shows it in sysfs.
fn congestion(what: &str, folder: &Path) -> Check {
    let ecn = folder.join("ecn");
    if !ecn.exists() {
        return Check::note(
            what,
            "this driver does not show it in sysfs",
            "look with the vendor's tools, `dcb pfc show dev …` and `ethtool -a …`: RoCE on a lossy network \
             wants ECN, and PFC for the priority of its traffic",
        );
    }
    let on = |side: &str| {
        let flags = sysfs::entries(ecn.join(side).join("enable"));
        flags.iter().filter(|path| sysfs::text(path).as_deref() == Some("1")).count()
    };
    match (on("roce_np"), on("roce_rp")) {
        (0, 0) => Check::note(
            what,
            "ECN is off for every priority",
            "switch it on for the priority of your traffic: ecn/roce_np/enable and ecn/roce_rp/enable",
        ),
        (np, rp) => {
            Check::yes(what, format!("ECN on for {np} priorities to notify and {rp} to react"))
        }
    }
}

fn iommu() -> Check {
    let what = "IOMMU";
    if sysfs::entries("/sys/class/iommu").is_empty() {
        return Check::yes(what, "off, or not shown");
    }
    Check::note(
        what,
        "on",
        "GPUs and NICs that talk to each other directly want it in pass-through mode (iommu=pt), and ACS off \
         on the switches between them",
    )
}

fn gpu_memory() -> Vec<Check> {
    let release = sysfs::text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let new_enough = sysfs::kernel_version(&release).is_some_and(|version| version >= (5, 12));
    let dma_buf = if new_enough {
        Check::yes("dma-buf registration", format!("kernel {release} has it; the driver must too"))
    } else {
        Check::note(
            "dma-buf registration",
            format!("kernel {release} is older than 5.12"),
            "a newer kernel, or nvidia_peermem",
        )
    };
    let mut checks = vec![dma_buf];
    if Path::new("/proc/driver/nvidia").exists() {
        let loaded = Path::new("/sys/module/nvidia_peermem").exists();
        checks.push(Check::yes(
            "NVIDIA driver",
            sysfs::text("/sys/module/nvidia/version").unwrap_or_else(|| "loaded".to_owned()),
        ));
        checks.push(if loaded {
            Check::yes("nvidia_peermem", "loaded")
        } else {
            Check::note("nvidia_peermem", "not loaded", "not needed where dma-bufs work")
        });
    } else {
        checks.push(Check::note("NVIDIA driver", "not loaded", "only GPU memory needs it"));
    }
    checks
}
