//! Ranks that break the protocol after they were let in.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, TcpStream},
};

use super::*;
use crate::{
    error::chain,
    frame::{Frame, Parsed, parse},
    meeting::Meeting,
};

const JOB: u64 = 0xA11_0BE5;
const PATIENT: Duration = Duration::from_secs(120);

#[test]
fn every_line_carries_the_rank() {
    assert_eq!(prefixed(1, "one\ntwo\n"), "[rank 1] one\n[rank 1] two\n");
    assert_eq!(prefixed(0, ""), "");
}

fn placement(rank: usize, size: usize, port: u16) -> Placement {
    let meeting = Meeting {
        hosts: vec!["127.0.0.1".to_owned()],
        ports: vec![port],
        job: JOB,
        remedy_if_wrong: None,
    };
    let (launcher, local_rank) = (Launcher::Variables, rank);
    Placement { launcher, rank, size, local_rank, meeting: Some(meeting) }
}

fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

fn introduction(job: u64, world_size: u32) -> Vec<u8> {
    Introduction { job, world_size }.to_bytes()
}

fn read(stream: &mut TcpStream) -> Frame {
    let mut bytes = Vec::new();
    loop {
        match parse(&bytes, LONGEST_PAYLOAD).unwrap() {
            Parsed::Frame(frame, _) => return frame,
            Parsed::Needs(total) => {
                let have = bytes.len();
                bytes.resize(total, 0);
                stream.read_exact(&mut bytes[have..]).unwrap();
            }
        }
    }
}

/// What rank 0 of two says when rank 1 does `act` once it has been let in.
fn rank_0_beside(act: impl FnOnce(&mut TcpStream) + Send) -> Error {
    let (listener, port) = listener();
    listener.set_nonblocking(true).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            let hello = Frame::new(Kind::Hello, 1, introduction(JOB, 2));
            stream.write_all(&hello.to_bytes()).unwrap();
            assert_eq!(read(&mut stream).kind, Kind::Welcome);
            assert_eq!(read(&mut stream).kind, Kind::Start);
            act(&mut stream);
            // Stays until rank 0 has judged.
            drop(stream.read_to_end(&mut Vec::new()));
        });
        let world = World::meet(placement(0, 2, port), PATIENT, Some(vec![listener])).unwrap();
        let error = world.exchange(b"mine").unwrap_err();
        drop(world);
        error
    })
}

/// What rank 1 of two says when rank 0 answers its greeting with `act`.
fn rank_1_beside(act: impl FnOnce(&mut TcpStream) + Send) -> Error {
    let (listener, port) = listener();
    thread::scope(|scope| {
        scope.spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let hello = read(&mut stream);
            assert_eq!((hello.kind, hello.detail), (Kind::Hello, 1));
            assert_eq!(hello.payload, introduction(JOB, 2));
            act(&mut stream);
            drop(stream.read_to_end(&mut Vec::new()));
        });
        World::meet(placement(1, 2, port), PATIENT, None)
            .and_then(|world| world.exchange(b"mine"))
            .unwrap_err()
    })
}

fn welcome() -> Vec<u8> {
    Frame::new(Kind::Welcome, 0, introduction(JOB, 2)).to_bytes()
}

#[test]
fn garbage_from_a_rank_names_it() {
    let error = rank_0_beside(|stream| stream.write_all(b"once upon a time").unwrap());
    assert_eq!(
        error.to_string(),
        "rank 1 sent garbage during exchange: it says \"once upon a time\", \
         which is another protocol"
    );
}

