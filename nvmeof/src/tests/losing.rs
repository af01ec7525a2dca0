//! Losing connections: what ends, what is sent again, and what is never lost.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{connect, options};
use crate::{
    Error, Reconnect, Request, Status, StatusType,
    fake::{FakeTarget, Misbehaviour},
    testing::Random,
    wire::{command::Opcode, nvm::Range},
};

#[test]
fn reads_are_sent_again_on_a_new_connection() {
    let target = FakeTarget::new(64);
    target.lock().storage.fill(7);
    let controller = connect(&target, options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let buffer = controller.allocate(64 * 512).unwrap();
    for misbehaviour in [Misbehaviour::CutBefore, Misbehaviour::CutAfter] {
        target.misbehave([misbehaviour]);
        namespace.read(0, &buffer).unwrap();
        assert_eq!(buffer.to_vec(), vec![7; 64 * 512]);
    }
}

#[test]
fn a_loss_counts_once_however_many_commands_of_a_request_it_takes() {
    let target = FakeTarget::new(2048);
    target.lock().storage.fill(7);
    let controller = connect(&target, options().retries(1)).unwrap();
    let namespace = controller.namespace(1).unwrap();
    // 32 commands of 32 KiB, none of which is answered before there is one more.
    target.lock().batch = 33;
    let buffer = controller.allocate(1 << 20).unwrap();
    thread::scope(|scope| {
        let read = scope.spawn(|| namespace.read(0, &buffer));
        let started = Instant::now();
        while target.lock().most_in_flight < 32 {
            assert!(started.elapsed() < Duration::from_secs(20));
            thread::yield_now();
        }
        target.lock().batch = 0;
        target.cut();
        read.join().unwrap().unwrap();
    });
    assert_eq!(buffer.to_vec(), vec![7; 1 << 20]);
}

#[test]
fn a_write_of_unknown_outcome_is_not_carried_out_twice() {
    let target = FakeTarget::new(16);
    let controller = connect(&target, options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let block = controller.allocate(512).unwrap();
    for (misbehaviour, times) in [(Misbehaviour::CutAfter, 1), (Misbehaviour::CutBefore, 2)] {
        target.misbehave([misbehaviour]);
        let error = namespace.write(0, &block).unwrap_err();
        assert!(matches!(error, Error::OutcomeUnknown { operation: "write", .. }), "{error}");
        assert_eq!(target.count(Opcode::WRITE), times);
    }
    let error = {
        target.misbehave([Misbehaviour::CutAfter]);
        namespace.flush().unwrap_err()
    };
    assert!(matches!(error, Error::ConnectionLost { operation: "flush", .. }), "{error}");
}

#[test]
fn a_flush_does_not_speak_for_what_another_connection_acknowledged() {
    let target = FakeTarget::new(16);
    let controller = connect(&target, options().io_queues(1).queue_entries(2)).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let mut queue = controller.take_queue().unwrap();
    let block = || controller.allocate(512).unwrap();
    let end = |queue: &mut crate::IoQueue<crate::Buffer>| {
        queue.wait(Duration::from_secs(20)).unwrap().result
    };
    queue.submit(Request::write(&namespace, 0, block())).unwrap();
    end(&mut queue).unwrap();
    assert_eq!(controller.connections(), 1);
    // One flush waits behind a read when the connection is lost, and one is submitted while there is none.
    target.misbehave([Misbehaviour::Silence]);
    queue.submit(Request::read(&namespace, 0, block())).unwrap();
    let waiting = queue.submit(Request::flush(&namespace)).unwrap();
    assert!(queue.poll().is_none());
    target.go_away();
    let started = Instant::now();
    while controller.is_connected() {
        assert!(queue.poll().is_none() && started.elapsed() < Duration::from_secs(20));
    }
    let late = queue.submit(Request::flush(&namespace)).unwrap();
    target.lock().is_away = false;
    for _ in 0..3 {
        let finished = queue.wait(Duration::from_secs(20)).unwrap();
        if [waiting, late].contains(&finished.ticket) {
            let error = finished.result.unwrap_err();
            assert!(matches!(error, Error::ConnectionLost { operation: "flush", .. }), "{error}");
        } else {
            finished.result.unwrap();
        }
    }
    assert_eq!((target.count(Opcode::FLUSH), controller.connections()), (0, 2));
    queue.submit(Request::flush(&namespace)).unwrap();
    end(&mut queue).unwrap();
}

#[test]
fn writes_are_sent_again_if_the_user_says_so() {
    let target = FakeTarget::new(16);
    let controller = connect(&target, options().retry_writes(true)).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let block = controller.allocate(512).unwrap();
    block.write_at(0, &[5; 512]).unwrap();
    target.misbehave([Misbehaviour::CutAfter, Misbehaviour::CutBefore]);
    namespace.write(3, &block).unwrap();
    assert_eq!(target.count(Opcode::WRITE), 3);
    assert_eq!(target.lock().storage[3 * 512..][..512], [5; 512]);
}

#[test]
fn a_command_without_an_answer_is_aborted() {
    let target = FakeTarget::new(16);
    let controller = connect(&target, options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let block = controller.allocate(512).unwrap();
    target.misbehave([Misbehaviour::Silence]);
    let error = namespace.write(0, &block).unwrap_err();
    assert!(matches!(error, Error::TimedOut { operation: "write", .. }), "{error}");
    assert!(controller.is_connected());
}

#[test]
fn a_command_that_cannot_be_aborted_costs_the_connection() {
    let target = FakeTarget::new(16);
    target.lock().aborts = false;
    let controller = connect(&target, options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let block = controller.allocate(512).unwrap();
    target.misbehave([Misbehaviour::Silence]);
    let error = namespace.write(0, &block).unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
    target.misbehave([Misbehaviour::Silence]);
    // A read has another try.
    namespace.read(0, &block).unwrap();
}

#[test]
fn a_target_that_stays_away_ends_every_request_in_bounded_time() {
    let target = FakeTarget::new(16);
    let policy = Reconnect {
        delay: Duration::from_millis(5),
        max_delay: Duration::from_millis(5),
        give_up_after: Duration::from_millis(100),
    };
    let controller = connect(&target, options().reconnect(policy)).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let block = controller.allocate(512).unwrap();
    let mut queue = controller.take_queue().unwrap();
    let own = controller.allocate(512).unwrap();
    target.go_away();
    queue.submit(Request::read(&namespace, 0, own)).unwrap();
    let started = Instant::now();
    let error = namespace.read(0, &block).unwrap_err();
    assert!(matches!(error, Error::Disconnected { .. }), "{error}");
    let finished = queue.wait(Duration::from_secs(20)).unwrap();
    finished.result.unwrap_err();
    assert!(finished.buffer.is_some());
    assert!(started.elapsed() < Duration::from_secs(20));
    assert!(!controller.is_connected());
    assert!(matches!(controller.namespaces(), Err(Error::Disconnected { .. })));
}

#[test]
fn without_reconnecting_the_first_loss_is_the_last() {
    let target = FakeTarget::new(16);
    let controller = connect(&target, options().reconnect(Reconnect::NEVER)).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let block = controller.allocate(512).unwrap();
    target.cut();
    assert!(matches!(namespace.read(0, &block), Err(Error::Disconnected { .. })));
}

#[test]
fn a_connection_that_is_lost_while_idle_is_made_anew() {
    let target = FakeTarget::new(16);
    let keep_alive = Some(Duration::from_millis(20));
    let controller = connect(&target, options().keep_alive(keep_alive)).unwrap();
    for _ in 0..5 {
        target.cut();
        let started = Instant::now();
        while target.lock().keep_alives < 3 {
            assert!(started.elapsed() < Duration::from_secs(20));
            thread::sleep(Duration::from_millis(5));
        }
        target.lock().keep_alives = 0;
    }
    assert!(controller.is_connected());
}

#[test]
fn a_target_that_stops_to_answer_is_given_up_after_the_keep_alive_time() {
    let target = FakeTarget::new(16);
    let settings = options()
        .keep_alive(Some(Duration::from_millis(200)))
        .connect_timeout(Duration::from_secs(3600))
        .reconnect(Reconnect::NEVER);
    let controller = connect(&target, settings).unwrap();
    target.lock().keep_alive_status = None;
    let started = Instant::now();
    while controller.is_connected() {
        assert!(started.elapsed() < Duration::from_secs(60), "nobody noticed");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_refused_keep_alive_ends_the_connection_and_not_just_what_was_asked_meanwhile() {
    let target = FakeTarget::new(16);
    let keep_alive = Some(Duration::from_millis(50));
    let controller = connect(&target, options().keep_alive(keep_alive)).unwrap();
    {
        let mut target = target.lock();
        target.identifies = false;
        target.keep_alive_status = Some(Status::new(StatusType::GENERIC, 0x19));
    }
    let error = controller.namespaces().unwrap_err();
    assert!(matches!(error, Error::ConnectionLost { .. }), "{error}");
    {
        let mut target = target.lock();
        target.identifies = true;
        target.keep_alive_status = Some(Status::SUCCESS);
    }
    let started = Instant::now();
    let namespaces = loop {
        match controller.namespaces() {
            Ok(namespaces) => break namespaces,
            Err(Error::ConnectionLost { .. }) => thread::sleep(Duration::from_millis(1)),
            Err(other) => panic!("{other}"),
        }
        assert!(started.elapsed() < Duration::from_secs(20));
    };
    assert_eq!(namespaces, [1]);
}

#[test]
fn memory_that_cannot_be_registered_is_no_fault_of_the_connection() {
    let target = FakeTarget::new(16);
    let controller = connect(&target, options().reconnect(Reconnect::NEVER)).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let block = controller.allocate(512).unwrap();
    target.lock().registers = false;
    for refused in [
        controller.namespaces().map(drop),
        controller.namespace(1).map(drop),
        controller.allocate(512).map(drop),
        namespace.deallocate(&[Range { first_block: 0, blocks: 1 }]),
    ] {
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::Transport { .. }), "{error}");
        assert!(error.to_string().contains("registering memory"), "{error}");
    }
    assert!(controller.is_connected());
    namespace.write(0, &block).unwrap();
}

#[test]
fn a_queue_dropped_with_requests_in_flight_gives_up_the_connection_and_nothing_else() {
    let target = FakeTarget::new(16);
    let controller = connect(&target, options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let block = controller.allocate(512).unwrap();
    for _ in 0..5 {
        let mut queue = controller.take_queue().unwrap();
        target.misbehave([Misbehaviour::Silence; 2]);
        for _ in 0..2 {
            let buffer = controller.allocate(512).unwrap();
            queue.submit(Request::read(&namespace, 0, buffer)).unwrap();
        }
        assert!(queue.poll().is_none());
        drop(queue);
        target.lock().misbehaviours.clear();
        namespace.read(0, &block).unwrap();
    }
}

#[test]
fn others_are_told_that_a_queue_was_dropped_and_not_that_the_controller_is_closed() {
    let target = FakeTarget::new(16);
    let controller = connect(&target, options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let (mut first, mut second) =
        (controller.take_queue().unwrap(), controller.take_queue().unwrap());
    target.misbehave([Misbehaviour::Silence; 2]);
    for queue in [&mut first, &mut second] {
        let buffer = controller.allocate(512).unwrap();
        queue.submit(Request::write(&namespace, 0, buffer)).unwrap();
        assert!(queue.poll().is_none());
    }
    drop(first);
    let error = second.wait(Duration::from_secs(20)).unwrap().result.unwrap_err();
    let Error::OutcomeUnknown { cause, .. } = error else { panic!("{error}") };
    assert!(matches!(*cause, Error::QueueDropped { queue: 1 }), "{cause}");
}

#[test]
fn a_target_with_fewer_queues_after_a_loss_leaves_the_others_working() {
    let target = FakeTarget::new(16);
    let controller = connect(&target, options().io_queues(2)).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let mut first = controller.take_queue().unwrap();
    let mut second = controller.take_queue().unwrap();
    target.lock().queues = 1;
    target.cut();
    let mut outcomes = Vec::new();
    for queue in [&mut first, &mut second] {
        let buffer = controller.allocate(512).unwrap();
        outcomes.push(match queue.submit(Request::read(&namespace, 0, buffer)) {
            Ok(_) => queue.wait(Duration::from_secs(20)).unwrap().result,
            Err(refused) => Err(refused.error),
        });
    }
    assert!(outcomes[0].is_ok(), "{:?}", outcomes[0]);
    assert!(matches!(outcomes[1], Err(Error::Unsupported { .. })), "{:?}", outcomes[1]);
}

#[test]
fn blocking_calls_use_the_queues_that_are_left_after_a_loss() {
    let target = FakeTarget::new(16);
    let controller = connect(&target, options().io_queues(4)).unwrap();
    let namespace = controller.namespace(1).unwrap();
    target.lock().queues = 1;
    target.cut();
    let block = controller.allocate(512).unwrap();
    while namespace.read(0, &block).is_err() {}
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let block = controller.allocate(512).unwrap();
                for first in 0..16 {
                    namespace.read(first, &block).unwrap();
                }
            });
        }
    });
    let queue = controller.take_queue::<crate::Buffer>().unwrap();
    assert!(matches!(controller.take_queue::<crate::Buffer>(), Err(Error::Unsupported { .. })));
    assert!(matches!(namespace.read(0, &block), Err(Error::Unsupported { .. })));
    drop(queue);
    namespace.read(0, &block).unwrap();
}

#[test]
fn a_namespace_that_is_another_one_after_a_loss_is_left_alone() {
    let target = FakeTarget::new(16);
    let controller = connect(&target, options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let block = controller.allocate(512).unwrap();
    namespace.write(0, &block).unwrap();
    let writes = target.count(Opcode::WRITE);
    // As large in bytes, and formatted anew.
    target.lock().namespace.formats[0].data_size_exponent = 10;
    target.lock().namespace.size_in_blocks = 8;
    target.cut();
    for _ in 0..2 {
        let error = namespace.write(0, &block).unwrap_err();
        assert!(matches!(error, Error::NamespaceChanged { namespace: 1 }), "{error}");
    }
    assert_eq!(target.count(Opcode::WRITE), writes);
    let anew = controller.namespace(1).unwrap();
    anew.write(0, &controller.allocate(1024).unwrap()).unwrap();
    assert!(matches!(namespace.write(0, &block), Err(Error::NamespaceChanged { .. })));

    // A namespace that only grew is the same one.
    target.lock().namespace.size_in_blocks = 16;
    target.cut();
    anew.write(7, &controller.allocate(1024).unwrap()).unwrap();
}

#[test]
fn every_acknowledged_write_survives_two_hundred_random_losses() {
    const BLOCKS: usize = 256;
    let target = FakeTarget::new(BLOCKS as u64);
    let controller = connect(&target, options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let mut queue = controller.take_queue().unwrap();
    let mut random = Random::new(12);
    // What each block may hold: the last acknowledged value, and values of unknown outcome since.
    let mut possible: Vec<Vec<u8>> = vec![vec![0]; BLOCKS];
    for round in 0..200 {
        for _ in 0..random.below(20) {
            target.misbehave([Misbehaviour::Refuse(Status::new(StatusType::GENERIC, 0x21))]);
        }
        let mut submitted = Vec::new();
        for _ in 0..random.below(40) + 1 {
            let block = random.below(BLOCKS);
            if submitted.iter().any(|(_, other, _)| *other == block) {
                continue;
            }
            let value = random.next().to_le_bytes()[0];
            let buffer = controller.allocate(512).unwrap();
            buffer.write_at(0, &[value; 512]).unwrap();
            let request = Request::write(&namespace, block as u64, buffer);
            submitted.push((queue.submit(request).unwrap(), block, value));
        }
        if round % 2 == 0 {
            queue.poll().into_iter().for_each(|finished| {
                settle(&mut possible, &mut submitted, &finished);
            });
        }
        target.cut();
        while !submitted.is_empty() {
            let finished = queue.wait(Duration::from_secs(30)).expect("every request ends");
            settle(&mut possible, &mut submitted, &finished);
        }
        target.lock().misbehaviours.clear();
        let buffer = controller.allocate(BLOCKS * 512).unwrap();
        namespace.read(0, &buffer).unwrap();
        for (block, held) in buffer.to_vec().chunks_exact(512).enumerate() {
            assert!(held.iter().all(|byte| *byte == held[0]));
            assert!(possible[block].contains(&held[0]), "block {block} in round {round}");
            possible[block] = vec![held[0]];
        }
    }
}

fn settle(
    possible: &mut [Vec<u8>],
    submitted: &mut Vec<(crate::Ticket, usize, u8)>,
    finished: &crate::Finished<crate::Buffer>,
) {
    let position = submitted.iter().position(|(ticket, ..)| *ticket == finished.ticket).unwrap();
    let (_, block, value) = submitted.swap_remove(position);
    match &finished.result {
        Ok(()) => possible[block] = vec![value],
        Err(_) => possible[block].push(value),
    }
}
