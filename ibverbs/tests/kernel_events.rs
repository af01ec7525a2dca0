//! Completion, events and owned transfers on a real kernel device. `cargo testbed test ibverbs`
//! runs them in the guest.
//!
//! `RDMA4RS_MESSAGES` is how many messages a stream has.
#![expect(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "a test that is skipped says so")]

use std::{
    env,
    future::Future,
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use ibverbs::{
    Access, AsyncCompletionQueue, AsyncEvent, AsyncEventKind, AsyncQueuePair, Completion,
    CompletionChannel, CompletionFields, CompletionQueue, CompletionQueueBuilder, CompletionStatus,
    ConnectOptions, Context, DeviceSelector, Error, EventSource, LocalPort, MemoryRegion,
    Notification, OwnedBuffer, OwnedQueuePair, Poller, ProtectionDomain, QueuePair, Rc, RecvWr,
    SendWr, SharedReceiveQueue, SharedReceiveQueueOptions,
};

/// Longer than anything takes, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Receives that are posted, and sends that are outstanding at most.
const WINDOW: u32 = 64;

/// An open device with a domain.
struct Host {
    domain: Arc<ProtectionDomain<'static>>,
    context: Arc<Context>,
    port: LocalPort,
}

type Queue = Arc<CompletionQueue<'static>>;
type Pair = QueuePair<'static, Rc>;

impl Host {
    /// The device that the environment names; `None`, which is told, if there is none and none is demanded.
    fn open() -> Option<Self> {
        let selector = DeviceSelector::from_env().unwrap();
        let context = ibverbs::devices()
            .and_then(|devices| devices.select(&selector))
            .and_then(|device| device.open());
        match context {
            Ok(context) => Some(Self::of(Arc::new(context), &selector)),
            Err(error) if env::var("RDMA_REQUIRE_DEVICE").as_deref() == Ok("1") => {
                panic!("{error}")
            }
            Err(error) => {
                println!("skipped: {error}");
                None
            }
        }
    }

    fn of(context: Arc<Context>, selector: &DeviceSelector) -> Self {
        let port = context.local_port(selector).unwrap();
        let domain = Arc::new(ProtectionDomain::allocate(&context).unwrap());
        Self { domain, context, port }
    }

    fn options(&self) -> ConnectOptions {
        ConnectOptions::new(&self.port).access(Access::REMOTE_READ | Access::REMOTE_WRITE)
    }

    fn channel(&self) -> Arc<CompletionChannel<'static>> {
        Arc::new(CompletionChannel::create(&self.context).unwrap())
    }

    /// A queue with a channel of its own.
    fn queue(
        &self,
        with: impl FnOnce(CompletionQueueBuilder<'static>) -> CompletionQueueBuilder<'static>,
    ) -> Queue {
        let builder = CompletionQueue::builder(&self.context, 4 * WINDOW).channel(self.channel());
        Arc::new(with(builder).create().unwrap())
    }

    /// Two queue pairs that are connected; each reports all its work to one queue.
    fn pairs(&self, queues: [&Queue; 2]) -> [Pair; 2] {
        let [a, b] = queues.map(|queue| {
            let builder = QueuePair::<Rc, _>::builder(&self.domain, queue, queue);
            let builder = builder.max_send_requests(WINDOW).max_receive_requests(WINDOW);
            builder.max_inline(16).create().unwrap()
        });
        let (to_a, to_b) = (a.endpoint(&self.port), b.endpoint(&self.port));
        [a.connect(&to_b, &self.options()).unwrap(), b.connect(&to_a, &self.options()).unwrap()]
    }

    fn owned(&self) -> [OwnedQueuePair<'static, Rc, Vec<u8>>; 2] {
        let [a, b] =
            [(); 2].map(|()| OwnedQueuePair::create(&self.domain, WINDOW, WINDOW).unwrap());
        let (to_a, to_b) = (a.endpoint(&self.port), b.endpoint(&self.port));
        [a.connect(&to_b, &self.options()).unwrap(), b.connect(&to_a, &self.options()).unwrap()]
    }

    fn buffer(&self, bytes: Vec<u8>) -> OwnedBuffer<'static, Vec<u8>> {
        OwnedBuffer::register(&self.domain, bytes).unwrap()
    }
}

