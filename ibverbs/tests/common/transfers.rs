//! Every operation there is, between two ends that see each other through a [`Link`] only.
//!
//! The same script runs in two threads over the software device, in two threads over the loopback of a
//! kernel device, and in two processes on two hosts.

use ibverbs::{ConnectOptions, Inline, Operation, Posting, QpInfo, RecvWr, RemoteMemory, SendWr};

use super::{ALL, End, Host, Shape, is_quiet, link::Link, pattern};

/// Which end this is: the first one acts, the second one is acted upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    First,
    Second,
}

/// What the memory of the second end holds before each step.
const UNTOUCHED: u8 = 0xee;
/// How much of the memory the short steps use.
const SHORT: usize = 8192;
/// The memory of each end: the long step uses all of it, an odd number.
const MEMORY: usize = (192 << 10) + 3;

/// Runs the script on this end.
pub(crate) fn every_operation(host: &Host, posting: Posting, role: Role, link: &mut Link) {
    let end = host.end(Shape { posting: Some(posting), memory: MEMORY, access: ALL });
    assert_eq!(end.pair.posting(), posting);
    let local = end.pair.endpoint(&host.port);
    let remote = QpInfo::from_bytes(&link.exchange(local.to_bytes())).unwrap();
    let end = end.connect(&remote, &ConnectOptions::new(&host.port).access(ALL));
    let remote = RemoteMemory::from_bytes(&link.exchange(end.memory.remote().to_bytes())).unwrap();
    let mut script = Script { end, remote, role, link };
    script.messages();
    script.messages_with_an_immediate();
    script.writes();
    script.writes_with_an_immediate();
    script.reads();
    script.compare_and_swap();
    script.fetch_and_add();
    script.inline_bytes();
    script.several_segments();
    script.empty_messages();
    script.a_batch_of_everything();
    script.the_same_batch_again();
    script.fenced_requests();
    script.long_transfers();
}

/// Both ends as on `host`, the second one in a thread of its own.
pub(crate) fn every_operation_within(host: &Host, posting: Posting) {
    let (mut here, mut there) = Link::pair();
    std::thread::scope(|scope| {
        scope.spawn(move || every_operation(host, posting, Role::Second, &mut there));
        every_operation(host, posting, Role::First, &mut here);
    });
}

struct Script<'l> {
    end: End,
    remote: RemoteMemory,
    role: Role,
    link: &'l mut Link,
}

