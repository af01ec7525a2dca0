//! The headers of several rdma-core releases, for tests that compare layouts with C.
//!
//! Packages are fetched through an apt of their own (lists, cache, sources) and unpacked; nothing is
//! installed on the host.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::apt::{Debian, fetch_options};
use crate::cache::{Cache, Layer};
use crate::error::{During, Error, Result};
use crate::process;
use crate::progress::Step;

/// Counts up when the build below changes its result.
const RECIPE_VERSION: u32 = 1;

/// Headers and libraries; the name of one more depends on the suite.
const PACKAGES: [&str; 4] = ["libibverbs-dev", "librdmacm-dev", "libibverbs1", "ibverbs-providers"];

/// The Debian suites with the releases that are compared: 44, 56, and 65 or newer. With each, its
/// name for the library of `librdmacm-dev`.
const SUITES: [(&str, &str); 3] =
    [("bookworm", "librdmacm1"), ("trixie", "librdmacm1t64"), ("sid", "librdmacm1t64")];

/// The packages of one suite, unpacked under `fs`.
#[derive(Debug)]
struct Headers {
    cache: Cache,
    suite: &'static str,
    librdmacm: &'static str,
}

/// Folders to give to a C compiler, one for each release, oldest first. Fetches what is missing.
pub(crate) fn include_folders(cache: &Cache) -> Result<Vec<PathBuf>> {
    SUITES.into_iter().map(|suite| Ok(packages_of(suite, cache)?.join("usr/include"))).collect()
}

/// The folder in which the packages of the oldest release lie unpacked. Fetches them when needed.
pub(crate) fn oldest_packages(cache: &Cache) -> Result<PathBuf> {
    let [oldest, ..] = SUITES;
    packages_of(oldest, cache)
}

/// The folder in which the packages of the newest release lie unpacked. Fetches them when needed.
pub(crate) fn newest_packages(cache: &Cache) -> Result<PathBuf> {
    let [.., newest] = SUITES;
    packages_of(newest, cache)
}

fn packages_of((suite, librdmacm): (&'static str, &'static str), cache: &Cache) -> Result<PathBuf> {
    let layer = Headers { cache: cache.clone(), suite, librdmacm };
    Ok(cache.ensure(&layer)?.join("fs"))
}

impl Layer for Headers {
    fn name(&self) -> String {
        format!("headers-{}", self.suite)
    }

    fn title(&self) -> String {
        format!("fetching the rdma-core headers of Debian {}", self.suite)
    }

    fn recipe(&self) -> String {
        let packages = [PACKAGES.as_slice(), &[self.librdmacm]].concat().join(" ");
        format!("version {RECIPE_VERSION}\nsuite {}\npackages {packages}\n", self.suite)
    }

    fn build(&self, folder: &Path, step: &Step) -> Result<()> {
        let debian = Debian::of_this_machine(&self.cache)?;
        let apt = folder.join("apt");
        for sub in ["lists/partial", "archives/partial"] {
            let sub = apt.join(sub);
            fs::create_dir_all(&sub).during(|| format!("create {}", sub.display()))?;
        }
        let write = |name: &str, text: &str| {
            let path = apt.join(name);
            fs::write(&path, text).during(|| format!("write {}", path.display()))
        };
        write("sources.list", &(debian.source_line(self.suite) + "\n"))?;
        write("status", "")?;
        write("apt.conf", &configuration(&apt, self.suite))?;

        let run = |arguments: &[&str]| {
            let mut command = Command::new("apt-get");
            command.args(arguments).env("APT_CONFIG", apt.join("apt.conf"));
            command.current_dir(apt.join("archives"));
            process::run_logged(&mut command, &folder.join("apt.log"), step)
        };
        run(&["update"])?;
        run(&[&["download", self.librdmacm], PACKAGES.as_slice()].concat())?;

        let target = folder.join("fs");
        let archives = apt.join("archives");
        let entries = fs::read_dir(&archives).during(|| format!("read {}", archives.display()))?;
        for entry in entries {
            let package = entry.during(|| format!("read {}", archives.display()))?.path();
            if package.extension().is_some_and(|kind| kind == "deb") {
                let mut command = Command::new("dpkg-deb");
                process::output_of(command.arg("--extract").arg(&package).arg(&target))?;
            }
        }
        if !target.join("usr/include/infiniband/verbs.h").exists() {
            let found = "no infiniband/verbs.h".into();
            return Err(Error::Format { what: format!("rdma-core of {}", self.suite), found });
        }
        fs::remove_dir_all(&apt).during(|| format!("remove {}", apt.display()))
    }

    fn essentials(&self) -> Vec<PathBuf> {
        vec!["fs/usr/include/infiniband/verbs.h".into()]
    }
}

/// An apt that knows nothing of the host but how to reach the network.
fn configuration(apt: &Path, suite: &str) -> String {
    let path = apt.display();
    let mut lines = vec![
        format!("Dir::State::lists \"{path}/lists\";"),
        format!("Dir::State::status \"{path}/status\";"),
        format!("Dir::Cache \"{path}\";"),
        format!("Dir::Cache::archives \"{path}/archives\";"),
        format!("Dir::Etc::sourcelist \"{path}/sources.list\";"),
        "Dir::Etc::sourceparts \"/dev/null\";".into(),
        "Dir::Etc::preferencesparts \"/dev/null\";".into(),
        "Dir::Etc::parts \"/dev/null\";".into(),
        "Dir::Etc::main \"/dev/null\";".into(),
        "APT::Sandbox::User \"root\";".into(),
        "Acquire::Languages \"none\";".into(),
        // Lists that were fetched before do not matter, and hooks of the host are not for this.
        "pkgCacheFile \"\";".into(),
    ];
    lines.extend(fetch_options());
    if suite == "sid" {
        // Its lists are only good for a week; a mirror of fixed date, or a clock ahead, has older ones.
        // The signature is checked all the same.
        lines.push("Acquire::Check-Valid-Until \"false\";".into());
    }
    lines.join("\n") + "\n"
}
