//! Our pingpong programs against those of rdma-core, in both roles, between the two hosts of the guest.
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test says what it skipped"
)]

use std::{
    env,
    ffi::OsString,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Longer than anything takes, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(120);

/// Whether this runs where there are devices; says so and, if they are required, fails where there are none.
fn in_the_guest() -> bool {
    let there = env::var_os("RDMA4RS_GUEST").is_some();
    assert!(
        there || env::var_os("RDMA_REQUIRE_DEVICE").is_none_or(|value| value != "1"),
        "RDMA_REQUIRE_DEVICE=1, but this is not the guest of the testbed"
    );
    if !there {
        println!("skipped: this needs the guest of the testbed");
    }
    there
}

/// Cargo puts examples beside the folder of this test program.
fn ours(name: &str) -> OsString {
    let test = env::current_exe().expect("a test program knows where it is");
    let folder = test.ancestors().nth(2).expect("cargo puts test programs into target/…/deps");
    folder.join("examples").join(name).into_os_string()
}

fn theirs(name: &str) -> OsString {
    PathBuf::from(format!("ibv_{name}")).into_os_string()
}

fn start(host: &str, program: &OsString, options: &[&str]) -> Child {
    let device = format!("--ib-dev=rxe_{host}");
    let mut command = Command::new("ip");
    command.args(["netns", "exec", host]).arg(program).args([&device, "--gid-idx=1"]).args(options);
    command.env_remove("RDMA_DEVICE").stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn listens(port: &str) -> bool {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", "a", "ss", "--listening", "--tcp", "--numeric"]);
    let output = command.output().expect("ss is in the guest");
    String::from_utf8_lossy(&output.stdout).contains(&format!(":{port}"))
}

fn finish(mut child: Child, deadline: Instant) -> Output {
    while child.try_wait().expect("a child that was started").is_none() {
        if Instant::now() > deadline {
            child.kill().expect("a child that was started");
            break;
        }
        thread::sleep(Duration::from_millis(50));
    }
    child.wait_with_output().expect("a child that was started")
}

/// A server on one host, a client on the other, 100 messages each way.
fn play(server: &OsString, client: &OsString, more: &[&str]) {
    static NEXT_PORT: AtomicU16 = AtomicU16::new(18_600);
    let port = NEXT_PORT.fetch_add(1, Ordering::Relaxed).to_string();
    let port_option = format!("--port={port}");
    let options = [&[port_option.as_str(), "--iters=100"], more].concat();
    let deadline = Instant::now() + PATIENCE;
    let serving = start("a", server, &options);
    while !listens(&port) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(50));
    }
    let playing = start("b", client, &[options.as_slice(), &["10.99.1.1"]].concat());
    let ended = [("client", playing), ("server", serving)].map(|(name, child)| {
        let Output { status, stdout, stderr } = finish(child, deadline);
        let shown = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
        let good = status.success() && shown.contains("100 iters in");
        (good, format!("{name}: {status}\n{shown}"))
    });
    let [(client_is_good, played), (server_is_good, served)] = ended;
    let programs = format!("{} serves {}", server.display(), client.display());
    assert!(client_is_good && server_is_good, "{programs}\n{played}{served}");
}

fn play_both_roles(name: &str, more: &[&str]) {
    if in_the_guest() {
        play(&theirs(name), &ours(name), more);
        play(&ours(name), &theirs(name), more);
    }
}

#[test]
fn rc_pingpong_speaks_to_the_one_of_rdma_core() {
    play_both_roles("rc_pingpong", &["--chk"]);
    play_both_roles("rc_pingpong", &["--size=64", "--events"]);
}

#[test]
fn uc_pingpong_speaks_to_the_one_of_rdma_core() {
    play_both_roles("uc_pingpong", &["--chk"]);
}

#[test]
fn ud_pingpong_speaks_to_the_one_of_rdma_core() {
    play_both_roles("ud_pingpong", &["--chk"]);
}

#[test]
fn srq_pingpong_speaks_to_the_one_of_rdma_core() {
    play_both_roles("srq_pingpong", &["--chk"]);
    play_both_roles("srq_pingpong", &["--num-qp=4", "--events"]);
}
