//! The kernel's NVMe target, set up through configfs, and what the tests against it share.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "what goes wrong here fails the test"
)]

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use nvmeof::{Controller, Host, HostId, Nqn, Options, Target};

/// The address of the device that loops back.
pub(crate) const ADDRESS: &str = "10.99.0.1";

const CONFIGURATION: &str = "/sys/kernel/config/nvmet";

/// Tests of one program take turns: there is one target.
static TURN: Mutex<()> = Mutex::new(());

/// Says whether there is a kernel with RDMA and a target to test against; prints why if not.
pub(crate) fn has_target() -> bool {
    let reason = if std::env::var_os("RDMA4RS_GUEST").is_none() {
        "this needs the virtual machine: cargo testbed test nvmeof"
    } else if !load("nvmet") || !load("nvmet-rdma") || !load("brd") {
        "the kernel has no NVMe target"
    } else {
        return true;
    };
    println!("skipped: {reason}");
    let is_required = std::env::var("RDMA_REQUIRE_DEVICE").is_ok_and(|value| value == "1");
    assert!(!is_required, "{reason}");
    false
}

fn load(module: &str) -> bool {
    let mut command = Command::new("modprobe");
    command.arg(module);
    if module == "brd" {
        command.args(["rd_nr=2", "rd_size=131072"]);
    }
    command.status().is_ok_and(|status| status.success())
}

/// Runs a program and gives what it printed.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Vec<u8> {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

/// The target of one test: a subsystem, its namespaces, and a port.
pub(crate) struct Nvmet {
    nqn: String,
    port: u16,
    address: String,
    hosts: Vec<String>,
    files: Vec<PathBuf>,
    is_linked: bool,
    _turn: Option<MutexGuard<'static, ()>>,
}

impl Nvmet {
    /// A target with one namespace on a ram disk of 128 MiB, which any host may use.
    pub(crate) fn new(name: &str) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut target = Self::bare(name, 4420, ADDRESS);
        target._turn = Some(turn);
        target.add_ram(1);
        target.link();
        target
    }

    /// A target without a namespace at another address, not reachable yet.
    pub(crate) fn at(name: &str, address: &str) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut target = Self::bare(name, 4420, address);
        target._turn = Some(turn);
        target
    }

    /// Adds a namespace on the first ram disk.
    pub(crate) fn add_ram(&mut self, id: u32) {
        self.add_namespace(id, Path::new("/dev/ram0"));
    }

    /// A second target beside another one.
    pub(crate) fn beside(name: &str, port: u16) -> Self {
        let mut target = Self::bare(name, port, ADDRESS);
        target.add_namespace(1, Path::new("/dev/ram1"));
        target.link();
        target
    }

    /// A subsystem and a port that have nothing to do with each other yet.
    fn bare(name: &str, port: u16, address: &str) -> Self {
        let nqn = format!("nqn.2024-01.org.example:{name}");
        let target = Self {
            nqn,
            port,
            address: address.to_owned(),
            hosts: Vec::new(),
            files: Vec::new(),
            is_linked: false,
            _turn: None,
        };
        fs::create_dir_all(target.subsystem()).unwrap();
        write(&target.subsystem().join("attr_allow_any_host"), "1");
        fs::create_dir_all(target.port_path()).unwrap();
        for (attribute, value) in [
            ("addr_trtype", "rdma"),
            ("addr_adrfam", if address.contains(':') { "ipv6" } else { "ipv4" }),
            ("addr_traddr", address),
            ("addr_trsvcid", &port.to_string()),
        ] {
            write(&target.port_path().join(attribute), value);
        }
        target
    }

    /// Lets queues have so many entries.
    pub(crate) fn allow_entries(&self, entries: u16) {
        write(&self.port_path().join("param_max_queue_size"), &entries.to_string());
    }

    /// Lets namespaces carry protection information, if the RDMA device can; before they are added.
    pub(crate) fn protect(&self) {
        write(&self.subsystem().join("attr_pi_enable"), "1");
        write(&self.port_path().join("param_pi_enable"), "1");
    }

    /// Adds a namespace on a block device or a file.
    pub(crate) fn add_namespace(&mut self, id: u32, device: &Path) {
        let path = self.subsystem().join("namespaces").join(id.to_string());
        fs::create_dir_all(&path).unwrap();
        write(&path.join("device_path"), device.to_str().unwrap());
        write(&path.join("device_uuid"), &format!("2cd2c43b-a90a-45c1-a8cd-86b33ab273{id:02x}"));
        write(&path.join("enable"), "1");
    }

    /// Adds a namespace on a new file of so many bytes, and gives the file.
    pub(crate) fn add_file(&mut self, id: u32, bytes: u64) -> PathBuf {
        let path = PathBuf::from(format!("/tmp/namespace-{}-{id}", std::process::id()));
        fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        let directory = self.subsystem().join("namespaces").join(id.to_string());
        fs::create_dir_all(&directory).unwrap();
        write(&directory.join("buffered_io"), "1");
        self.files.push(path.clone());
        self.add_namespace(id, &path);
        path
    }

    /// Lets one host in, and nobody else; with its secret, and the controller's.
    pub(crate) fn authenticate(
        &mut self,
        host: &Nqn,
        group: &str,
        secret: &str,
        controller: Option<&str>,
    ) {
        write(&self.subsystem().join("attr_allow_any_host"), "0");
        let path = Path::new(CONFIGURATION).join("hosts").join(host.as_str());
        fs::create_dir_all(&path).unwrap();
        write(&path.join("dhchap_dhgroup"), group);
        write(&path.join("dhchap_key"), secret);
        if let Some(controller) = controller {
            write(&path.join("dhchap_ctrl_key"), controller);
        }
        let link = self.subsystem().join("allowed_hosts").join(host.as_str());
        if !link.exists() {
            symlink(&path, link).unwrap();
            self.hosts.push(host.as_str().to_owned());
        }
    }

    /// Makes the subsystem reachable at the port.
    pub(crate) fn link(&mut self) {
        if !self.is_linked {
            let link = self.port_path().join("subsystems").join(&self.nqn);
            symlink(self.subsystem(), link).unwrap();
            self.is_linked = true;
        }
    }

    /// Takes the subsystem away from the port, which ends its connections.
    pub(crate) fn unlink(&mut self) {
        if self.is_linked {
            fs::remove_file(self.port_path().join("subsystems").join(&self.nqn)).unwrap();
            self.is_linked = false;
        }
    }

    /// Refers to another discovery service.
    pub(crate) fn refer(&self, name: &str, address: &str, port: u16) {
        let path = self.port_path().join("referrals").join(name);
        fs::create_dir_all(&path).unwrap();
        for (attribute, value) in [
            ("addr_trtype", "rdma"),
            ("addr_adrfam", "ipv4"),
            ("addr_traddr", address),
            ("addr_trsvcid", &port.to_string()),
            ("addr_portid", "77"),
            ("enable", "1"),
        ] {
            write(&path.join(attribute), value);
        }
    }

    pub(crate) fn forget_referral(&self, name: &str) {
        fs::remove_dir(self.port_path().join("referrals").join(name)).unwrap();
    }

    pub(crate) fn nqn(&self) -> &str {
        &self.nqn
    }

    fn subsystem(&self) -> PathBuf {
        Path::new(CONFIGURATION).join("subsystems").join(&self.nqn)
    }

    fn port_path(&self) -> PathBuf {
        Path::new(CONFIGURATION).join("ports").join(self.port.to_string())
    }

    /// How to reach it.
    pub(crate) fn target(&self, options: Options) -> Target {
        let nqn = Nqn::new(self.nqn.clone()).unwrap();
        Target::new(&self.address, nqn, options.port(self.port)).unwrap()
    }

    /// Connects.
    pub(crate) fn connect(&self, options: Options) -> nvmeof::Result<Controller> {
        self.target(options).connect()
    }
}

