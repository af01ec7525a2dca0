//! Whether drives of other hosts can be reached: NVMe over RDMA.

use std::time::Duration;

use example_support::chain;

use super::Check;

/// How long a target may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks each target, unless `blocked` says why none can be asked.
pub(crate) fn look(targets: &[String], blocked: Option<&str>) -> Vec<Check> {
    let what = "NVMe over RDMA";
    if let Some(reason) = blocked {
        return vec![Check::skipped(what, reason)];
    }
    if targets.is_empty() {
        return vec![Check::skipped(what, "no target was named: `--nvmeof HOST[:PORT]` asks one")];
    }
    targets.iter().map(|target| ask(&format!("{what} at {target}"), target)).collect()
}

fn ask(what: &str, target: &str) -> Check {
    let options = nvmeof::Options::new().connect_timeout(PATIENCE).command_timeout(PATIENCE);
    match nvmeof::discover(target, &options) {
        Ok(found) => {
            let entries = found.entries.iter();
            let places = entries
                .map(|entry| format!("{} ({}:{})", entry.subsystem, entry.address, entry.service));
            let places: Vec<String> = places.collect();
            match places.as_slice() {
                [] => Check::note(
                    what,
                    "answers, and offers this host no subsystem",
                    "let this host's name (/etc/nvme/hostnqn) use a subsystem of the target",
                ),
                _ => Check::yes(what, format!("offers {}", places.join(", "))),
            }
        }
        Err(error) => Check::no(
            what,
            chain(&error),
            format!(
                "does `ip route get` of its address lead through an RDMA interface, does it listen there with trtype \
                 rdma (`nvme discover -t rdma -a {0}`), and does a firewall let UDP 4791 through?",
                target.rsplit_once(':').map_or(target, |(host, _)| host)
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn targets_are_not_asked_where_something_that_they_need_is_missing() {
        let checks = look(&["storage".to_owned()], Some("librdmacm is not there"));
        assert_eq!((checks.len(), checks[0].verdict), (1, Verdict::Skipped));
        assert!(look(&[], None)[0].detail.contains("--nvmeof"));
    }

    #[test]
    fn an_address_that_is_none_is_told_as_such() {
        let check = ask("target", "no such host");
        assert_eq!(check.verdict, Verdict::No);
        assert!(check.detail.contains("no such host"), "{check:?}");
    }
}
