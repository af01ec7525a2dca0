//! Reliable connections on a device of the kernel: bytes, errors, every order of dropping, leftovers.

#[cfg(test)]
mod common;
#[cfg(test)]
#[expect(dead_code, reason = "each program uses a part of it")]
#[path = "common/kernel.rs"]
mod kernel;
#[cfg(test)]
#[path = "common/udmabuf.rs"]
mod udmabuf;

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::{fd::AsFd, unix::fs::FileExt},
        thread,
        time::Duration,
    };

    use ibverbs::{
        Access, CompletionStatus, ConnectOptions, DmaBufPart, HugePages, MemoryRegion, PageAligned,
        Posting, RecvWr, RemoteKey, RemoteMemory, SendWr,
    };

    use crate::{
        common::{
            ALL, End, Host, Shape,
            host::next,
            orders, pattern,
            transfers::{Role, every_operation, every_operation_within},
        },
        kernel::{LOOPBACK, finish, meet, open, part, resources, start},
        udmabuf,
    };

    const POSTINGS: [Posting; 2] = [Posting::Extended, Posting::Classic];

    #[test]
    fn every_operation_moves_the_right_bytes_over_the_loopback() {
        let Some(host) = open(LOOPBACK) else { return };
        for posting in POSTINGS {
            every_operation_within(&host, posting);
        }
    }

    #[test]
    fn every_operation_moves_the_right_bytes_between_two_hosts() {
        let test = "tests::every_operation_moves_the_right_bytes_between_two_hosts";
        let (device, role) = match part().as_deref() {
            Some("first") => ("rxe_a", Role::First),
            Some(_) => ("rxe_b", Role::Second),
            None => {
                if open(LOOPBACK).is_none() {
                    return;
                }
                let first = start(test, "first", Some("a"));
                let second = start(test, "second", Some("b"));
                finish(first);
                finish(second);
                return;
            }
        };
        let mut link = meet("two-hosts", role);
        let host = open(device).unwrap();
        for posting in POSTINGS {
            every_operation(&host, posting, role, &mut link);
        }
    }

    /// Two ends, each with a send that waits for a receive which the other one does not post.
    fn busy_ends(host: &Host) -> (End, End) {
        let (a, b) = host.ends(Shape { memory: 64, ..Shape::default() });
        for end in [&a, &b] {
            end.post(SendWr::send(end.memory.segment(..).unwrap()).id(1).signaled());
        }
        (a, b)
    }

    #[test]
    fn an_end_with_work_in_flight_can_be_dropped_in_every_order() {
        let Some(host) = open(LOOPBACK) else { return };
        drop(host);
        let before = resources(LOOPBACK);
        for order in orders::orders() {
            let host = open(LOOPBACK).unwrap();
            let (a, b) = busy_ends(&host);
            orders::drop_in(&order, orders::parts(host, a), None);
            drop(b);
        }
        assert_eq!(resources(LOOPBACK), before);
    }

    #[test]
    fn what_is_forgotten_in_any_order_is_gone_with_its_process() {
        let test = "tests::what_is_forgotten_in_any_order_is_gone_with_its_process";
        if part().is_some() {
            for forgotten in 0..orders::PARTS.len() {
                for order in orders::orders().iter().step_by(23) {
                    let host = open(LOOPBACK).unwrap();
                    let (a, b) = busy_ends(&host);
                    orders::drop_in(order, orders::parts(host, a), Some(forgotten));
                    drop(b);
                }
            }
            // The process is well: it can still do everything.
            every_operation_within(&open(LOOPBACK).unwrap(), Posting::Extended);
            return;
        }
        let Some(host) = open(LOOPBACK) else { return };
        drop(host);
        let before = resources(LOOPBACK);
        finish(start(test, "forgets", None));
        assert_eq!(resources(LOOPBACK), before);
    }

    #[test]
    fn nothing_is_written_to_a_buffer_after_its_region_ended_under_load() {
        let Some(host) = open(LOOPBACK) else { return };
        let (mut cut_off, mut reached) = (0, 0);
        for round in 0..40_u64 {
            let (a, _b) = host.ends(Shape { memory: 64 << 10, ..Shape::default() });
            a.memory.bytes().fill(0, 64 << 10, 0xaa).unwrap();
            let target = PageAligned::new(64 << 10).unwrap();
            let target = MemoryRegion::register(&host.domain, target, ALL).unwrap();
            let to = target.remote().at(0).unwrap();
            for id in 0..16 {
                a.post(SendWr::write(a.memory.segment(..).unwrap(), &to).id(id).signaled());
            }
            // Somewhere in the middle of it, later each time.
            thread::sleep(Duration::from_micros(round * round * 20));
            let buffer = target.into_buffer().unwrap();
            let kept = buffer.as_slice().to_vec();
            let failure = (0..16).filter_map(|_| a.sent().outcome().err()).next();
            assert!(buffer.as_slice() == kept, "round {round}, {failure:?}");
            if let Some(failure) = failure {
                assert_eq!(failure.status, CompletionStatus::REMOTE_ACCESS_ERROR);
            }
            cut_off += usize::from(failure.is_some());
            reached += usize::from(kept.contains(&0xaa));
        }
        println!("of 40 rounds, bytes arrived in {reached} and writes were cut off in {cut_off}");
    }

    #[test]
    fn a_scope_ends_with_work_in_flight_and_nothing_is_written_after_it() {
        let Some(host) = open(LOOPBACK) else { return };
        let (a, b) = host.ends(Shape::default());
        let mut memory = [7_u8; 64];
        host.domain.scope(|scope| {
            let region = scope.register(&mut memory, Access::LOCAL_WRITE).unwrap();
            b.pair.post_receive(&mut [RecvWr::to(1, region.segment(..).unwrap())]).unwrap();
        });
        a.post(SendWr::send(a.memory.segment(..64).unwrap()).signaled());
        a.sent().outcome().unwrap_err();
        b.received().outcome().unwrap_err();
        assert_eq!(memory, [7; 64]);
    }

    /// A request that fails on the loopback, and how.
    fn fails(
        host: &Host,
        request: impl for<'a> FnOnce(&'a End, &'a End) -> SendWr<'a, ibverbs::Rc>,
    ) -> CompletionStatus {
        let options = ConnectOptions::new(&host.port)
            .access(ALL)
            .timeout(Duration::from_millis(1))
            .retries(1)
            .receiver_not_ready_retries(1)
            .receiver_not_ready_timer(Duration::from_micros(10));
        let (a, b) = host.ends_with(Shape::default(), &options);
        a.post(request(&a, &b).id(7));
        let failure = a.sent().outcome().unwrap_err();
        assert_eq!((failure.id, failure.queue_pair), (7, a.pair.number()));
        let state = a.pair.query().unwrap().state();
        assert_eq!(state, ibverbs::QueuePairState::ERROR);
        failure.status
    }

    #[test]
    fn errors_of_a_peer_come_back_as_the_status_that_says_so() {
        let Some(host) = open(LOOPBACK) else { return };
        // A key that opens nothing.
        let status = fails(&host, |a, b| {
            let key = RemoteKey(b.memory.remote_key().0 ^ 0xff00);
            let wrong = RemoteMemory::new(b.memory.address(), 64, key).unwrap();
            SendWr::write(a.memory.segment(..8).unwrap(), &wrong.at(0).unwrap())
        });
        assert_eq!(status, CompletionStatus::REMOTE_ACCESS_ERROR);
        // Bytes behind the end of the peer's region, which it did not publish.
        let status = fails(&host, |a, b| {
            let (address, key) = (b.memory.address(), b.memory.remote_key());
            let wrong = RemoteMemory::new(address, 1 << 20, key).unwrap();
            SendWr::write(a.memory.segment(..8).unwrap(), &wrong.at(8190).unwrap())
        });
        assert_eq!(status, CompletionStatus::REMOTE_ACCESS_ERROR);
        // No receive, and no patience.
        let status = fails(&host, |a, _| SendWr::send(a.memory.segment(..8).unwrap()));
        assert_eq!(status, CompletionStatus::RECEIVER_NOT_READY);
        // A message that is longer than its receive.
        let status = fails(&host, |a, b| {
            b.receive(1, 0, 4);
            SendWr::send(a.memory.segment(..8).unwrap())
        });
        // The specification says the first, software devices say the second.
        let too_long =
            [CompletionStatus::REMOTE_INVALID_REQUEST, CompletionStatus::REMOTE_OPERATION_ERROR];
        assert!(too_long.contains(&status), "{status}");
    }

    #[test]
    fn a_region_without_the_right_is_not_written() {
        let Some(host) = open(LOOPBACK) else { return };
        let (a, _b) = host.ends(Shape::default());
        let region = host.region(vec![3; 64], Access::REMOTE_READ);
        let to = region.remote().at(0).unwrap();
        a.post(SendWr::write(a.memory.segment(..8).unwrap(), &to));
        assert_eq!(a.sent().status(), CompletionStatus::REMOTE_ACCESS_ERROR);
        assert_eq!(region.into_buffer().unwrap(), [3; 64]);
    }

    #[test]
    fn memory_of_another_domain_is_a_local_error() {
        let Some(host) = open(LOOPBACK) else { return };
        let Some(other) = open(LOOPBACK) else { return };
        let (a, b) = host.ends(Shape::default());
        let foreign = other.region(vec![0; 64], ALL);
        let to = b.memory.remote().at(0).unwrap();
        a.post(SendWr::write(foreign.segment(..).unwrap(), &to));
        // Software devices say only that it was flushed.
        a.sent().outcome().unwrap_err();
        assert_eq!(b.get(0, 64), [0; 64]);
    }

    #[test]
    fn a_peer_that_is_gone_uses_up_the_retries() {
        let test = "tests::a_peer_that_is_gone_uses_up_the_retries";
        if part().is_some() {
            let mut link = meet("peer-gone", Role::Second);
            let host = open(LOOPBACK).unwrap();
            let end = host.end(Shape::default());
            let local = end.pair.endpoint(&host.port);
            let remote = ibverbs::QpInfo::from_bytes(&link.exchange(local.to_bytes())).unwrap();
            let end = end.connect(&remote, &ConnectOptions::new(&host.port).access(ALL));
            link.exchange(end.memory.remote().to_bytes());
            // It is killed while it waits here.
            link.meet();
            return;
        }
        let Some(host) = open(LOOPBACK) else { return };
        let mut peer = start(test, "peer", None);
        let mut link = meet("peer-gone", Role::First);
        let end = host.end(Shape::default());
        let local = end.pair.endpoint(&host.port);
        let remote = ibverbs::QpInfo::from_bytes(&link.exchange(local.to_bytes())).unwrap();
        let options = ConnectOptions::new(&host.port).timeout(Duration::from_millis(4)).retries(2);
        let end = end.connect(&remote, &options);
        let bytes = link.exchange(end.memory.remote().to_bytes());
        let to = RemoteMemory::from_bytes(&bytes).unwrap().at(0).unwrap();
        end.post(SendWr::write(end.memory.segment(..8).unwrap(), &to).id(1).signaled());
        end.sent().outcome().unwrap();
        peer.kill().unwrap();
        peer.wait().unwrap();
        end.post(SendWr::write(end.memory.segment(..8).unwrap(), &to).id(2).signaled());
        assert_eq!(end.sent().status(), CompletionStatus::RETRIES_EXCEEDED);
        // What was queued behind it is flushed.
        end.post(SendWr::write(end.memory.segment(..8).unwrap(), &to).id(3));
        assert_eq!(next(&end.sends).status(), CompletionStatus::WORK_FLUSHED);
    }

    #[test]
    fn a_dma_buf_is_written_or_the_error_says_what_would_help() {
        let Some(host) = open(LOOPBACK) else { return };
        let buffer = udmabuf::create(8192).unwrap();
        let (offset, length, address) = (4096, 4096, 0x7000);
        let part = DmaBufPart { fd: buffer.dma_buf.as_fd(), offset, length, address };
        #[expect(unsafe_code, reason = "registers memory by its descriptor")]
        // SAFETY: the memory is used through this region and through file I/O only.
        let region = unsafe { host.domain.register_dma_buf(Vec::<u8>::new(), part, ALL) };
        let region = match region {
            Ok(region) => region,
            Err(error) => {
                let text = error.to_string();
                assert!(
                    text.contains("ibv_reg_dmabuf_mr failed: the device or its driver"),
                    "{text}"
                );
                return;
            }
        };
        let (a, _b) = host.ends(Shape::default());
        a.put(0, &pattern(1, 100));
        let to = region.remote().at(64).unwrap();
        a.post(SendWr::write(a.memory.segment(..100).unwrap(), &to).signaled());
        a.sent().outcome().unwrap();
        let mut found = [0; 100];
        buffer.memory.read_exact_at(&mut found, 4096 + 64).unwrap();
        assert_eq!(found[..], pattern(1, 100));
    }

    #[test]
    fn huge_pages_are_registered_and_come_back() {
        let Some(host) = open(LOOPBACK) else { return };
        fs::write("/proc/sys/vm/nr_hugepages", "2").unwrap();
        let pages = HugePages::new(1, 2 << 20).unwrap();
        let region = MemoryRegion::register(&host.domain, pages, ALL).unwrap();
        let (a, _b) = host.ends(Shape::default());
        a.put(0, &pattern(1, 8192));
        let to = region.remote().at((2 << 20) - 8192).unwrap();
        a.post(SendWr::write(a.memory.segment(..).unwrap(), &to).signaled());
        a.sent().outcome().unwrap();
        let pages = region.into_buffer().unwrap();
        assert_eq!(pages.as_slice()[(2 << 20) - 8192..], pattern(1, 8192));
        // Those that are not set aside.
        let text = HugePages::new(64 << 20, 2 << 20).unwrap_err().to_string();
        assert!(text.contains("vm.nr_hugepages"), "{text}");
        fs::write("/proc/sys/vm/nr_hugepages", "0").unwrap();
    }
}