/// How many messages a stream has.
fn messages() -> u32 {
    env::var("RDMA4RS_MESSAGES").map_or(20_000, |count| count.parse().unwrap())
}

fn post_credit(pair: &Pair) {
    pair.post_receive(&mut [RecvWr::new(0)]).unwrap();
}

fn send(pair: &Pair, number: u32) {
    pair.post_send(&mut [SendWr::send_with_imm(&[], number).signaled()]).unwrap();
}

/// Sends a stream of numbers, at most a window of them ahead of their completions.
fn send_stream(pair: &Pair, count: u32) {
    let mut slots = Completion::slots::<16>();
    let (mut sent, mut done) = (0, 0);
    while done < count {
        while sent < count && sent - done < WINDOW {
            send(pair, sent);
            sent += 1;
        }
        let found = pair.send_queue().wait(&mut slots, PATIENCE).unwrap();
        assert!(!found.is_empty(), "asleep after {done} of {count} sends");
        for completion in found {
            completion.outcome().unwrap();
            done += 1;
        }
    }
}

#[test]
fn a_stream_between_threads_that_wait_loses_no_completion_and_no_wake_up() {
    let Some(host) = Host::open() else { return };
    let [sends, receives] = [(); 2].map(|()| host.queue(|builder| builder));
    let [a, b] = host.pairs([&sends, &receives]);
    (0..WINDOW).for_each(|_| post_credit(&b));
    let count = messages();
    thread::scope(|scope| {
        scope.spawn(|| send_stream(&a, count));
        let mut slots = Completion::slots::<16>();
        let mut next = 0;
        while next < count {
            let found = receives.wait(&mut slots, PATIENCE).unwrap();
            assert!(!found.is_empty(), "asleep after {next} of {count} messages");
            for completion in found {
                assert_eq!(completion.outcome().unwrap().immediate(), Some(next));
                next += 1;
                post_credit(&b);
            }
        }
    });
}

/// Each side falls asleep before each message.
#[test]
fn messages_that_go_back_and_forth_between_sleeping_threads_wake_them_each_time() {
    let Some(host) = Host::open() else { return };
    let [first, second] = [(); 2].map(|()| host.queue(|builder| builder.spin(Duration::ZERO)));
    let [a, b] = host.pairs([&first, &second]);
    let count = messages() / 10;
    let play = |pair: &Pair, begins: bool| {
        let mut slots = Completion::slots::<4>();
        let mut next = 0;
        if begins {
            send(pair, 0);
        }
        while next < count {
            let found = pair.receive_queue().wait(&mut slots, PATIENCE).unwrap();
            assert!(!found.is_empty(), "asleep in round {next} of {count}");
            for completion in found {
                let work = completion.outcome().unwrap();
                if !work.operation().is_receive() {
                    continue;
                }
                assert_eq!(work.immediate(), Some(next));
                post_credit(pair);
                next += 1;
                if !begins {
                    send(pair, next - 1);
                } else if next < count {
                    send(pair, next);
                }
            }
        }
    };
    (0..4).for_each(|_| [&a, &b].into_iter().for_each(post_credit));
    thread::scope(|scope| {
        scope.spawn(|| play(&b, false));
        play(&a, true);
    });
}

fn block_on<F: Future>(future: F) -> F::Output {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(future)
}

