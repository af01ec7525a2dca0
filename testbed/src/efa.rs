//! EFA devices for the guest: PCI functions in software, under the unmodified driver of Linux.
//!
//! Nothing here costs anything unless it is asked for. Asked for, it builds the driver once for the
//! root's kernel ([`module`]), starts the device model beside each guest ([`model`]), and tells
//! QEMU and the guest of both.

mod model;
mod module;

use std::path::{Path, PathBuf};

use clap::Args;

use crate::cache::Cache;
use crate::channel::Job;
use crate::commands::set;
use crate::error::Result;
use crate::machine::{Machine, RUN_FOLDER_OF_QEMU};
use crate::prepare::Prepared;
use crate::process::read_lossy;
use crate::rdma_core::Release;
use crate::workspace::Workspace;

pub(crate) use model::Model;
use module::EfaModule;

/// Test programs whose names begin so run in a guest with EFA devices.
const TEST_PREFIX: &str = "kernel_efa_";

/// Those whose names begin so run in two at once.
const PAIR_TEST_PREFIX: &str = "kernel_efa_pair_";

/// Devices of a guest unless another number is asked for.
const DEFAULT_DEVICES: u8 = 4;

/// What a test program's file says to have it run on the newest rdma-core as well, and on the oldest.
const NEWEST_RDMA_CORE: &str = "--newest-rdma-core";
const OLDEST_RDMA_CORE: &str = "--oldest-rdma-core";

/// What it says if the kernel is of no more use afterwards.
const BREAKS_KERNEL: &str = "--leaves-the-kernel-broken";

/// Tells programs in the guest how many EFA devices there are.
const DEVICES_VARIABLE: &str = "RDMA4RS_EFA_DEVICES";

/// The package of the device model.
const MODEL_PACKAGE: &str = "efa-device";

/// Options of commands that boot a guest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[group(skip)]
pub(crate) struct Options {
    /// Give the guest N EFA devices (`efa_0`, …), 4 if no number is given.
    #[arg(long = "efa", value_name = "N", num_args = 0..=1, default_missing_value = "4",
          value_parser = clap::value_parser!(u8).range(1..=16))]
    devices: Option<u8>,

    /// An option for the device model, such as `--efa-option=--in-order`; see
    /// `cargo run -p efa-device -- --help`. Implies `--efa`.
    #[arg(long = "efa-option", value_name = "OPTION", allow_hyphen_values = true)]
    model_options: Vec<String>,

    /// Run on the newest rdma-core there is instead of the one of the guest's root; fetched once.
    #[arg(long)]
    newest_rdma_core: bool,

    /// Run on the oldest rdma-core that is tested instead of the one of the guest's root; fetched once.
    #[arg(long, conflicts_with = "newest_rdma_core")]
    oldest_rdma_core: bool,

    /// Whether a test leaves a kernel behind that must not be asked anything.
    #[arg(skip)]
    pub(crate) breaks_kernel: bool,
}

impl Options {
    /// The devices that a test program needs: none unless its name begins with [`TEST_PREFIX`].
    ///
    /// The file beside it that is named like it, with the extension `efa`, holds the options of its
    /// device model, in words; `#` begins a comment. With the word `--newest-rdma-core` there the program is run on
    /// the newest rdma-core too, with `--oldest-rdma-core` on the oldest, and after one with the word
    /// `--leaves-the-kernel-broken` its guest is given up and not looked at.
    pub(crate) fn of_test(name: &str, folder: &Path) -> Self {
        if !name.starts_with(TEST_PREFIX) {
            return Self::default();
        }
        let text = read_lossy(&folder.join("tests").join(name).with_extension("efa"));
        let lines = text.lines().filter_map(|line| line.split('#').next());
        let mut model_options: Vec<_> =
            lines.flat_map(str::split_whitespace).map(str::to_owned).collect();
        let mut take = |word| {
            let before = model_options.len();
            model_options.retain(|found| found != word);
            model_options.len() < before
        };
        let newest_rdma_core = take(NEWEST_RDMA_CORE);
        let oldest_rdma_core = take(OLDEST_RDMA_CORE);
        let breaks_kernel = take(BREAKS_KERNEL);
        let devices = Some(DEFAULT_DEVICES);
        Self { devices, model_options, newest_rdma_core, oldest_rdma_core, breaks_kernel }
    }

    /// Whether a test program needs two machines, one for each of two ranks.
    pub(crate) fn test_is_of_a_pair(name: &str) -> bool {
        name.starts_with(PAIR_TEST_PREFIX)
    }

    /// The releases of rdma-core that are wanted beside that of the guest's root, or instead of it, and the folders with their
    /// libraries; the guest must be given these.
    pub(crate) fn libraries(&self, cache: &Cache) -> Result<Vec<(Release, PathBuf)>> {
        [(self.oldest_rdma_core, Release::Oldest), (self.newest_rdma_core, Release::Newest)]
            .into_iter()
            .filter(|(is_wanted, _)| *is_wanted)
            .map(|(_, release)| Ok((release, release.libraries(cache)?)))
            .collect()
    }