impl Script<'_> {
    /// The second end prepares, the first one acts, the second one checks.
    fn step(
        &mut self,
        prepare: impl FnOnce(&End),
        act: impl FnOnce(&End, &RemoteMemory),
        check: impl FnOnce(&End),
    ) {
        let fill = if self.role == Role::First { 0 } else { UNTOUCHED };
        self.end.memory.bytes().fill(0, SHORT, fill).unwrap();
        if self.role == Role::Second {
            prepare(&self.end);
        }
        self.link.meet();
        if self.role == Role::First {
            act(&self.end, &self.remote);
            assert!(is_quiet(&self.end.sends), "more completed than was signaled");
        }
        self.link.meet();
        if self.role == Role::Second {
            check(&self.end);
            assert!(is_quiet(&self.end.receives), "more arrived than was sent");
        }
        self.link.meet();
    }

    fn messages(&mut self) {
        self.step(
            |end| end.receive(7, 100, 1500),
            |end, _| {
                end.put(0, &pattern(1, 1000));
                end.post(SendWr::send(end.memory.segment(..1000).unwrap()).id(3).signaled());
                end.succeeded(3, Operation::SEND);
            },
            |end| {
                end.arrived(7, Operation::RECEIVE, 1000, None);
                end.holds(100, &pattern(1, 1000));
            },
        );
    }

    fn messages_with_an_immediate(&mut self) {
        self.step(
            |end| end.receive(8, 64, 64),
            |end, _| {
                end.put(5, &pattern(2, 64));
                let message = end.memory.segment(5..69).unwrap();
                let send = SendWr::send_with_imm(message, 0x0102_0304);
                end.post(send.id(4).signaled().solicited());
                end.succeeded(4, Operation::SEND);
            },
            |end| {
                end.arrived(8, Operation::RECEIVE, 64, Some(0x0102_0304));
                end.holds(64, &pattern(2, 64));
            },
        );
    }

    fn writes(&mut self) {
        self.step(
            |_| (),
            |end, remote| {
                end.put(0, &pattern(3, 777));
                let to = remote.part(1001..1778).unwrap();
                end.post(SendWr::write(end.memory.segment(..777).unwrap(), &to).id(5).signaled());
                end.succeeded(5, Operation::WRITE);
            },
            |end| end.holds(1001, &pattern(3, 777)),
        );
    }

    fn writes_with_an_immediate(&mut self) {
        self.step(
            |end| end.pair.post_receive(&mut [RecvWr::new(9)]).unwrap(),
            |end, remote| {
                end.put(0, &pattern(4, 512));
                let from = end.memory.segment(..512).unwrap();
                let write = SendWr::write_with_imm(from, &remote.at(32).unwrap(), 0xC0DE);
                end.post(write.id(6).signaled());
                end.succeeded(6, Operation::WRITE);
            },
            |end| {
                let operation = Operation::RECEIVE_WRITE_WITH_IMMEDIATE;
                end.arrived(9, operation, 512, Some(0xC0DE));
                end.holds(32, &pattern(4, 512));
            },
        );
    }

    fn reads(&mut self) {
        self.step(
            |end| end.put(300, &pattern(5, 999)),
            |end, remote| {
                let from = remote.part(300..1299).unwrap();
                let into = end.memory.segment(17..1016).unwrap();
                end.post(SendWr::read(into, &from).id(7).signaled());
                end.succeeded(7, Operation::READ);
                assert_eq!(end.get(17, 999), pattern(5, 999));
                assert_eq!((end.get(16, 1), end.get(1016, 1)), (vec![0], vec![0]));
            },
            |end| end.holds(300, &pattern(5, 999)),
        );
    }

    fn compare_and_swap(&mut self) {
        self.step(
            |end| end.memory.bytes().set(64, 40_u64).unwrap(),
            |end, remote| {
                let word = remote.part(64..72).unwrap();
                for (compare, swap, old) in [(39, 1, 40), (40, 41, 40), (41, u64::MAX, 41)] {
                    let into = end.memory.segment(8..16).unwrap();
                    let request = SendWr::compare_and_swap(into, &word, compare, swap);
                    end.post(request.id(8).signaled());
                    end.succeeded(8, Operation::COMPARE_AND_SWAP);
                    assert_eq!(end.memory.bytes().get::<u64>(8).unwrap(), old);
                }
            },
            |end| assert_eq!(end.memory.bytes().get::<u64>(64).unwrap(), u64::MAX),
        );
    }

    fn fetch_and_add(&mut self) {
        self.step(
            |end| end.memory.bytes().set(128, u64::MAX - 1).unwrap(),
            |end, remote| {
                let word = remote.part(128..136).unwrap();
                for (add, old) in [(1, u64::MAX - 1), (3, u64::MAX), (0, 2)] {
                    let into = end.memory.segment(8..16).unwrap();
                    end.post(SendWr::fetch_and_add(into, &word, add).id(9).signaled());
                    end.succeeded(9, Operation::FETCH_AND_ADD);
                    assert_eq!(end.memory.bytes().get::<u64>(8).unwrap(), old);
                }
            },
            |end| assert_eq!(end.memory.bytes().get::<u64>(128).unwrap(), 2),
        );
    }

    /// Inline bytes are the caller's again as soon as they are posted.
    fn inline_bytes(&mut self) {
        self.step(
            |end| {
                end.receive(1, 0, 64);
                end.pair.post_receive(&mut [RecvWr::new(2)]).unwrap();
            },
            |end, remote| {
                let mut bytes = [0; 40];
                for (seed, at) in [(1, None), (2, Some(64)), (3, Some(128))] {
                    bytes.copy_from_slice(&pattern(seed, 40));
                    let to = remote.at(at.unwrap_or(0)).unwrap();
                    let request = match seed {
                        1 => SendWr::send(Inline(&bytes)),
                        2 => SendWr::write(Inline(&bytes), &to),
                        _ => SendWr::write_with_imm(Inline(&bytes), &to, 5),
                    };
                    end.post(request.id(seed.into()).signaled());
                    bytes.fill(0);
                }
                end.succeeded(1, Operation::SEND);
                end.succeeded(2, Operation::WRITE);
                end.succeeded(3, Operation::WRITE);
            },
            |end| {
                end.arrived(1, Operation::RECEIVE, 40, None);
                end.arrived(2, Operation::RECEIVE_WRITE_WITH_IMMEDIATE, 40, Some(5));
                for (seed, at) in [(1, 0), (2, 64), (3, 128)] {
                    assert_eq!(end.get(at, 40), pattern(seed, 40));
                }
            },
        );
    }

    fn several_segments(&mut self) {
        self.step(
            |end| {
                end.put(4000, &pattern(7, 300));
                let part = |range| end.memory.segment(range).unwrap();
                let list = [part(2000..2001), part(2100..2200), part(2300..2600)];
                end.pair.post_receive(&mut [RecvWr::to(3, &list)]).unwrap();
            },
            |end, remote| {
                let whole = pattern(6, 300);
                let part = |range| end.memory.segment(range).unwrap();
                let (one, two, three) = (part(10..17), part(600..793), part(100..200));
                end.put(10, &whole[..7]);
                end.put(600, &whole[7..200]);
                end.put(100, &whole[200..]);
                let gather = [one, two, three];
                end.post(SendWr::write(&gather, &remote.at(0).unwrap()).id(1).signaled());
                end.succeeded(1, Operation::WRITE);
                end.post(SendWr::send(&gather[..]).id(2).signaled());
                end.succeeded(2, Operation::SEND);
                let scatter = [part(3000..3100), part(3200..3201), part(3300..3499)];
                let from = remote.part(4000..4300).unwrap();
                end.post(SendWr::read(&scatter, &from).id(3).signaled());
                end.succeeded(3, Operation::READ);
                let found = [end.get(3000, 100), end.get(3200, 1), end.get(3300, 199)];
                assert_eq!(found.concat(), pattern(7, 300));
            },
            |end| {
                assert_eq!(end.get(0, 300), pattern(6, 300));
                end.arrived(3, Operation::RECEIVE, 300, None);
                let found = [end.get(2000, 1), end.get(2100, 100), end.get(2300, 199)];
                assert_eq!(found.concat(), pattern(6, 300));
                assert_eq!(end.get(2499, 1), [UNTOUCHED]);
            },
        );
    }

    fn empty_messages(&mut self) {
        self.step(
            |end| {
                let mut batch = [RecvWr::new(1), RecvWr::new(2), RecvWr::new(3)];
                end.pair.post_receive(&mut batch).unwrap();
            },
            |end, remote| {
                let (nothing, to) = (&[][..], remote.at(remote.len()).unwrap());
                end.post(SendWr::send(nothing).id(1).signaled());
                end.post(SendWr::send(Inline(&[])).id(2).signaled());
                end.post(SendWr::write_with_imm(nothing, &to, 1).id(3).signaled());
                end.post(SendWr::write(nothing, &to).id(4).signaled());
                let operations =
                    [Operation::SEND, Operation::SEND, Operation::WRITE, Operation::WRITE];
                for (id, operation) in (1..).zip(operations) {
                    end.succeeded(id, operation);
                }
            },
            |end| {
                end.arrived(1, Operation::RECEIVE, 0, None);
                end.arrived(2, Operation::RECEIVE, 0, None);
                end.arrived(3, Operation::RECEIVE_WRITE_WITH_IMMEDIATE, 0, Some(1));
                assert_eq!(end.get(0, SHORT), [UNTOUCHED; SHORT]);
            },
        );
    }

    /// Only what is signaled completes, in the order in which it was posted.
    fn a_batch_of_everything(&mut self) {
        self.step(
            |end| {
                end.memory.bytes().set(1024, 5_u64).unwrap();
                end.put(2048, &pattern(12, 100));
                let message = RecvWr::to(1, end.memory.segment(0..100).unwrap());
                end.pair.post_receive(&mut [message, RecvWr::new(2)]).unwrap();
            },
            |end, remote| {
                let to = |at| remote.at(at).unwrap();
                let part = |range| end.memory.segment(range).unwrap();
                end.put(0, &pattern(11, 400));
                let inline = pattern(13, 20);
                let list = [part(0..50), part(50..100)];
                let word = remote.part(1024..1032).unwrap();
                end.pair
                    .post_send(&mut [
                        SendWr::send(&list).id(1),
                        SendWr::write(part(100..200), &to(100)).id(2).signaled(),
                        SendWr::write(part(200..300), &to(200)).id(3),
                        SendWr::write(Inline(&inline), &to(300)).id(4),
                        SendWr::fetch_and_add(part(1000..1008), &word, 4).id(5).signaled(),
                        SendWr::compare_and_swap(part(1008..1016), &word, 9, 70).id(6),
                        SendWr::read(part(2000..2100), &to(2048)).id(7),
                        SendWr::write_with_imm(part(300..400), &to(400), 77).id(8).signaled(),
                    ])
                    .unwrap();
                end.succeeded(2, Operation::WRITE);
                end.succeeded(5, Operation::FETCH_AND_ADD);
                end.succeeded(8, Operation::WRITE);
                assert_eq!(end.memory.bytes().get::<[u64; 2]>(1000).unwrap(), [5, 9]);
                assert_eq!(end.get(2000, 100), pattern(12, 100));
            },
            |end| {
                end.arrived(1, Operation::RECEIVE, 100, None);
                end.arrived(2, Operation::RECEIVE_WRITE_WITH_IMMEDIATE, 100, Some(77));
                assert_eq!(end.get(0, 300), pattern(11, 300));
                assert_eq!(end.get(300, 20), pattern(13, 20));
                assert_eq!(end.get(400, 100), pattern(11, 400)[300..]);
                assert_eq!(end.memory.bytes().get::<u64>(1024).unwrap(), 70);
            },
        );
    }

    fn the_same_batch_again(&mut self) {
        self.step(
            |_| (),
            |end, remote| {
                let part = |range| end.memory.segment(range).unwrap();
                let to = |at| remote.at(at).unwrap();
                let list = [part(0..10), part(20..30)];
                let mut batch = [
                    SendWr::write(part(0..50), &to(0)).id(1),
                    SendWr::write(&list, &to(100)).id(2).signaled(),
                ];
                for seed in 0..20 {
                    end.put(0, &pattern(seed, 50));
                    end.pair.post_send(&mut batch).unwrap();
                    end.succeeded(2, Operation::WRITE);
                }
            },
            |end| {
                let last = pattern(19, 50);
                assert_eq!(end.get(0, 50), last);
                assert_eq!(end.get(100, 20), [&last[..10], &last[20..30]].concat());
            },
        );
    }

    /// What a read brings is there when the fenced request behind it is sent.
    fn fenced_requests(&mut self) {
        self.step(
            |end| {
                end.put(0, &pattern(21, 600));
                end.receive(1, 1000, 600);
            },
            |end, remote| {
                let here = end.memory.segment(0..600).unwrap();
                end.pair
                    .post_send(&mut [
                        SendWr::read(here, &remote.at(0).unwrap()).id(1),
                        SendWr::send(here).id(2).fenced().signaled(),
                    ])
                    .unwrap();
                end.succeeded(2, Operation::SEND);
            },
            |end| {
                end.arrived(1, Operation::RECEIVE, 600, None);
                assert_eq!(end.get(1000, 600), pattern(21, 600));
            },
        );
    }

    fn long_transfers(&mut self) {
        self.step(
            |end| end.receive(1, 0, MEMORY),
            |end, remote| {
                end.put(0, &pattern(31, MEMORY));
                let (whole, there) = (end.memory.segment(..).unwrap(), remote.at(0).unwrap());
                end.post(SendWr::send(whole).id(1).signaled());
                end.succeeded(1, Operation::SEND);
                end.memory.bytes().fill(0, MEMORY, 0).unwrap();
                end.post(SendWr::read(whole, &there).id(2).signaled());
                end.succeeded(2, Operation::READ);
                assert_eq!(end.get(0, MEMORY), pattern(31, MEMORY));
                end.put(0, &pattern(32, MEMORY));
                end.post(SendWr::write(whole, &there).id(3).signaled());
                end.succeeded(3, Operation::WRITE);
            },
            |end| {
                end.arrived(1, Operation::RECEIVE, MEMORY, None);
                assert_eq!(end.get(0, MEMORY), pattern(32, MEMORY));
            },
        );
    }
}