#[test]
fn a_stream_between_tasks_loses_no_completion_and_no_wake_up() {
    let Some(host) = Host::open() else { return };
    let count = messages();
    block_on(async {
        let [a, b] = host.owned().map(|pair| AsyncQueuePair::new(pair).unwrap());
        for _ in 0..WINDOW {
            b.post_receive(host.buffer(vec![0; 4])).unwrap();
        }
        let mut spare: Vec<_> = (0..WINDOW).map(|_| host.buffer(vec![0; 4])).collect();
        let sender = tokio::spawn(async move {
            let mut next = 0_u32;
            let mut flying = std::collections::VecDeque::new();
            while next < count || !flying.is_empty() {
                match spare.pop().filter(|_| next < count) {
                    Some(mut buffer) => {
                        buffer.copy_from_slice(&next.to_be_bytes());
                        flying.push_back(a.send(buffer).unwrap());
                        next += 1;
                    }
                    None => {
                        let oldest = flying.pop_front().unwrap();
                        let sent = tokio::time::timeout(PATIENCE, oldest).await.unwrap().unwrap();
                        sent.outcome().unwrap();
                        spare.push(sent.buffer);
                    }
                }
            }
            a
        });
        for next in 0..count {
            let received = tokio::time::timeout(PATIENCE, b.receive()).await;
            let received = received.unwrap_or_else(|_| panic!("asleep after {next} messages"));
            let received = received.unwrap();
            assert_eq!(received.received().unwrap(), next.to_be_bytes());
            b.post_receive(received.buffer).unwrap();
        }
        let a = sender.await.unwrap();
        assert_eq!((a.in_flight(), b.in_flight()), (0, usize::try_from(WINDOW).unwrap()));
    });
}

#[test]
fn a_task_that_waits_for_a_queue_is_woken_by_a_thread_that_sends() {
    let Some(host) = Host::open() else { return };
    let count = messages() / 10;
    let sends = host.queue(|builder| builder);
    block_on(async {
        let queue = AsyncCompletionQueue::create(&host.context, 4 * WINDOW).unwrap();
        let [a, b] = host.pairs([&sends, queue.queue()]);
        (0..WINDOW).for_each(|_| post_credit(&b));
        let sender = thread::spawn(move || send_stream(&a, count));
        let mut slots = Completion::slots::<16>();
        let mut next = 0;
        while next < count {
            let found = tokio::time::timeout(PATIENCE, queue.wait(&mut slots)).await;
            for completion in found.unwrap().unwrap() {
                assert_eq!(completion.outcome().unwrap().immediate(), Some(next));
                next += 1;
                post_credit(&b);
            }
        }
        sender.join().unwrap();
    });
}

#[test]
fn threads_that_share_a_channel_are_each_woken_for_their_own_queue() {
    let Some(host) = Host::open() else { return };
    let channel = host.channel();
    let sends = host.queue(|builder| builder);
    let count = messages() / 40;
    let sides: Vec<_> = (0..4)
        .map(|_| {
            let builder = CompletionQueue::builder(&host.context, 4 * WINDOW).channel(&channel);
            let queue = Arc::new(builder.create().unwrap());
            let [a, b] = host.pairs([&sends, &queue]);
            (0..WINDOW).for_each(|_| post_credit(&b));
            (a, b, queue)
        })
        .collect();
    thread::scope(|scope| {
        for (_, b, queue) in &sides {
            scope.spawn(move || {
                let mut slots = Completion::slots::<4>();
                let mut next = 0;
                while next < count {
                    let found = queue.wait(&mut slots, PATIENCE).unwrap();
                    assert!(!found.is_empty(), "asleep after {next} of {count} messages");
                    for completion in found {
                        assert_eq!(completion.queue_pair(), b.number());
                        assert_eq!(completion.outcome().unwrap().immediate(), Some(next));
                        next += 1;
                        post_credit(b);
                    }
                }
            });
        }
        let mut slots = Completion::slots::<4>();
        for number in 0..count {
            sides.iter().for_each(|(a, ..)| send(a, number));
            let mut done = 0;
            while done < sides.len() {
                done += sends.wait(&mut slots, PATIENCE).unwrap().len();
            }
        }
    });
}

#[test]
fn an_extended_queue_shows_every_message_with_the_fields_asked_for() {
    let Some(host) = Host::open() else { return };
    let fields = CompletionFields::BYTE_LENGTH | CompletionFields::IMMEDIATE;
    let sends = host.queue(|builder| builder);
    let receives = host.queue(|builder| builder.fields(fields));
    let [a, b] = host.pairs([&sends, &receives]);
    (0..WINDOW).for_each(|_| post_credit(&b));
    let count = messages() / 4;
    thread::scope(|scope| {
        scope.spawn(|| send_stream(&a, count));
        let mut poller = Poller::of(&receives).unwrap();
        let mut next = 0;
        while next < count {
            let found = poller.wait(PATIENCE).unwrap();
            assert!(!found.is_empty(), "asleep after {next} of {count} messages");
            for completion in found {
                let work = completion.outcome().unwrap();
                assert_eq!((work.immediate(), work.byte_length()), (Some(next), Some(0)));
                assert_eq!((work.queue_pair(), work.timestamp()), (None, None));
                next += 1;
                post_credit(&b);
            }
        }
        assert!(poller.next().unwrap().is_none());
    });
}

