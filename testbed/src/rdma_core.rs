//! The oldest and the newest rdma-core, for programs of a guest whose root has one between them.

use std::path::{Path, PathBuf};

use crate::cache::Cache;
use crate::channel::Job;
use crate::commands::set;
use crate::error::Result;
use crate::headers::{newest_packages, oldest_packages};

/// Where Debian's packages have their libraries.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// The providers that a guest has devices for, by the names under which libibverbs looks for them.
const PROVIDERS: [&str; 2] = ["efa", "rxe"];

/// A release that is not the one of the guest's root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    Oldest,
    Newest,
}

impl Release {
    /// As titles have it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Oldest => "oldest rdma-core",
            Self::Newest => "newest rdma-core",
        }
    }

    /// The folder with its libraries, which a guest must be given to use them. Fetches them when needed.
    pub(crate) fn libraries(self, cache: &Cache) -> Result<PathBuf> {
        let packages = match self {
            Self::Oldest => oldest_packages(cache),
            Self::Newest => newest_packages(cache),
        };
        Ok(packages?.join(LIBRARIES))
    }
}

/// Makes a job use the libraries in `folder` and not those of the guest's root.
///
/// libibverbs looks for its providers in the folder that it was built for, where the guest has those of another release;
/// it takes absolute paths from this variable.
pub(crate) fn use_libraries(folder: &Path, job: &mut Job) {
    let folder = folder.display();
    set(job, "LD_LIBRARY_PATH", &folder.to_string());
    let providers = PROVIDERS.map(|name| format!("{folder}/libibverbs/lib{name}"));
    set(job, "IBV_DRIVERS", &providers.join(":"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_are_named_by_their_paths_without_the_release() {
        let mut job = Job::default();
        use_libraries(Path::new("/new"), &mut job);
        let find = |name: &str| job.environment.iter().find(|(found, _)| found == name);
        assert_eq!(find("LD_LIBRARY_PATH").unwrap().1, "/new");
        assert_eq!(find("IBV_DRIVERS").unwrap().1, "/new/libibverbs/libefa:/new/libibverbs/librxe");
    }
}