#[test]
fn a_claimed_length_is_not_believed() {
    let mut bytes = Frame::new(Kind::Exchange, 1, Vec::new()).to_bytes();
    bytes[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
    let error = rank_0_beside(|stream| stream.write_all(&bytes).unwrap());
    assert!(error.to_string().contains("4294967295 bytes is over the limit"), "{error}");
}

#[test]
fn messages_out_of_place_are_garbage() {
    let hello = Frame::new(Kind::Hello, 1, introduction(JOB, 2)).to_bytes();
    let error = rank_0_beside(|stream| stream.write_all(&hello).unwrap());
    assert!(matches!(error, Error::Garbage { rank: 1, .. }), "{error}");
}

#[test]
fn a_rank_that_speaks_for_another_is_out_of_step() {
    let frame = Frame { kind: Kind::Exchange, sequence: 1, detail: 0, payload: Vec::new() };
    let error = rank_0_beside(|stream| stream.write_all(&frame.to_bytes()).unwrap());
    assert!(matches!(error, Error::OutOfStep { rank: 1, .. }), "{error}");
}

#[test]
fn a_rank_that_dies_within_a_message_is_named() {
    let frame = Frame { kind: Kind::Exchange, sequence: 1, detail: 1, payload: vec![7; 1000] };
    let error = rank_0_beside(|stream| {
        stream.write_all(&frame.to_bytes()[..500]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
    });
    let text = chain(&error);
    assert!(text.starts_with("rank 1 disconnected during exchange"), "{text}");
    assert!(text.ends_with("in the middle of a message"), "{text}");
}

/// What rank 0 of two sees while it works, when rank 1 does `act` once it has been let in.
fn rank_0_at_work_beside(act: impl FnOnce(&mut TcpStream) + Send) -> Error {
    let (listener, port) = listener();
    listener.set_nonblocking(true).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            let hello = Frame::new(Kind::Hello, 1, introduction(JOB, 2));
            stream.write_all(&hello.to_bytes()).unwrap();
            assert_eq!(read(&mut stream).kind, Kind::Welcome);
            assert_eq!(read(&mut stream).kind, Kind::Start);
            act(&mut stream);
        });
        let world = World::meet(placement(0, 2, port), PATIENT, Some(vec![listener])).unwrap();
        world.wait_for("thing that never comes", || Ok::<Option<()>, Error>(None)).unwrap_err()
    })
}

#[test]
fn a_rank_that_dies_behind_its_part_of_the_next_operation_is_noticed() {
    let part = Frame { kind: Kind::Barrier, sequence: 1, detail: 0, payload: Vec::new() };
    let error = rank_0_at_work_beside(|stream| stream.write_all(&part.to_bytes()).unwrap());
    let expected = "rank 1 disconnected during the work: it died or was killed";
    assert_eq!(error.to_string(), expected);

    let reason = Frame::abort(1, "out of memory");
    let bytes = [part.to_bytes(), reason.to_bytes()].concat();
    let error = rank_0_at_work_beside(|stream| stream.write_all(&bytes).unwrap());
    assert_eq!(error.to_string(), "rank 1 gave up: out of memory");
}

#[test]
fn a_last_word_that_nobody_takes_does_not_keep_a_rank() {
    const RANKS: usize = 12;
    let (listener, port) = listener();
    listener.set_nonblocking(true).unwrap();
    let over = std::sync::Barrier::new(RANKS);
    thread::scope(|scope| {
        for rank in 1..RANKS {
            let over = &over;
            scope.spawn(move || {
                let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
                let size = rank_on_wire(RANKS);
                let hello = Frame::new(Kind::Hello, rank_on_wire(rank), introduction(JOB, size));
                stream.write_all(&hello.to_bytes()).unwrap();
                assert_eq!(read(&mut stream).kind, Kind::Welcome);
                assert_eq!(read(&mut stream).kind, Kind::Start);
                // From here on it reads nothing.
                over.wait();
            });
        }
        let placement = placement(0, RANKS, port);
        let world = World::meet(placement, PATIENT, Some(vec![listener])).unwrap();
        world.lock().fill();
        let begin = Instant::now();
        drop(world);
        let elapsed = begin.elapsed();
        over.wait();
        // One second for all of them, and not one for each.
        assert!(elapsed < Duration::from_secs(8), "{elapsed:?}");
    });
}

