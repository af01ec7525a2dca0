//! Streams over connections of the connection manager, each served by a task.

use std::{future::Future, net::SocketAddr, sync::Arc, time::Instant};

use ibverbs::{
    AsyncCompletionQueue, Completion, Context, ProtectionDomain, QueuePair, Rc, RecvWr, Reset,
    SendWr,
    connection::{Connection, Listener, Parameters, Route},
};
use tokio::time::timeout;

use crate::{
    common::{PATIENCE, is_quiet, link::Link},
    support::{LENGTH, Slots, WINDOW, message, messages, slot_of, two_processes},
};

/// Connections, each with its share of the messages.
const CONNECTIONS: u64 = 4;

/// What a connection is made of, besides itself.
struct End {
    queue: AsyncCompletionQueue,
    slots: Slots,
    domain: Arc<ProtectionDomain<'static>>,
}

impl End {
    fn new(context: &Arc<Context>) -> Self {
        let domain = Arc::new(ProtectionDomain::allocate(context).unwrap());
        let capacity = u32::try_from(2 * WINDOW).unwrap();
        let queue = AsyncCompletionQueue::create(context, capacity).unwrap();
        Self { queue, slots: Slots::new(&domain, WINDOW), domain }
    }

    fn pair(&self) -> QueuePair<'static, Rc, Reset> {
        let room = u32::try_from(WINDOW).unwrap();
        let builder = QueuePair::builder(&self.domain, &self.queue, &self.queue);
        builder.max_send_requests(room).max_receive_requests(room).create().unwrap()
    }

    fn receive(&self, slot: usize) -> RecvWr<'_> {
        RecvWr::to(slot as u64, self.slots.room(slot))
    }

    /// Waits until there are completions; see [`awaited`](crate::support::awaited).
    async fn awaited<'s>(&self, found: &'s mut [Completion], count: u64) -> &'s [Completion] {
        let began = Instant::now();
        let found = timeout(PATIENCE, self.queue.wait(found)).await;
        assert!(found.is_ok() && began.elapsed() < PATIENCE, "asleep after {count} completions");
        found.unwrap().unwrap()
    }
}

fn parameters() -> Parameters {
    Parameters::new().timeout(PATIENCE)
}

#[test]
fn streams_over_connections_between_tasks_lose_no_completion_and_no_wake_up() {
    two_processes(
        "connections::streams_over_connections_between_tasks_lose_no_completion_and_no_wake_up",
        receive,
        send,
    );
}

fn receive(_device: &str, mut link: Link) {
    block_on(async {
        let listener = Listener::bind("10.99.1.1:0".parse().unwrap()).unwrap();
        link.exchange(listener.local_address().unwrap().port().to_be_bytes());
        let mut tasks = Vec::new();
        for _ in 0..CONNECTIONS {
            let request = timeout(PATIENCE, listener.request()).await.unwrap().unwrap();
            let end = End::new(&request.context().unwrap());
            let lane = u64::from(request.private_data()[0]);
            let pair = request.initialize(end.pair()).unwrap();
            // Before the peer can send.
            for slot in 0..WINDOW {
                pair.post_receive(&mut [end.receive(slot)]).unwrap();
            }
            let accepting = request.start_accept(pair, &parameters()).unwrap();
            tasks.push(tokio::spawn(async move {
                let connection = timeout(PATIENCE, accepting.into_future()).await.unwrap().unwrap();
                take_stream(&connection, &end, lane).await;
                timeout(PATIENCE, connection.disconnected()).await.unwrap().unwrap();
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
    link.meet();
}

async fn take_stream(connection: &Connection<'_>, end: &End, lane: u64) {
    let mut found = Completion::slots::<16>();
    let (count, mut next) = (messages() / CONNECTIONS, 0);
    while next < count {
        for completion in end.awaited(&mut found, next).await {
            let work = completion.outcome().unwrap();
            let slot = slot_of(work.id());
            assert_eq!(work.byte_length() as usize, LENGTH);
            assert_eq!(end.slots.read(slot, 0), message(lane, next), "message {next} of {lane}");
            next += 1;
            connection.queue_pair().post_receive(&mut [end.receive(slot)]).unwrap();
        }
    }
}

fn send(_device: &str, mut link: Link) {
    let port = u16::from_be_bytes(link.exchange([0; 2]));
    let server = SocketAddr::from(([10, 99, 1, 1], port));
    block_on(async {
        let tasks: Vec<_> = (0..CONNECTIONS)
            .map(|lane| {
                tokio::spawn(async move {
                    let (connection, end) = connect(server, lane).await;
                    give_stream(&connection, &end, lane).await;
                    assert!(is_quiet(end.queue.queue()), "more completions than requests");
                    connection.disconnect().unwrap();
                    timeout(PATIENCE, connection.disconnected()).await.unwrap().unwrap();
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    link.meet();
}

async fn connect(server: SocketAddr, lane: u64) -> (Connection<'static>, End) {
    let resolving = Route::to(server).timeout(PATIENCE).start().unwrap();
    let route = timeout(PATIENCE, resolving.into_future()).await.unwrap().unwrap();
    let end = End::new(&route.context().unwrap());
    let pair = route.initialize(end.pair()).unwrap();
    let parameters = parameters().private_data([u8::try_from(lane).unwrap()]);
    let connecting = route.start_connect(pair, &parameters).unwrap();
    (timeout(PATIENCE, connecting.into_future()).await.unwrap().unwrap(), end)
}

async fn give_stream(connection: &Connection<'_>, end: &End, lane: u64) {
    let (count, window) = (messages() / CONNECTIONS, WINDOW as u64);
    let mut found = Completion::slots::<16>();
    let (mut sent, mut done) = (0, 0);
    while done < count {
        while sent < count && sent < done + window {
            let from = end.slots.fill(slot_of(sent % window), &message(lane, sent));
            let send = SendWr::send(from).id(sent).signaled();
            connection.queue_pair().post_send(&mut [send]).unwrap();
            sent += 1;
        }
        for completion in end.awaited(&mut found, done).await {
            let work = completion.outcome().unwrap();
            assert_eq!(work.id(), done, "a completion is missing or doubled");
            done += 1;
        }
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap().block_on(future)
}
