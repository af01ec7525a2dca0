//! Programs that others wrote, between two EFA devices: what they accept of the model is what the
//! kernel's driver, rdma-core and libfabric accept.

use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Far more than anything here takes, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two attempts to reach a server that is not up yet.
const PAUSE: Duration = Duration::from_secs(1);
/// An address of the guest that a program uses to find its other half.
const HERE: &str = "127.0.0.1";

/// Whether there are two EFA devices.
///
/// # Panics
///
/// If there are not, and the environment demands them.
pub(crate) fn two_devices() -> bool {
    let count = std::env::var("RDMA4RS_EFA_DEVICES").unwrap_or_default().parse().unwrap_or(0);
    let demanded = std::env::var("RDMA_REQUIRE_DEVICE").is_ok_and(|value| value == "1");
    assert!(count >= 2 || !demanded, "two EFA devices are demanded, there are {count}");
    if count < 2 {
        println!("skipped: no EFA devices; `cargo testbed test efa-device` has them");
    }
    count >= 2
}

/// Runs a perftest program between `efa_1` and `efa_0`, and hands back how its client ended.
pub(crate) fn perftest(words: &[&str]) -> Output {
    between(|is_client| {
        let mut command = Command::new(words[0]);
        // Index 0 is the only address there is; unasked, perftest would take none.
        command.args(&words[1..]).args(["-c", "SRD", "-x", "0", "-F"]);
        command.args(["-d", if is_client { "efa_0" } else { "efa_1" }]);
        command.args(is_client.then_some(HERE));
        command
    })
}

/// Runs `fi_pingpong` with the efa provider between two endpoints of a kind, `rdm` or `dgram`.
pub(crate) fn fi_pingpong(kind: &str) -> Output {
    between(|is_client| {
        let peer = if is_client { HERE } else { "" };
        let ping = format!("fi_pingpong -p efa -e {kind} -I 20 -S 4096 -c {peer}");
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &format!("{ONLY_EFA} exec {ping}")]);
        command
    })
}

/// Starts a server, then clients until one reaches it; hands back how that one ended.
fn between(half: impl Fn(bool) -> Command) -> Output {
    let mut server = Ended(start(half(false)));
    let deadline = Instant::now() + PATIENCE;
    loop {
        let client = finish(start(half(true)), deadline);
        if client.status.success() {
            return client;
        }
        // A server that was reached ends too; one that was not yet up goes on.
        sleep(PAUSE);
        if Instant::now() > deadline || server.0.try_wait().unwrap().is_some() {
            return client;
        }
    }
}

/// Hides all RDMA devices but EFA ones: libfabric's provider gives up at the first foreign device.
const ONLY_EFA: &str = "mount -t tmpfs drivers /etc/libibverbs.d && \
                        echo driver efa > /etc/libibverbs.d/efa.driver &&";

/// A server that ends with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn start(mut command: Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn finish(mut child: Child, deadline: Instant) -> Output {
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
        }
        sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

/// Fails unless the program succeeded.
pub(crate) fn expect_success(what: &str, output: &Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{what}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
}