#[test]
fn timestamps_are_told_or_refused_as_unsupported() {
    let Some(host) = Host::open() else { return };
    let builder = host.context.completion_queue(16).fields(CompletionFields::TIMESTAMP);
    match builder.create() {
        Ok(queue) => assert_eq!(queue.fields(), Some(CompletionFields::TIMESTAMP)),
        Err(Error::Unsupported { .. }) => {}
        Err(error) => assert_eq!(error.errno(), Some(libc::EOPNOTSUPP), "{error}"),
    }
    match host.context.device_clock() {
        Ok(before) => assert!(host.context.device_clock().unwrap() >= before),
        Err(Error::Unsupported { .. }) => {}
        Err(error) => assert_eq!(error.errno(), Some(libc::EOPNOTSUPP), "{error}"),
    }
}

#[test]
fn a_queue_is_resized_under_a_stream() {
    let Some(host) = Host::open() else { return };
    let [sends, receives] = [(); 2].map(|()| host.queue(|builder| builder));
    let [a, b] = host.pairs([&sends, &receives]);
    (0..WINDOW).for_each(|_| post_credit(&b));
    let count = messages() / 10;
    thread::scope(|scope| {
        scope.spawn(|| send_stream(&a, count));
        let mut slots = Completion::slots::<16>();
        let mut next = 0;
        while next < count {
            for completion in receives.wait(&mut slots, PATIENCE).unwrap() {
                assert_eq!(completion.outcome().unwrap().immediate(), Some(next));
                next += 1;
                post_credit(&b);
                if next % 100 == 0 {
                    let capacity = if next % 200 == 0 { 4 * WINDOW } else { 16 * WINDOW };
                    receives.resize(capacity).unwrap();
                    assert!(receives.capacity() >= capacity);
                }
            }
        }
    });
    assert_eq!(receives.resize(u32::MAX).unwrap_err().errno(), Some(libc::EINVAL));
}

#[test]
fn moderation_is_set_or_refused_as_unsupported() {
    let Some(host) = Host::open() else { return };
    match host.queue(|builder| builder).modify_moderation(16, Duration::from_micros(50)) {
        Ok(()) | Err(Error::Unsupported { .. }) => {}
        Err(error) => assert_eq!(error.errno(), Some(libc::EOPNOTSUPP), "{error}"),
    }
}

#[test]
fn queues_with_events_that_nobody_took_are_destroyed_without_a_wait() {
    let Some(host) = Host::open() else { return };
    let start = Instant::now();
    for taken in [false, true] {
        let [first, second] = [(); 2].map(|()| host.queue(|builder| builder));
        let [a, b] = host.pairs([&first, &second]);
        post_credit(&b);
        second.request_notification(Notification::Any).unwrap();
        send(&a, 0);
        while second.poll(&mut Completion::slots::<1>()).unwrap().is_empty() {}
        if taken {
            assert_eq!(second.channel().unwrap().next_event().unwrap(), second.id());
        }
    }
    assert!(start.elapsed() < PATIENCE);
}

fn next_event(host: &Host, kind: AsyncEventKind) -> AsyncEvent {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match host.context.try_next_event().unwrap() {
            Some(event) if event.kind == kind => return event,
            Some(_) => {}
            None => thread::sleep(Duration::from_millis(10)),
        }
        assert!(Instant::now() < deadline, "{kind} did not come");
    }
}

