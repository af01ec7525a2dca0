//! Everything at once: threads that block, queues with owners who leave in the middle, and a target that
//! breaks every rule now and then.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{connect, options};
use crate::{
    Buffer, Controller, Error, Namespace, Request, Result, Status, StatusType,
    fake::{FakeTarget, Misbehaviour},
    testing::Random,
};

/// Blocks that one thread has for itself.
const BLOCKS: u64 = 8;

const BLOCKING: u64 = 4;
const OWNERS: u64 = 2;

/// How often something goes wrong.
const TROUBLES: usize = 800;

/// What the blocks of one thread may hold: what was acknowledged last, and everything of unknown outcome
/// since.
struct Ledger {
    first: u64,
    possible: Vec<Vec<u8>>,
}

impl Ledger {
    fn new(thread: u64) -> Self {
        let blocks = usize::try_from(BLOCKS).unwrap();
        Self { first: thread * BLOCKS, possible: vec![vec![0]; blocks] }
    }

    fn wrote(&mut self, block: usize, value: u8, acknowledged: bool) {
        if acknowledged {
            self.possible[block].clear();
        }
        self.possible[block].push(value);
    }

    fn read(&mut self, block: usize, held: &[u8]) {
        assert!(held.iter().all(|byte| *byte == held[0]), "block {block} is mixed");
        let possible = &mut self.possible[block];
        assert!(possible.contains(&held[0]), "block {block}: {} of {possible:?}", held[0]);
        *possible = vec![held[0]];
    }
}

fn block_on_requests(
    controller: &Controller,
    namespace: &Namespace,
    thread: u64,
    is_over: &AtomicBool,
) {
    let mut random = Random::new(100 + thread);
    let mut ledger = Ledger::new(thread);
    let buffer = controller.allocate(512).unwrap();
    while !is_over.load(Ordering::Relaxed) {
        let block = random.below(ledger.possible.len());
        let first = ledger.first + block as u64;
        if random.below(2) == 0 {
            let value = random.next().to_le_bytes()[0];
            buffer.write_at(0, &[value; 512]).unwrap();
            ledger.wrote(block, value, ended_well(&namespace.write(first, &buffer)));
        } else if ended_well(&namespace.read(first, &buffer)) {
            ledger.read(block, &buffer.to_vec());
        }
    }
}

/// Whether it did; an error is the target's doing, never that of other threads of this host.
fn ended_well(result: &Result<()>) -> bool {
    assert!(!matches!(result, Err(Error::Closed)), "a queue went away under a blocking call");
    result.is_ok()
}

/// Submits several requests at once, and leaves with some of them in flight now and then.
fn own_queues(controller: &Controller, namespace: &Namespace, thread: u64, is_over: &AtomicBool) {
    let mut random = Random::new(200 + thread);
    let mut ledger = Ledger::new(thread);
    while !is_over.load(Ordering::Relaxed) {
        let Ok(mut queue) = controller.take_queue::<Buffer>() else {
            thread::yield_now();
            continue;
        };
        for _ in 0..4 {
            let mut submitted = Vec::new();
            for block in 0..ledger.possible.len() {
                let is_read = random.below(2) == 0;
                let value = random.next().to_le_bytes()[0];
                let buffer = controller.allocate(512).unwrap();
                buffer.write_at(0, &[value; 512]).unwrap();
                let first = ledger.first + block as u64;
                let request = if is_read {
                    Request::read(namespace, first, buffer)
                } else {
                    Request::write(namespace, first, buffer)
                };
                match queue.submit(request).map_err(Error::from) {
                    Ok(ticket) => submitted.push((ticket, block, (!is_read).then_some(value))),
                    // The target has fewer queues by now.
                    Err(Error::Unsupported { .. }) => break,
                    Err(other) => panic!("{other}"),
                }
            }
            let stays = !submitted.is_empty() && random.below(4) > 0;
            while !submitted.is_empty() && (stays || random.below(4) > 0) {
                let Some(finished) = queue.wait(Duration::from_secs(60)) else {
                    panic!("a request did not end");
                };
                let at = submitted.iter().position(|(ticket, ..)| *ticket == finished.ticket);
                let (_, block, written) = submitted.swap_remove(at.unwrap());
                match (written, &finished.result) {
                    (Some(value), result) => ledger.wrote(block, value, result.is_ok()),
                    (None, Ok(())) => ledger.read(block, &finished.buffer.unwrap().to_vec()),
                    (None, Err(_)) => {}
                }
            }
            for (_, block, written) in submitted.drain(..) {
                written.into_iter().for_each(|value| ledger.wrote(block, value, false));
            }
            if !stays {
                break;
            }
        }
    }
}