impl End {
    pub(crate) fn post(&self, request: SendWr<'_, ibverbs::Rc>) {
        self.pair.post_send(&mut [request]).unwrap();
    }

    pub(crate) fn receive(&self, id: u64, at: usize, length: usize) {
        let memory = self.memory.segment(at..at + length).unwrap();
        self.pair.post_receive(&mut [RecvWr::to(id, memory)]).unwrap();
    }

    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        self.memory.bytes().write(at, bytes).unwrap();
    }

    pub(crate) fn get(&self, at: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.bytes().read(at, &mut bytes).unwrap();
        bytes
    }

    /// The next completion of a send is of this request.
    pub(crate) fn succeeded(&self, id: u64, operation: Operation) {
        let completion = self.sent();
        let work = completion.outcome().unwrap();
        assert_eq!((work.id(), work.operation()), (id, operation));
        assert_eq!(work.queue_pair(), self.pair.number());
    }

    /// The next completion of a receive is this one.
    pub(crate) fn arrived(
        &self,
        id: u64,
        operation: Operation,
        length: usize,
        immediate: Option<u32>,
    ) {
        let completion = self.received();
        let work = completion.outcome().unwrap();
        assert_eq!((work.id(), work.operation()), (id, operation));
        assert_eq!(work.byte_length() as usize, length);
        assert_eq!(work.immediate(), immediate);
        assert_eq!(work.queue_pair(), self.pair.number());
    }

    /// These bytes are there, and the bytes around them are as they were.
    fn holds(&self, at: usize, bytes: &[u8]) {
        assert_eq!(self.get(at, bytes.len()), bytes);
        assert_eq!(self.get(at - 1, 1), [UNTOUCHED]);
        assert_eq!(self.get(at + bytes.len(), 1), [UNTOUCHED]);
    }
}
