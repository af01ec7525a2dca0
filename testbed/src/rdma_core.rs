//! The newest rdma-core, for programs of a guest whose root has an older one.

use std::path::{Path, PathBuf};

use crate::cache::Cache;
use crate::channel::Job;
use crate::commands::set;
use crate::error::Result;
use crate::headers::newest_packages;

/// Where Debian's packages have their libraries.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// The providers that a guest has devices for, by the names under which libibverbs looks for them.
const PROVIDERS: [&str; 2] = ["efa", "rxe"];

/// The folder with the newest libraries, which a guest must be given to use them. Fetches them when needed.
pub(crate) fn newest_libraries(cache: &Cache) -> Result<PathBuf> {
    Ok(newest_packages(cache)?.join(LIBRARIES))
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