fn misbehave(target: &FakeTarget) {
    let mut random = Random::new(300);
    let busy = Status::new(StatusType::GENERIC, 0x21);
    let broken = Status::new(StatusType::MEDIA, 0x81).do_not_retry();
    for _ in 0..TROUBLES {
        target.misbehave(match random.below(40) {
            0 => [Misbehaviour::CutBefore],
            1 => [Misbehaviour::CutAfter],
            2 => [Misbehaviour::WrongCommandId],
            3 => [Misbehaviour::Repeat],
            4 => [Misbehaviour::BadHead],
            5 => [Misbehaviour::ShortCapsule],
            6 => [Misbehaviour::Silence],
            7..=20 => [Misbehaviour::Refuse(busy)],
            _ => [Misbehaviour::Refuse(broken)],
        });
        if random.below(40) == 0 {
            target.cut();
        }
        if random.below(40) == 0 {
            target.lock().queues = u16::try_from(3 + random.below(3)).unwrap();
        }
        thread::sleep(Duration::from_millis(1 + random.next() % 4));
    }
    target.lock().misbehaviours.clear();
}

#[test]
fn whatever_goes_wrong_requests_end_and_acknowledged_blocks_stay() {
    let threads = BLOCKING + OWNERS;
    let target = FakeTarget::new(threads * BLOCKS);
    let controller = connect(&target, options().io_queues(4)).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (controller, namespace, is_over) = (&controller, &namespace, &is_over);
        let work: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    if thread < BLOCKING {
                        block_on_requests(controller, namespace, thread, is_over);
                    } else {
                        own_queues(controller, namespace, thread, is_over);
                    }
                })
            })
            .collect();
        misbehave(&target);
        is_over.store(true, Ordering::Relaxed);
        let ended: Vec<_> = work.into_iter().map(thread::ScopedJoinHandle::join).collect();
        assert!(ended.iter().all(std::result::Result::is_ok));
    });
    let buffer = controller.allocate(512).unwrap();
    while namespace.write(0, &buffer).is_err() {}
}

/// Futures that are dropped after any time. What they wrote may arrive at any time after.
#[cfg(feature = "tokio")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_futures_leave_everything_else_alone() {
    const TASKS: u64 = 8;
    let target = FakeTarget::new(TASKS * BLOCKS);
    let controller = Arc::new(connect(&target, options().io_queues(1)).unwrap());
    let namespace = Arc::new(controller.namespace(1).unwrap());
    let queue = controller.take_async_queue::<Buffer>().unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (controller, namespace) = (Arc::clone(&controller), Arc::clone(&namespace));
            let (queue, is_over) = (queue.clone(), Arc::clone(&is_over));
            tokio::spawn(async move {
                let mut random = Random::new(400 + task);
                let mut ledger = Ledger::new(task);
                let mut late: Vec<Vec<u8>> = vec![Vec::new(); ledger.possible.len()];
                while !is_over.load(Ordering::Relaxed) {
                    let block = random.below(late.len());
                    let first = ledger.first + block as u64;
                    let value = random.next().to_le_bytes()[0];
                    let is_read = random.below(2) == 0;
                    let buffer = controller.allocate(512).unwrap();
                    buffer.write_at(0, &[value; 512]).unwrap();
                    let request = if is_read {
                        Request::read(&namespace, first, buffer)
                    } else {
                        Request::write(&namespace, first, buffer)
                    };
                    let patience = Duration::from_micros(random.next() % 20_000);
                    let finished = match tokio::time::timeout(patience, queue.run(request)).await {
                        Ok(finished) => finished.map_err(Error::from),
                        Err(_) if is_read => continue,
                        Err(_) => {
                            late[block].push(value);
                            continue;
                        }
                    };
                    match finished {
                        // One queue is always granted.
                        Err(error) => panic!("{error}"),
                        Ok(finished) if is_read => {
                            if finished.result.is_ok() {
                                ledger.possible[block].extend(&late[block]);
                                ledger.read(block, &finished.buffer.unwrap().to_vec());
                            }
                        }
                        Ok(finished) => ledger.wrote(block, value, finished.result.is_ok()),
                    }
                }
            })
        })
        .collect();
    tokio::task::spawn_blocking(move || misbehave(&target)).await.unwrap();
    is_over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    drop(queue);
    let started = Instant::now();
    while controller.take_queue::<Buffer>().is_err() {
        assert!(started.elapsed() < Duration::from_secs(60), "the queue does not come back");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
