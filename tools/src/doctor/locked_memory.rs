//! How much memory may be registered.

use rustix::process::{Resource, getrlimit};

use super::{Check, machine::Machine};

pub(crate) fn look(machine: &Machine) -> Check {
    let limit = getrlimit(Resource::Memlock);
    judge(limit.current, limit.maximum, is_exempt(machine))
}

/// Whether the limit does not hold for this process: it has `CAP_IPC_LOCK`, and not in a user namespace of its own.
fn is_exempt(machine: &Machine) -> bool {
    const IPC_LOCK: u32 = 14;
    let status = machine.text("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = set.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    let map = machine.text("/proc/self/uid_map").unwrap_or_default();
    let is_initial = map.split_whitespace().eq(["0", "0", "4294967295"]);
    is_initial && capabilities.is_some_and(|set| set >> IPC_LOCK & 1 == 1)
}

fn judge(soft: Option<u64>, hard: Option<u64>, is_exempt: bool) -> Check {
    const ENOUGH: u64 = 1 << 30;
    let what = "locked memory (ulimit -l)";
    let Some(bytes) = soft else { return Check::yes(what, "unlimited") };
    if bytes >= ENOUGH {
        return Check::yes(what, format!("{} MiB", bytes >> 20));
    }
    let amount = format!("{} KiB", bytes >> 10);
    let lasting = "for good: /etc/security/limits.conf, systemd's LimitMEMLOCK=infinity, Slurm's \
                   PropagateResourceLimitsExcept=MEMLOCK, docker's --ulimit memlock=-1";
    if is_exempt {
        return Check::note(
            what,
            format!("{amount}, which does not hold for this process: it has CAP_IPC_LOCK"),
            format!("users who do not have it need more; {lasting}"),
        );
    }
    let here = match hard {
        None => "`ulimit -l unlimited` in this shell; ",
        Some(hard) if hard > bytes => "`ulimit -l hard` in this shell; ",
        Some(_) => "",
    };
    let detail = format!("{amount}: registrations beyond that fail with ENOMEM");
    Check::no(what, detail, format!("{here}{lasting}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn the_limit_is_judged_with_what_may_be_done_about_it() {
        let small = Some(8 << 20);
        assert_eq!(judge(None, None, false).verdict, Verdict::Yes);
        assert_eq!(judge(Some(64 << 30), small, false).detail, "65536 MiB");
        let check = judge(small, None, false);
        assert!(check.remedy.starts_with("`ulimit -l unlimited` in this shell"), "{check:?}");
        let check = judge(small, small, false);
        assert_eq!(check.verdict, Verdict::No);
        assert!(check.remedy.starts_with("for good: "), "{check:?}");
        assert_eq!(judge(small, small, true).verdict, Verdict::Note);
    }

    #[test]
    fn the_limit_does_not_hold_for_root_of_the_host() {
        let process = |test: &str, capabilities: &str, map: &str| {
            let status = format!("Name:\tx\nCapEff:\t{capabilities}\n");
            let files = [("/proc/self/status", status.as_str()), ("/proc/self/uid_map", map)];
            is_exempt(&Machine::made_of(test, &files))
        };
        let (all, initial) = ("000001ffffffffff", "         0          0 4294967295\n");
        assert!(process("root", all, initial));
        assert!(!process("user", "0000000000000000", initial));
        assert!(!process("docker", "00000000a80425fb", initial));
        assert!(!process("rootless", all, "0 1000 1\n1 100000 65536\n"));
    }
}
