//! What keeps a RoCE network from losing packets: PFC, pause frames, and ECN.

use std::io;

use super::{
    Check,
    machine::{Machine, entries, text},
    netlink::{self, Pause},
};

/// Looks at a card's interface.
pub(crate) fn look(machine: &Machine, what: &str, interface: &str) -> Vec<Check> {
    let priorities = netlink::priority_flow_control(interface);
    let pause = netlink::pause(interface);
    vec![
        lossless(format!("{what}: flow control of {interface}"), interface, &priorities, &pause),
        congestion(machine, format!("{what}: ECN of {interface}"), interface),
    ]
}

/// PFC or pause frames. What could not be read is told as such.
fn lossless(
    what: String,
    interface: &str,
    priorities: &io::Result<Option<u8>>,
    pause: &io::Result<Option<Pause>>,
) -> Check {
    let (pfc, pfc_on) = match priorities {
        Ok(Some(0)) => ("PFC off".to_owned(), false),
        Ok(Some(bits)) => (format!("PFC on for priority {}", list(*bits)), true),
        Ok(None) => ("PFC not told by this driver".to_owned(), false),
        Err(error) => (format!("PFC cannot be read ({error})"), false),
    };
    let (frames, pause_on) = match pause {
        Ok(Some(Pause { receives: true, sends: true })) => ("pause on".to_owned(), true),
        Ok(Some(Pause { receives: true, .. })) => ("pause received, not sent".to_owned(), false),
        Ok(Some(Pause { sends: true, .. })) => ("pause sent, not received".to_owned(), false),
        Ok(Some(_)) => ("pause off".to_owned(), false),
        Ok(None) => ("pause not told by this driver".to_owned(), false),
        Err(error) => (format!("pause cannot be read ({error})"), false),
    };
    let detail = format!("{pfc}, {frames}");
    if pfc_on || pause_on {
        return Check::yes(what, detail);
    }
    let switch_on = format!(
        "where packets get lost RoCE crawls: switch on PFC for the priority of its traffic on every host and switch \
         (`dcb pfc set dev {interface} prio-pfc 3:on`; NVIDIA: `mlnx_qos -i {interface} --pfc 0,0,0,1,0,0,0,0`), \
         or rely on ECN and a card that takes losses"
    );
    let is_told = matches!(priorities, Ok(Some(_))) && matches!(pause, Ok(Some(_)));
    if is_told {
        return Check::note(what, detail, switch_on);
    }
    let look = format!("look with the vendor's tools; {switch_on}");
    Check::note(what, detail, look)
}

/// `3, 4` of the bits of these priorities.
fn list(bits: u8) -> String {
    let set = (0..8).filter(|priority| bits >> priority & 1 == 1);
    set.map(|priority: u8| priority.to_string()).collect::<Vec<_>>().join(", ")
}

/// ECN, where the driver shows it in sysfs.
fn congestion(machine: &Machine, what: String, interface: &str) -> Check {
    let ecn = machine.path(format!("/sys/class/net/{interface}/ecn"));
    if !ecn.exists() {
        return Check::note(
            what,
            "this driver does not show it in sysfs",
            "look with the vendor's tools (NVIDIA: `mlxconfig -d PCI q | grep ROCE_CC_PRIO_MASK`), and whether the \
             switches mark packets: RoCE on a lossy network wants both",
        );
    }
    let on = |side: &str| {
        let flags = entries(ecn.join(side).join("enable"));
        flags.iter().filter(|path| text(path).as_deref() == Some("1")).count()
    };
    match (on("roce_np"), on("roce_rp")) {
        (0, 0) => Check::note(
            what,
            "off for every priority",
            format!(
                "switch it on for the priority P of your traffic: `echo 1` into {0}/roce_np/enable/P and \
                 {0}/roce_rp/enable/P",
                format_args!("/sys/class/net/{interface}/ecn")
            ),
        ),
        (notifies, reacts) => Check::yes(
            what,
            format!("{notifies} priorities notify of congestion, {reacts} react to it"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    fn judged(
        priorities: io::Result<Option<u8>>,
        pause: io::Result<Option<Pause>>,
    ) -> (Verdict, String) {
        let check = lossless("flow".to_owned(), "ens1", &priorities, &pause);
        assert!(check.verdict == Verdict::Yes || check.remedy.contains("ens1"), "{check:?}");
        (check.verdict, check.detail)
    }

    fn frames(receives: bool, sends: bool) -> io::Result<Option<Pause>> {
        Ok(Some(Pause { receives, sends }))
    }

    #[test]
    fn pfc_or_pause_in_both_directions_is_enough() {
        let (verdict, detail) = judged(Ok(Some(0b1_1000)), frames(false, false));
        assert_eq!(
            (verdict, detail.as_str()),
            (Verdict::Yes, "PFC on for priority 3, 4, pause off")
        );
        assert_eq!(judged(Ok(Some(0)), frames(true, true)).0, Verdict::Yes);
        assert_eq!(judged(Ok(None), frames(true, true)).0, Verdict::Yes);
        for pause in [frames(true, false), frames(false, true), frames(false, false), Ok(None)] {
            assert_eq!(judged(Ok(Some(0)), pause).0, Verdict::Note);
        }
    }

    #[test]
    fn what_could_not_be_read_is_told() {
        let refused = || io::Error::from(io::ErrorKind::PermissionDenied);
        let (_, detail) = judged(Err(refused()), Err(refused()));
        assert!(detail.contains("PFC cannot be read (permission denied)"), "{detail}");
        assert!(detail.contains("pause cannot be read"), "{detail}");
    }

    #[test]
    fn ecn_is_counted_by_priority() {
        let folder = "/sys/class/net/ens1/ecn";
        let machine = Machine::made_of("ecn", &[]);
        let verdict = || congestion(&machine, "ECN".to_owned(), "ens1");
        assert!(verdict().detail.contains("does not show it"));
        for side in ["roce_np", "roce_rp"] {
            for priority in 0..8 {
                machine.add(&format!("{folder}/{side}/enable/{priority}"), b"0\n");
            }
        }
        assert!(verdict().remedy.contains("/sys/class/net/ens1/ecn/roce_np/enable/P"));
        machine.add(&format!("{folder}/roce_np/enable/3"), b"1\n");
        assert_eq!(verdict().detail, "1 priorities notify of congestion, 0 react to it");
    }
}
