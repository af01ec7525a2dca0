//! Idle connections, targets that go away and come back.
#![expect(clippy::expect_used, reason = "what goes wrong here fails the test")]

use std::{
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use crate::target::{Nvmet, has_target, options, pattern, read_device, run};
use nvmeof::{Buffer, Controller, Error, Finished, Nqn, Reconnect, Request, Ticket};

fn eager() -> Reconnect {
    Reconnect {
        delay: Duration::from_millis(20),
        max_delay: Duration::from_millis(200),
        give_up_after: Duration::from_secs(120),
    }
}

#[test]
fn keep_alives_hold_an_idle_connection_for_longer_than_its_time() {
    if !has_target() {
        return;
    }
    let target = Nvmet::new("idle");
    let controller = target.connect(options().keep_alive(Some(Duration::from_secs(5)))).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let buffer = controller.allocate(4096).unwrap();
    buffer.write_at(0, &pattern(4096, 3)).unwrap();
    namespace.write(0, &buffer).unwrap();
    thread::sleep(Duration::from_secs(14));
    assert!(controller.is_connected());
    // Without reconnecting: a write whose connection was lost would fail.
    namespace.write(8, &buffer).unwrap();
}

#[test]
fn a_target_that_goes_away_for_good_ends_requests_in_errors() {
    if !has_target() {
        return;
    }
    let mut target = Nvmet::new("gone");
    let policy = Reconnect { give_up_after: Duration::from_secs(2), ..eager() };
    let controller = target.connect(options().reconnect(policy)).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let buffer = controller.allocate(4096).unwrap();
    namespace.read(0, &buffer).unwrap();
    target.unlink();
    let started = Instant::now();
    let error = namespace.read(0, &buffer).unwrap_err();
    assert!(matches!(error, Error::Disconnected { .. }), "{error:?}");
    assert!(started.elapsed() < Duration::from_secs(120));
}

#[test]
fn every_acknowledged_write_survives_two_hundred_losses_of_the_target() {
    const BLOCKS: usize = 512;
    if !has_target() {
        return;
    }
    let mut target = Nvmet::new("losses");
    let settings = options().io_queues(2).queue_entries(32).reconnect(eager());
    let controller = target.connect(settings).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let block = namespace.block_size() as usize;
    let mut queue = controller.take_queue().unwrap();
    let mut random = Random(0x1234_5678_9abc_def1);
    let zeros = controller.allocate(BLOCKS * block).unwrap();
    namespace.write(0, &zeros).unwrap();
    // What each block may hold: what was acknowledged last, and what came to an unknown end since.
    let mut possible: Vec<Vec<u8>> = vec![vec![0]; BLOCKS];
    let mut losses = 0;
    for round in 0..200 {
        let mut submitted: Vec<(Ticket, usize, u8)> = Vec::new();
        for _ in 0..1 + random.below(40) {
            let place = random.place(BLOCKS);
            if submitted.iter().any(|(_, other, _)| *other == place) {
                continue;
            }
            let value = random.byte();
            let buffer = controller.allocate(block).unwrap();
            buffer.write_at(0, &vec![value; block]).unwrap();
            let request = Request::write(&namespace, place as u64, buffer);
            submitted.push((queue.submit(request).unwrap(), place, value));
        }
        // The target goes away after any number of acknowledgements.
        for _ in 0..random.place(submitted.len() + 1) {
            let finished = queue.wait(Duration::from_secs(300)).expect("every request ends");
            losses += settle(&mut possible, &mut submitted, &finished);
        }
        queue.poll().iter().for_each(|finished| {
            losses += settle(&mut possible, &mut submitted, finished);
        });
        target.unlink();
        if random.below(2) == 0 {
            thread::sleep(Duration::from_millis(random.below(30)));
        }
        target.link();
        while !submitted.is_empty() {
            let finished = queue.wait(Duration::from_secs(300)).expect("every request ends");
            losses += settle(&mut possible, &mut submitted, &finished);
        }
        namespace.read(0, &zeros).unwrap();
        for (place, held) in zeros.to_vec().chunks_exact(block).enumerate() {
            assert!(held.iter().all(|byte| *byte == held[0]), "block {place} is mixed");
            assert!(
                possible[place].contains(&held[0]),
                "block {place} in round {round} holds {}, not one of {:?}",
                held[0],
                possible[place]
            );
            possible[place] = vec![held[0]];
        }
    }
    let held = read_device(Path::new("/dev/ram0"), 0, BLOCKS * block);
    for (place, held) in held.chunks_exact(block).enumerate() {
        assert_eq!(possible[place], [held[0]], "block {place} as the kernel sees it");
    }
    println!("{losses} writes ended without an acknowledgement");
}

/// Says that this process is the host of [`the_loss_of_one_packet_in_a_hundred_costs_time_only`].
const LOSSY_HOST: &str = "NVMEOF_LOSSY_HOST";

#[test]
fn the_loss_of_one_packet_in_a_hundred_costs_time_only() {
    if !has_target() {
        return;
    }
    if std::env::var_os(LOSSY_HOST).is_some() {
        return be_the_host_of_a_lossy_network().unwrap();
    }
    // The kernel's target listens in the initial namespace, so the host goes to another one.
    let wire = Wire::new();
    let mut target = Nvmet::at("lossy", Wire::TARGET);
    target.add_ram(1);
    target.link();
    for end in ["nvl0", "nvl1"] {
        wire.run(end, "tc", &["qdisc", "add", "dev", end, "root", "netem", "loss", "1%"]);
    }
    let program = std::env::current_exe().unwrap();
    let test = "losing::the_loss_of_one_packet_in_a_hundred_costs_time_only";
    let output = Command::new("ip")
        .args(["netns", "exec", Wire::NAMESPACE])
        .arg(program)
        .args(["--exact", test, "--nocapture"])
        .env(LOSSY_HOST, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("1 passed"), "{said}");
    let dropped = String::from_utf8(run("tc", &["-s", "qdisc", "show", "dev", "nvl0"])).unwrap();
    assert!(!dropped.contains("dropped 0,"), "nothing was lost: {dropped}");
}

fn be_the_host_of_a_lossy_network() -> nvmeof::Result<()> {
    let nqn = Nqn::new("nqn.2024-01.org.example:lossy")?;
    let settings = options().io_queues(2).reconnect(Reconnect::NEVER);
    let controller = Controller::connect_with(Wire::TARGET, nqn, settings)?;
    let namespace = controller.namespace(1)?;
    let buffer = controller.allocate(256 << 10)?;
    for round in 0..8 {
        let bytes = pattern(256 << 10, round);
        buffer.write_at(0, &bytes)?;
        namespace.write(round * 512, &buffer)?;
        buffer.write_at(0, &vec![0; bytes.len()])?;
        namespace.read(round * 512, &buffer)?;
        if buffer.to_vec() != bytes {
            return Err(Error::Closed);
        }
    }
    Ok(())
}

/// Two hosts with a wire between them: the initial network namespace and another one.
struct Wire;

impl Wire {
    const NAMESPACE: &'static str = "nvmeof-lossy";
    const TARGET: &'static str = "10.98.0.1";

    fn new() -> Self {
        let wire = Self;
        run("modprobe", &["sch_netem"]);
        run("ip", &["netns", "add", Self::NAMESPACE]);
        let pair = ["type", "veth", "peer", "name", "nvl1", "netns", Self::NAMESPACE];
        run("ip", &[&["link", "add", "nvl0"], &pair[..]].concat());
        for (end, address, device) in
            [("nvl0", "10.98.0.1/24", "rxe_nvl0"), ("nvl1", "10.98.0.2/24", "rxe_nvl1")]
        {
            wire.run(end, "ip", &["addr", "add", address, "dev", end]);
            wire.run(end, "ip", &["link", "set", end, "up"]);
            wire.run(end, "rdma", &["link", "add", device, "type", "rxe", "netdev", end]);
        }
        wire
    }

    /// Runs a program where this end of the wire is.
    fn run(&self, end: &str, program: &str, arguments: &[&str]) {
        if end == "nvl0" {
            run(program, arguments);
        } else {
            let inside = ["netns", "exec", Self::NAMESPACE, program];
            run("ip", &[&inside[..], arguments].concat());
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // The devices go with their interfaces.
        run("ip", &["link", "delete", "nvl0"]);
        run("ip", &["netns", "delete", Self::NAMESPACE]);
    }
}

/// Notes how a write ended; counts the ones that were not acknowledged.
fn settle(
    possible: &mut [Vec<u8>],
    submitted: &mut Vec<(Ticket, usize, u8)>,
    finished: &Finished<Buffer>,
) -> u32 {
    let position = submitted.iter().position(|(ticket, ..)| *ticket == finished.ticket);
    let (_, place, value) = submitted.swap_remove(position.expect("a request of this round"));
    match &finished.result {
        Ok(()) => {
            possible[place] = vec![value];
            0
        }
        Err(_) => {
            possible[place].push(value);
            1
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn place(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).unwrap_or(0)
    }

    fn byte(&mut self) -> u8 {
        self.below(256).to_le_bytes()[0]
    }
}