impl Drop for Nvmet {
    fn drop(&mut self) {
        self.unlink();
        let forget = |path: &Path| {
            if let Err(error) = fs::remove_dir(path) {
                eprintln!("{}: {error}", path.display());
            }
        };
        forget(&self.port_path());
        for host in &self.hosts {
            let link = self.subsystem().join("allowed_hosts").join(host);
            if let Err(error) = fs::remove_file(&link) {
                eprintln!("{}: {error}", link.display());
            }
            forget(&Path::new(CONFIGURATION).join("hosts").join(host));
        }
        let namespaces = fs::read_dir(self.subsystem().join("namespaces"));
        for namespace in namespaces.into_iter().flatten().flatten() {
            forget(&namespace.path());
        }
        forget(&self.subsystem());
        for file in &self.files {
            if let Err(error) = fs::remove_file(file) {
                eprintln!("{}: {error}", file.display());
            }
        }
    }
}

/// Writes to a file of the kernel.
pub(crate) fn write(path: &Path, value: &str) {
    fs::write(path, value).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// The host of all tests.
pub(crate) fn host() -> Host {
    Host {
        nqn: Nqn::new("nqn.2014-08.org.nvmexpress:uuid:2cd2c43b-a90a-45c1-a8cd-86b33ab273b5")
            .unwrap(),
        id: HostId([0x2c; 16]),
    }
}

/// Options that suit an emulated machine.
pub(crate) fn options() -> Options {
    Options::new()
        .host(host())
        .keep_alive(Some(Duration::from_secs(30)))
        .connect_timeout(Duration::from_secs(60))
        .command_timeout(Duration::from_secs(60))
}

/// Bytes that are the same for the same seed.
pub(crate) fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Bytes of a block device or a file as it holds them, caches left aside.
pub(crate) fn read_device(path: &Path, offset: u64, length: usize) -> Vec<u8> {
    // Whole pages, so that direct access can.
    let first = offset / 4096;
    let end = (offset + length as u64).div_ceil(4096);
    let bytes = run(
        "dd",
        &[
            &format!("if={}", path.display()),
            "bs=4096",
            "iflag=direct",
            "status=none",
            &format!("skip={first}"),
            &format!("count={}", end - first),
        ],
    );
    let start = usize::try_from(offset - first * 4096).unwrap();
    bytes[start..start + length].to_vec()
}