#[test]
fn a_peer_that_breaks_the_rules_raises_an_event_that_names_the_queue_pair() {
    let Some(host) = Host::open() else { return };
    let [first, second] = [(); 2].map(|()| host.queue(|builder| builder));
    let [a, b] = host.pairs([&first, &second]);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let memory = MemoryRegion::register(&host.domain, vec![0_u8; 64], access).unwrap();
    let stale = memory.remote();
    drop(memory);
    let word = host.domain.register(vec![0_u8; 64], Access::LOCAL_WRITE).unwrap();
    let to = stale.part(0..64).unwrap();
    a.post_send(&mut [SendWr::write(word.segment(..).unwrap(), &to).signaled()]).unwrap();
    let mut slots = Completion::slots::<1>();
    let found = first.wait(&mut slots, PATIENCE).unwrap();
    assert_eq!(found[0].status(), CompletionStatus::REMOTE_ACCESS_ERROR);
    let event = next_event(&host, AsyncEventKind::ACCESS_VIOLATION);
    assert_eq!(event.source, EventSource::QueuePair(b.number()));
}

#[test]
fn a_shared_receive_queue_that_runs_low_raises_its_limit_event() {
    let Some(host) = Host::open() else { return };
    let options = SharedReceiveQueueOptions::new(16);
    let shared = Arc::new(SharedReceiveQueue::create(&host.domain, options).unwrap());
    let [first, second] = [(); 2].map(|()| host.queue(|builder| builder));
    let [a, b] = [&first, &second].map(|queue| {
        let builder = QueuePair::<Rc, _>::builder(&host.domain, queue, queue);
        builder.shared_receive_queue(&shared).create().unwrap()
    });
    let (to_a, to_b) = (a.endpoint(&host.port), b.endpoint(&host.port));
    let a = a.connect(&to_b, &host.options()).unwrap();
    let b = b.connect(&to_a, &host.options()).unwrap();
    for id in 0..4 {
        shared.post_receive(&mut [RecvWr::new(id)]).unwrap();
    }
    shared.set_limit(3).unwrap();
    for number in 0..2 {
        send(&a, number);
    }
    let event = next_event(&host, AsyncEventKind::SHARED_RECEIVE_QUEUE_LIMIT);
    assert_eq!(event.source, EventSource::SharedReceiveQueue(shared.id()));
    drop(b);
}

#[test]
fn a_port_that_goes_down_and_up_raises_events() {
    if env::var("RDMA4RS_GUEST").is_err() {
        println!("skipped: takes a network interface down, in the guest only");
        return;
    }
    let run = |words: &str| {
        let status = Command::new("sh").args(["-c", words]).status().unwrap();
        assert!(status.success(), "{words}");
    };
    run("ip link add ev0 type dummy && ip link set ev0 up && ip address add 10.98.0.1/24 dev ev0");
    run("rdma link add rxe_ev type rxe netdev ev0");
    {
        let selector = DeviceSelector::named("rxe_ev");
        let device = ibverbs::devices().unwrap().select(&selector).unwrap();
        let host = Host::of(Arc::new(device.open().unwrap()), &selector);
        run("ip link set ev0 down");
        let event = next_event(&host, AsyncEventKind::PORT_DOWN);
        assert_eq!(event.source, EventSource::Port(host.port.port));
        run("ip link set ev0 up");
        let event = next_event(&host, AsyncEventKind::PORT_ACTIVE);
        assert_eq!(event.source, EventSource::Port(host.port.port));
    }
    run("rdma link delete rxe_ev && ip link delete ev0");
}

#[test]
fn owned_buffers_come_back_when_a_queue_pair_is_closed_and_are_freed_when_it_is_dropped() {
    let Some(host) = Host::open() else { return };
    for close in [true, false] {
        let [mut a, mut b] = host.owned();
        for byte in 0..WINDOW {
            b.post_receive(host.buffer(vec![u8::try_from(byte).unwrap(); 1024])).unwrap();
        }
        for _ in 0..8 {
            a.post_send(host.buffer(vec![0xaa; 512])).unwrap();
        }
        if close {
            let closed = b.close(PATIENCE).unwrap();
            assert_eq!(closed.finished.len(), usize::try_from(WINDOW).unwrap());
            for work in &closed.finished {
                match work.received() {
                    Ok(bytes) => assert_eq!(bytes, [0xaa; 512]),
                    Err(failed) => assert_eq!(failed.status, CompletionStatus::WORK_FLUSHED),
                }
            }
            drop(a);
        }
    }
}
