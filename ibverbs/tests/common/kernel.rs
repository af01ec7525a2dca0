//! Devices of the kernel, and what the kernel says about them.

use std::{
    env, fs,
    os::unix::net::{UnixListener, UnixStream},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use ibverbs::{DeviceSelector, devices};

use crate::common::{Host, PATIENCE, link::Link, transfers::Role};

/// The device whose packets loop back.
pub(crate) const LOOPBACK: &str = "rxe0";

/// Opens a device of the kernel. Where there is none, the test is skipped, or fails if there must be one.
pub(crate) fn open(name: &str) -> Option<Host> {
    let selector = DeviceSelector::named(name);
    match devices().and_then(|devices| devices.select(&selector)) {
        Ok(device) => Some(Host::open(&device, &selector)),
        Err(error) => {
            let required = env::var_os("RDMA_REQUIRE_DEVICE").is_some_and(|value| value == "1");
            assert!(!required, "{error}");
            println!("skipped: {error}");
            None
        }
    }
}

/// How many objects of each kind the kernel has on a device.
pub(crate) fn resources(name: &str) -> String {
    let output = Command::new("rdma").args(["resource", "show", name]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Says as which part of a test a program runs.
const PART: &str = "RDMA4RS_TEST_PART";

/// The part of its test that this process is, if it is one.
pub(crate) fn part() -> Option<String> {
    env::var(PART).ok()
}

/// Starts a process that is one part of the test of this name, in a network namespace if one is given.
pub(crate) fn start(test: &str, part: &str, namespace: Option<&str>) -> Child {
    let program = env::current_exe().unwrap();
    let mut command = match namespace {
        Some(namespace) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", namespace]).arg(program);
            command
        }
        None => Command::new(program),
    };
    command.args(["--exact", test, "--nocapture"]).env(PART, part);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for a part that must succeed.
pub(crate) fn finish(part: Child) {
    let output: Output = part.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
}

/// A stream to the other process; a socket with a path does not care for network namespaces.
pub(crate) fn meet(name: &str, role: Role) -> Link {
    let path = env::temp_dir().join(name);
    if role == Role::First {
        let listener = UnixListener::bind(&path).unwrap();
        let (stream, _) = listener.accept().unwrap();
        fs::remove_file(path).unwrap();
        return Link::over(stream);
    }
    let start = Instant::now();
    loop {
        match UnixStream::connect(&path) {
            Ok(stream) => return Link::over(stream),
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// The memory of this process that is in use, in KiB.
pub(crate) fn resident_kibibytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
