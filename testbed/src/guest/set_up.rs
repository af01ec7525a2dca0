//! What every guest has: modules, software RDMA devices, and two hosts in network namespaces.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::error::{During, Error, Result};
use crate::machine::{CABLE_FILE, EXTRA_MODULES_FILE};

/// Loaded in every guest, with all they depend on.
const MODULES: [&str; 6] = ["dummy", "veth", "rdma_rxe", "rdma_ucm", "configfs", "virtio_rng"];

/// The initial namespace: one device whose packets loop back, and the cable between the two hosts.
const FIRST_HOST: &str = "\
link set lo up
link add dum0 type dummy
address add 10.99.0.1/24 dev dum0
address add fd00:99::1/64 dev dum0 nodad
link set dum0 up
netns add a
netns add b
link add veth_a mtu 4200 type veth peer name veth_b mtu 4200
link set veth_a netns a
link set veth_b netns b
";

const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// The network card to another machine: the only one that QEMU gives a guest.
const CABLE: &str = "eth0";

/// Makes the guest what README.md says it is.
///
/// # Errors
/// The first command that failed, with what it wrote.
pub(super) fn set_up() -> Result<()> {
    run("modprobe", &[&["--all"], MODULES.as_slice()].concat(), "")?;
    for module in fs::read_to_string(EXTRA_MODULES_FILE).unwrap_or_default().lines() {
        let loader = if module.starts_with('/') { "insmod" } else { "modprobe" };
        run(loader, &[module], "")?;
    }
    run("ip", &["-batch", "-"], FIRST_HOST)?;
    let address = fs::read_to_string(CABLE_FILE).unwrap_or_default();
    if !address.is_empty() {
        let script = format!("address add {address}/24 dev {CABLE}\nlink set {CABLE} up\n");
        run("ip", &["-batch", "-"], &script)?;
        // Ranks tell machines apart by this.
        fs::write(HOST_NAME, &address).during(|| format!("write {HOST_NAME}"))?;
    }
    run("rdma", &["link", "add", "rxe0", "type", "rxe", "netdev", "dum0"], "")?;
    for (name, number) in [("a", 1), ("b", 2)] {
        let script = format!(
            "link set lo up\n\
             address add 10.99.1.{number}/24 dev veth_{name}\n\
             address add fd00:99:1::{number}/64 dev veth_{name} nodad\n\
             link set veth_{name} up\n"
        );
        run("ip", &["-n", name, "-batch", "-"], &script)?;
        let (device, netdev) = (format!("rxe_{name}"), format!("veth_{name}"));
        let command = ["rdma", "link", "add", &device, "type", "rxe", "netdev", &netdev];
        run("ip", &[&["netns", "exec", name], command.as_slice()].concat(), "")?;
    }
    run("mount", &["-t", "configfs", "configfs", "/sys/kernel/config"], "")?;
    run("mount", &["-t", "debugfs", "debugfs", "/sys/kernel/debug"], "")
}

/// Runs a program of the guest with `input`; a failure carries all that it wrote.
fn run(program: &str, arguments: &[&str], input: &str) -> Result<()> {
    let shown = format!("{program} {}", arguments.join(" "));
    let mut child = Command::new(program)
        .args(arguments)
        .env("PATH", "/usr/sbin:/usr/bin")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .during(|| format!("start `{shown}`"))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).during(|| format!("feed `{shown}`"))?;
    }
    let output = child.wait_with_output().during(|| format!("wait for `{shown}`"))?;
    if output.status.success() {
        return Ok(());
    }
    let tail = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    Err(Error::Command { command: shown, status: output.status, tail })
}