    /// So many devices.
    pub(crate) fn with_devices(devices: u8) -> Self {
        Self { devices: Some(devices), ..Self::default() }
    }

    /// How many devices are asked for; none if none.
    fn wanted(&self) -> Option<u8> {
        let implied = (!self.model_options.is_empty()).then_some(DEFAULT_DEVICES);
        self.devices.or(implied)
    }

    /// Tells a job of the devices.
    pub(crate) fn announce(&self, job: &mut Job) {
        if let Some(devices) = self.wanted() {
            set(job, DEVICES_VARIABLE, &devices.to_string());
        }
    }
}

/// What it takes to give a guest EFA devices.
#[derive(Debug, Clone)]
pub(crate) struct Efa {
    devices: u8,
    model_options: Vec<String>,
    model: PathBuf,
    module: PathBuf,
}

impl Efa {
    /// Builds what is asked for; nothing if no devices are.
    pub(crate) fn prepare(
        options: &Options,
        cache: &Cache,
        workspace: &Workspace,
        prepared: &Prepared,
    ) -> Result<Option<Self>> {
        let Some(devices) = options.wanted() else { return Ok(None) };
        let model = workspace.build_program(MODEL_PACKAGE)?;
        let module = cache.ensure(&EfaModule::for_root(&prepared.root, cache)?)?;
        let model_options = options.model_options.clone();
        Ok(Some(Self { devices, model_options, model, module }))
    }

    /// Adds the devices and their driver to a machine.
    pub(crate) fn equip(self, machine: &mut Machine) -> Result<()> {
        // The model reads and writes the guest's memory itself, so it must be shareable.
        let memory = machine.memory;
        let shared = format!("memory-backend-memfd,id=memory,size={memory}M,share=on");
        let words = ["-object", &shared, "-machine", "memory-backend=memory"];
        machine.extra_arguments.extend(words.map(String::from));
        for device in 0..self.devices {
            machine.extra_arguments.extend(["-device".into(), device_argument(device)]);
        }
        machine.extra_modules.extend(module::dependencies(&self.module)?);
        machine.extra_modules.push(model::MODULE_IN_GUEST.into());
        machine.efa = Some(self);
        Ok(())
    }
}

/// The file name of a device's socket, in the run folder.
fn socket_name(device: u8) -> String {
    format!("efa{device}.sock")
}

/// QEMU's description of a device. Posted writes are off: with them, doorbells of two devices
/// overtake each other, which no hardware allows.
fn device_argument(device: u8) -> String {
    let path = format!("{RUN_FOLDER_OF_QEMU}/{}", socket_name(device));
    format!(
        r#"{{"driver":"vfio-user-pci","x-no-posted-writes":true,"socket":{{"type":"unix","path":"{path}"}}}}"#
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        efa: Options,
        #[arg(trailing_var_arg = true)]
        command: Vec<String>,
    }

    fn parsed(words: &[&str]) -> Line {
        Line::try_parse_from([&["testbed"], words].concat()).expect("a good command line")
    }

    #[test]
    fn devices_come_only_when_asked_for_and_four_at_a_time() {
        assert_eq!(parsed(&["true"]).efa.wanted(), None);
        assert_eq!(parsed(&["--efa", "--", "true"]).efa.wanted(), Some(4));
        let line = parsed(&["--efa", "2", "--", "ibv_devices", "--efa"]);
        assert_eq!(line.efa.wanted(), Some(2));
        assert_eq!(line.command, ["ibv_devices", "--efa"]);
        let line = parsed(&["--efa-option=--rnr-every", "--efa-option", "3", "true"]);
        assert_eq!(line.efa.wanted(), Some(4));
        assert_eq!(line.efa.model_options, ["--rnr-every", "3"]);
    }

    #[test]
    fn only_efa_tests_get_devices_and_may_bring_options_for_them() {
        let folder = std::env::temp_dir().join(format!("efa-test-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("tests")).unwrap();
        let file = folder.join("tests/kernel_efa_rnr.efa");
        std::fs::write(
            file,
            "--rnr-every 3 # often\n--newest-rdma-core --seed=7\n--leaves-the-kernel-broken\n--oldest-rdma-core",
        )
        .unwrap();
        assert_eq!(Options::of_test("kernel_rc", &folder), Options::default());
        let plain = Options::of_test("kernel_efa_srd", &folder);
        assert_eq!((plain.wanted(), plain.newest_rdma_core), (Some(4), false));
        let options = Options::of_test("kernel_efa_rnr", &folder);
        assert_eq!(options.model_options, ["--rnr-every", "3", "--seed=7"]);
        assert!(options.newest_rdma_core && options.oldest_rdma_core && options.breaks_kernel);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_device_argument_is_one_json_object() {
        let value: serde_json::Value = serde_json::from_str(&device_argument(3)).expect("JSON");
        assert_eq!(value["socket"]["path"], format!("{RUN_FOLDER_OF_QEMU}/efa3.sock"));
        assert_eq!(value["x-no-posted-writes"], true);
    }
}