#[test]
fn messages_in_single_bytes_are_put_together() {
    let (listener, port) = listener();
    listener.set_nonblocking(true).unwrap();
    let trickle = |stream: &mut TcpStream, frame: &Frame| {
        for byte in frame.to_bytes() {
            stream.write_all(&[byte]).unwrap();
            thread::yield_now();
        }
    };
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            stream.set_nodelay(true).unwrap();
            trickle(&mut stream, &Frame::new(Kind::Hello, 1, introduction(JOB, 2)));
            assert_eq!(read(&mut stream).kind, Kind::Welcome);
            assert_eq!(read(&mut stream).kind, Kind::Start);
            let payload = b"abc".to_vec();
            let part = Frame { kind: Kind::Exchange, sequence: 1, detail: 1, payload };
            trickle(&mut stream, &part);
            drop(stream.read_to_end(&mut Vec::new()));
        });
        let world = World::meet(placement(0, 2, port), PATIENT, Some(vec![listener])).unwrap();
        assert_eq!(world.exchange(b"").unwrap(), [b"".to_vec(), b"abc".to_vec()]);
    });
}

#[test]
fn a_rank_that_does_not_wait_for_the_start_is_named() {
    let (listener, port) = listener();
    listener.set_nonblocking(true).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            let hello = Frame::new(Kind::Hello, 1, introduction(JOB, 3)).to_bytes();
            stream.write_all(&[hello, b"hasty".to_vec()].concat()).unwrap();
            drop(stream.read_to_end(&mut Vec::new()));
        });
        let meeting = World::meet(placement(0, 3, port), PATIENT, Some(vec![listener]));
        let error = meeting.unwrap_err();
        assert!(matches!(error, Error::Garbage { rank: 1, during: "the start", .. }), "{error}");
    });
}

#[test]
fn rank_0_that_turns_to_garbage_is_named() {
    let error = rank_1_beside(|stream| {
        stream.write_all(&[welcome(), b"nonsense".to_vec()].concat()).unwrap();
    });
    assert!(matches!(error, Error::Garbage { rank: 0, during: "the start", .. }), "{error}");

    let start = Frame::new(Kind::Start, 0, Vec::new()).to_bytes();
    let error = rank_1_beside(|stream| {
        stream.write_all(&[welcome(), start, b"nonsense".to_vec()].concat()).unwrap();
    });
    assert!(matches!(error, Error::Garbage { rank: 0, during: "exchange", .. }), "{error}");
}

#[test]
fn rank_0_that_dies_before_the_start_is_named() {
    let error = rank_1_beside(|stream| {
        stream.write_all(&welcome()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
    });
    assert!(matches!(error, Error::Disconnected { rank: 0, during: "the start", .. }), "{error}");
}

#[test]
fn the_reason_of_rank_0_is_heard_before_the_start() {
    let error = rank_1_beside(|stream| {
        let bytes = [welcome(), Frame::abort(0, "rank 7 is late").to_bytes()].concat();
        stream.write_all(&bytes).unwrap();
    });
    assert_eq!(error.to_string(), "rank 0 gave up: rank 7 is late");
}

#[test]
fn rank_0_of_another_job_is_left_alone() {
    let (listener, port) = listener();
    thread::scope(|scope| {
        scope.spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            read(&mut stream);
            let other = Frame::new(Kind::Welcome, 0, introduction(JOB + 1, 2));
            stream.write_all(&other.to_bytes()).unwrap();
            assert_eq!(stream.read_to_end(&mut Vec::new()).unwrap(), 0);
        });
        let limit = Duration::from_secs(2);
        let error = World::meet(placement(1, 2, port), limit, None).unwrap_err();
        assert!(matches!(&error, Error::HostNotFound { .. }), "{error}");
    });
}

#[test]
fn a_rank_of_another_job_is_mentioned_and_does_not_count() {
    let (listener, port) = listener();
    listener.set_nonblocking(true).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            let hello = Frame::new(Kind::Hello, 1, introduction(JOB + 1, 2));
            stream.write_all(&hello.to_bytes()).unwrap();
            assert_eq!(read(&mut stream).payload, introduction(JOB, 2));
            drop(stream.read_to_end(&mut Vec::new()));
        });
        let limit = Duration::from_secs(2);
        let error = World::meet(placement(0, 2, port), limit, Some(vec![listener])).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("rank 1 of 2 did not arrive within 2 s"), "{text}");
        assert!(text.contains("it is a rank of another job"), "{text}");
    });
}
