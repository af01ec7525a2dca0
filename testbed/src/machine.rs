//! The virtual machine: its description and QEMU's command line.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::efa::Efa;
use crate::error::{During, Error, Result};
use crate::prepare::Prepared;
use crate::root::{MAXIMUM_SHARES, MOUNT_POINTS};

/// The name of the serial port that host and agent talk over.
pub(crate) const CHANNEL_NAME: &str = "rdma4rs.testbed";

/// Where the agent finds the names of the extra modules, one a line.
pub(crate) const EXTRA_MODULES_FILE: &str = "/run/testbed/modules";

/// The run folder, as QEMU sees it.
pub(crate) const RUN_FOLDER_OF_QEMU: &str = "/mnt/run";

/// The driver of the network card that a cable is at.
const CABLE_MODULE: &str = "virtio_net";

/// Where the agent finds its own address on the cable to another machine; empty if there is none.
pub(crate) const CABLE_FILE: &str = "/run/testbed/cable";

/// One of two machines that a cable joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Rank 0 runs there.
    First,
    /// Rank 1 runs there.
    Second,
}

impl Place {
    /// Its address on the cable.
    pub(crate) fn address(self) -> &'static str {
        match self {
            Self::First => "10.99.2.1",
            Self::Second => "10.99.2.2",
        }
    }

    /// QEMU's description of its network card. The cable is a socket at QEMU's standard input.
    fn arguments(self) -> [String; 4] {
        let last = match self {
            Self::First => "01",
            Self::Second => "02",
        };
        [
            "-netdev".into(),
            "dgram,id=cable,local.type=fd,local.str=0".into(),
            "-device".into(),
            format!("virtio-net-pci,netdev=cable,romfile=,mac=52:54:00:99:02:{last}"),
        ]
    }
}

/// What executes the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accelerator {
    /// The processor itself, through `/dev/kvm`.
    Kvm,
    /// QEMU's translator: works anywhere, ten times slower.
    Tcg,
    /// The translator with a clock that counts instructions, one a nanosecond, on one processor. How
    /// busy the host is does not matter for what is measured there, only for how long it takes.
    CountingTcg,
}

/// A machine to start. Layers that need more (devices, modules) add to the `extra_` lists.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    /// Memory in MiB.
    pub(crate) memory: u32,
    /// Number of processors.
    pub(crate) processors: usize,
    /// Folders of the host that appear at the same path in the guest, read-only.
    pub(crate) shares: Vec<PathBuf>,
    /// Words for QEMU's command line. Paths in them are as QEMU sees them: the share with index N is
    /// `/mnt/shareN`, and sockets in it can be connected to.
    pub(crate) extra_arguments: Vec<String>,
    /// Modules to load in the guest, by name or, if it begins with `/`, by path in the guest.
    pub(crate) extra_modules: Vec<String>,
    /// EFA devices, whose model must be started before the machine.
    pub(crate) efa: Option<Efa>,
    /// Which end of a cable it is at, if it is at one.
    pub(crate) place: Option<Place>,
    /// Whether the guest's clock counts instructions; see [`Accelerator::CountingTcg`].
    pub(crate) counts_instructions: bool,
}

