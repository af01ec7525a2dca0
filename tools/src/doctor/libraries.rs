//! The libraries of rdma-core: whether they are there, and of which release.

use std::{fs, path::PathBuf};

use super::{Check, machine::Machine};

/// What there is of rdma-core.
#[derive(Debug)]
pub(crate) struct Libraries {
    pub(crate) checks: Vec<Check>,
    /// Whether devices can be listed.
    pub(crate) has_verbs: bool,
    /// Whether the connection manager can be used.
    pub(crate) has_connection_manager: bool,
    /// Whether devices can be asked for what EFA has.
    pub(crate) has_efa: bool,
}

pub(crate) fn look(machine: &Machine) -> Libraries {
    let library = match rdma_sys::Library::system() {
        Ok(library) => library,
        Err(error) => {
            let checks = vec![
                Check::no("libibverbs", "not there", error.to_string()),
                Check::skipped("librdmacm and libefa", "they need libibverbs"),
            ];
            return Libraries {
                checks,
                has_verbs: false,
                has_connection_manager: false,
                has_efa: false,
            };
        }
    };
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut checks = vec![Check::yes("libibverbs", loaded(&maps, "libibverbs.so"))];
    let manager = library.connection_manager();
    let efa = library.efa();
    // They are loaded now.
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    checks.push(match &manager {
        Ok(_) => Check::yes("librdmacm", loaded(&maps, "librdmacm.so")),
        Err(error) => {
            let detail = "not there, which only connections by address and NVMe need";
            Check::note("librdmacm", detail, error.to_string())
        }
    });
    let needs_efa = machine.rdma_devices().iter().any(|device| {
        let function = machine.function(device);
        function.and_then(|place| super::machine::target(place.join("driver"))).as_deref()
            == Some("efa")
    });
    checks.push(match &efa {
        Ok(_) => Check::yes("libefa", loaded(&maps, "libefa.so")),
        Err(error) if needs_efa => {
            Check::no("libefa", "not there, and here are EFA devices", error.to_string())
        }
        Err(error) => {
            Check::note("libefa", "not there, which only EFA devices need", error.to_string())
        }
    });
    checks.extend(several_releases(&maps));
    let verbs = library.verbs();
    let missing = [
        ("dma-bufs", verbs.ibv_reg_dmabuf_mr.is_some(), "ibv_reg_dmabuf_mr"),
        ("GID tables", verbs._ibv_query_gid_table.is_some(), "_ibv_query_gid_table"),
        ("extended posting", verbs.ibv_qp_to_qp_ex.is_some(), "ibv_qp_to_qp_ex"),
    ];
    for (what, there, verb) in missing {
        if !there {
            let since = rdma_sys::since(verb).unwrap_or("a newer release");
            let remedy = format!("install rdma-core {since} or later");
            checks.push(Check::note(what, format!("this libibverbs lacks {verb}"), remedy));
        }
    }
    Libraries {
        checks,
        has_verbs: true,
        has_connection_manager: manager.is_ok(),
        has_efa: efa.is_ok(),
    }
}

/// The file that a library was loaded from, and its release.
fn loaded(maps: &str, file: &str) -> String {
    match path(maps, file) {
        None => "loaded".to_owned(),
        Some(path) => match release(&path) {
            Some(release) => format!("rdma-core {release}, {path}"),
            None => path,
        },
    }
}

fn path(maps: &str, file: &str) -> Option<String> {
    let paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    let path = paths.filter(|path| path.contains(file)).map(|path| {
        // The name that was opened is a link to the one that has the release.
        fs::canonicalize(path).unwrap_or_else(|_| PathBuf::from(path)).display().to_string()
    });
    path.into_iter().next()
}

/// `56` of `libibverbs.so.1.14.56.1`: rdma-core writes its release before the last number.
fn release(path: &str) -> Option<u32> {
    let (_, numbers) = path.rsplit_once(".so.")?;
    let numbers: Vec<&str> = numbers.split('.').collect();
    match numbers.as_slice() {
        [_, _, release, _] => release.parse().ok(),
        _ => None,
    }
}

/// Parts of two installations do not fit each other.
fn several_releases(maps: &str) -> Option<Check> {
    let files = ["libibverbs.so", "librdmacm.so", "libefa.so"];
    let paths: Vec<String> = files.iter().filter_map(|file| path(maps, file)).collect();
    let releases: Vec<u32> = paths.iter().filter_map(|path| release(path)).collect();
    let differ = releases.windows(2).any(|pair| pair[0] != pair[1]);
    differ.then(|| {
        Check::note(
            "libraries of one release",
            format!("these are of several: {}", paths.join(", ")),
            "remove one of the installations (a vendor's and the distribution's?), or look at LD_LIBRARY_PATH",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
7f0000000000-7f0000001000 r--p 00000000 fe:00 11 /no/such/libibverbs.so.1.14.56.1\n\
7f0000001000-7f0000002000 r-xp 00000000 fe:00 11 /no/such/libibverbs.so.1.14.56.1\n\
7f0000003000-7f0000004000 rw-p 00000000 00:00 0\n\
7f0000005000-7f0000006000 r--p 00000000 fe:00 12 /no/such/librdmacm.so.1.3.44.0\n";

    #[test]
    fn the_release_is_read_from_the_name_of_the_file() {
        let expected = "rdma-core 56, /no/such/libibverbs.so.1.14.56.1";
        assert_eq!(loaded(MAPS, "libibverbs.so"), expected);
        assert_eq!(loaded(MAPS, "libefa.so"), "loaded");
        assert_eq!(release("/opt/libibverbs.so.1"), None);
        assert_eq!(release("/opt/libibverbs.so.1.14.2404mlnx51"), None);
    }

    #[test]
    fn libraries_of_two_installations_are_noted_with_their_paths() {
        let check = several_releases(MAPS).unwrap();
        assert!(check.detail.contains("librdmacm.so.1.3.44.0"), "{check:?}");
        assert_eq!(several_releases(&MAPS.replace("1.3.44.0", "1.3.56.1")), None);
    }
}