impl Machine {
    /// A machine with the defaults and these folders; folders inside others are left out.
    pub(crate) fn with_shares(folders: &[PathBuf]) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from).min(4);
        Self {
            memory: 2048,
            processors,
            shares: outermost(folders),
            extra_arguments: Vec::new(),
            extra_modules: Vec::new(),
            efa: None,
            place: None,
            counts_instructions: false,
        }
    }

    /// QEMU's command line.
    fn arguments(&self, accelerator: Accelerator) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        let mut add = |line: &[&str]| words.extend(line.iter().map(|word| (*word).to_owned()));
        add(&["qemu-system-x86_64", "-name", "rdma4rs-testbed", "-machine", "q35"]);
        match accelerator {
            Accelerator::Kvm => add(&["-accel", "kvm", "-cpu", "host"]),
            // The plainest processor boots fastest when emulated.
            Accelerator::Tcg => add(&["-accel", "tcg,thread=multi", "-cpu", "qemu64,+rdrand"]),
            Accelerator::CountingTcg => {
                add(&["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"]);
                add(&["-cpu", "qemu64,+rdrand"]);
            }
        }
        let alone = accelerator == Accelerator::CountingTcg;
        let processors = if alone { "1".into() } else { self.processors.to_string() };
        let memory = self.memory.to_string();
        add(&["-smp", &processors, "-m", &memory]);
        add(&["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        add(&["-kernel", "/mnt/boot/vmlinux", "-initrd", "/mnt/boot/initramfs"]);
        add(&["-append", &kernel_command_line(accelerator)]);
        add(&["-serial", &format!("file:{RUN_FOLDER_OF_QEMU}/console.log")]);
        add(&["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"]);
        add(&["-chardev", &format!("socket,id=channel,path={RUN_FOLDER_OF_QEMU}/channel.sock")]);
        add(&["-device", &format!("virtserialport,chardev=channel,name={CHANNEL_NAME}")]);
        let mut share = |tag: &str| {
            let path = format!("/{MOUNT_POINTS}/{tag}");
            let options = "security_model=none,readonly=on,multidevs=remap";
            words.push("-fsdev".into());
            words.push(format!("local,id={tag},path={path},{options}"));
            words.push("-device".into());
            words.push(format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"));
        };
        share("root");
        share("run");
        (0..self.shares.len()).for_each(|number| share(&format!("share{number}")));
        words.extend(self.place.map(Place::arguments).into_iter().flatten());
        words.extend(self.extra_arguments.iter().cloned());
        words
    }

    /// Starts QEMU inside the root, in a mount namespace of its own. The child's process is QEMU
    /// itself, and it dies with this process. `cable` is the socket to another machine, if there is one.
    pub(crate) fn start(
        &self,
        accelerator: Accelerator,
        prepared: &Prepared,
        run: &RunFolder,
        cable: Stdio,
    ) -> Result<Child> {
        if self.shares.len() > MAXIMUM_SHARES {
            return Err(Error::Host(format!(
                "the guest can be given {MAXIMUM_SHARES} folders, not {}",
                self.shares.len()
            )));
        }
        let of_cable = self.place.map(|_| CABLE_MODULE);
        let modules = self.extra_modules.iter().map(String::as_str).chain(of_cable);
        run.write("modules", &modules.collect::<Vec<_>>().join("\n"))?;
        run.write("cable", self.place.map_or("", Place::address))?;
        let shares: Vec<String> = self
            .shares
            .iter()
            .enumerate()
            .map(|(number, folder)| format!("share{number} {}\n", folder.display()))
            .collect();
        run.write("shares", &shares.concat())?;

        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", ENTER_ROOT, "sh"]);
        command.arg(&prepared.root);
        let mut bind = |folder: &Path, name: &str, recursively: &str| {
            command.arg(recursively).arg(folder).arg(name);
        };
        bind(&prepared.root, "root", "--bind");
        bind(&prepared.boot, "boot", "--bind");
        bind(run.path(), "run", "--bind");
        for (number, folder) in self.shares.iter().enumerate() {
            bind(folder, &format!("share{number}"), "--rbind");
        }
        command.arg("--").args(self.arguments(accelerator));
        let log = run.path().join("qemu.log");
        let output = fs::File::create(&log).during(|| format!("create {}", log.display()))?;
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.stdin(cable).stdout(Stdio::null()).stderr(output);
        command.spawn().during(|| "start unshare (package util-linux)".into())
    }
}

/// Mounts what QEMU needs inside the root, then becomes QEMU.
const ENTER_ROOT: &str = r#"
set -e
root=$1
shift
while [ "$1" != -- ]; do
    mount "$1" "$2" "$root/mnt/$3"
    shift 3
done
shift
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
exec setpriv --pdeathsig KILL chroot "$root" "$@"
"#;

fn kernel_command_line(accelerator: Accelerator) -> String {
    // Emulated processors stall when the host is busy: the watchdogs would only report that.
    let common = "console=ttyS0 panic=-1 oops=panic nowatchdog rcupdate.rcu_cpu_stall_suppress=1 \
                  random.trust_cpu=on";
    match accelerator {
        // The first lines of the kernel show that it runs at all.
        Accelerator::Kvm => format!("{common} earlyprintk=ttyS0"),
        Accelerator::Tcg => {
            format!("{common} quiet mitigations=off nokaslr no_timer_check tsc=unstable")
        }
        // Here the counter is the clock itself. Trusted, it is read without a system call, which programs
        // that look at the clock for each message would otherwise pay for.
        Accelerator::CountingTcg => {
            format!("{common} quiet mitigations=off nokaslr no_timer_check tsc=reliable")
        }
    }
}

/// The folders that are not inside another one of them, each once.
fn outermost(folders: &[PathBuf]) -> Vec<PathBuf> {
    let mut kept: Vec<PathBuf> = Vec::new();
    let mut sorted = folders.to_vec();
    sorted.sort();
    for folder in sorted {
        if !kept.iter().any(|outer| folder.starts_with(outer)) {
            kept.push(folder);
        }
    }
    kept
}

/// A folder for one run of a machine: sockets, logs, the agent. Removed when dropped.
#[derive(Debug)]
pub(crate) struct RunFolder {
    path: PathBuf,
}

const RUN_FOLDER_PREFIX: &str = "rdma4rs-testbed-";

impl RunFolder {
    /// Makes a new one, with this program in it as the agent.
    pub(crate) fn create() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        remove_abandoned();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{RUN_FOLDER_PREFIX}{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .during(|| format!("create {}", path.display()))?;
        let folder = Self { path };
        let agent = folder.path.join("testbed");
        // Not by name: cargo may have replaced the file since this process started.
        fs::copy("/proc/self/exe", &agent).during(|| format!("copy to {}", agent.display()))?;
        Ok(folder)
    }

    /// Where it is on the host; QEMU sees it as [`RUN_FOLDER_OF_QEMU`], the guest as `/run/testbed`.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.path.join(name);
        fs::write(&path, text).during(|| format!("write {}", path.display()))
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("testbed: cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Removes the run folders of processes that ended without doing so (by a signal).
fn remove_abandoned() {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else { return };
    for entry in entries.filter_map(std::io::Result::ok) {
        let name = entry.file_name();
        let owner = name
            .to_str()
            .and_then(|name| name.strip_prefix(RUN_FOLDER_PREFIX)?.split('-').next()?.parse().ok());
        let owner: Option<u32> = owner;
        if owner.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists()) {
            // Another process may be removing it too.
            drop(fs::remove_dir_all(entry.path()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            memory: 512,
            processors: 2,
            shares: vec!["/w".into(), "/t".into()],
            extra_arguments: vec!["-device".into(), "edu".into()],
            extra_modules: Vec::new(),
            efa: None,
            place: None,
            counts_instructions: false,
        }
    }

    #[test]
    fn the_command_line_names_every_share_and_ends_with_the_extras() {
        let line = machine().arguments(Accelerator::Tcg).join(" ");
        for part in [
            "-accel tcg",
            "-smp 2 -m 512",
            "path=/mnt/root,security_model=none,readonly=on",
            "mount_tag=share0",
            "mount_tag=share1",
        ] {
            assert!(line.contains(part), "{part} in {line}");
        }
        assert!(!line.contains("share2"));
        assert!(line.ends_with(" -device edu"));
        assert!(machine().arguments(Accelerator::Kvm).join(" ").contains("-accel kvm -cpu host"));
    }

    #[test]
    fn folders_inside_others_are_shared_once() {
        let folders = ["/w/target", "/w", "/wx", "/w"].map(PathBuf::from);
        assert_eq!(outermost(&folders), ["/w", "/wx"].map(PathBuf::from));
    }
}
