//! Datagram services and multicast groups that are found by address.

use std::{
    net::SocketAddr,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use ibverbs::{
    Address, AddressHandle, Completion, Context, Error, MemoryRegion, PortNumber, QueueKey,
    QueuePair, QueuePairNumber, RecvWr, Reset, RoutingHeader, SendWr, Ud,
    connection::{
        DatagramListener, DatagramPeer, EventKind, MemberKind, MulticastGroup, RejectReason, Route,
    },
};

use crate::{
    interoperation::Program,
    support::{End, IPV4, IPV6, PATIENCE, on_host, require_device},
};

/// A datagram queue pair, and room for one message each way.
struct Post {
    queue_pair: QueuePair<'static, Ud>,
    received: MemoryRegion<'static, Vec<u8>>,
    sent: MemoryRegion<'static, Vec<u8>>,
    /// Where receives complete.
    end: End,
    /// Where sends complete.
    sending: End,
}

type Activated = ibverbs::Result<QueuePair<'static, Ud>>;

impl Post {
    fn new(
        context: &Arc<Context>,
        activate: impl FnOnce(QueuePair<'static, Ud, Reset>) -> Activated,
    ) -> Self {
        let (end, sending) = (End::on(context), End::on(context));
        let builder = QueuePair::builder(&end.domain, &sending.queue, &end.queue);
        let queue_pair = activate(builder.create().unwrap()).unwrap();
        let (received, sent) = (end.memory(RoutingHeader::LENGTH + LENGTH), end.memory(LENGTH));
        Self { queue_pair, received, sent, end, sending }
    }

    fn post_receives(&self, count: usize) {
        for _ in 0..count {
            let receive = RecvWr::to(0, self.received.segment(..).unwrap());
            self.queue_pair.post_receive(&mut [receive]).unwrap();
        }
    }

    fn send(&self, message: &[u8], to: &DatagramPeer, handle: &AddressHandle<'_>) {
        self.sent.bytes().write(0, message).unwrap();
        let bytes = self.sent.segment(..message.len()).unwrap();
        let own = self.queue_pair.number().get();
        let send = SendWr::send_with_imm_to(bytes, to.destination(handle), own).signaled();
        self.queue_pair.post_send(&mut [send]).unwrap();
        self.sending.completion().outcome().unwrap();
    }

    /// The next message, and who sent it.
    fn receive(&self) -> (Vec<u8>, DatagramPeer) {
        let (message, completion) = self.receive_from_anybody();
        let work = completion.outcome().unwrap();
        let datagram = work.datagram(&self.received.bytes(), 0).unwrap();
        let (header, port) = (datagram.header.as_ref(), PortNumber::FIRST);
        let address = Address::reply(&self.end.domain, &work, header, port).unwrap();
        (message, DatagramPeer { address, number: datagram.queue_pair, queue_key: KEY })
    }

    fn receive_from_anybody(&self) -> (Vec<u8>, Completion) {
        let completion = self.end.completion();
        let work = completion.outcome().unwrap();
        let bytes = self.received.bytes();
        let datagram = work.datagram(&bytes, 0).unwrap();
        assert_eq!(work.immediate(), Some(datagram.queue_pair.get()));
        let start = datagram.payload_offset;
        (bytes.to_vec()[start..start + datagram.payload_length].to_vec(), completion)
    }
}

/// The key that the connection manager gives datagram queue pairs found by address and port.
const KEY: QueueKey = QueueKey(0x0123_4567);

const LENGTH: usize = 100;

#[test]
fn datagrams_go_both_ways_between_two_hosts() {
    require_device!();
    for address in ["10.99.1.1:0", "[fd00:99:1::1]:0"] {
        let (told, hear) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                on_host("a", || {
                    let listener = DatagramListener::bind(address.parse().unwrap()).unwrap();
                    told.send(listener.local_address().unwrap()).unwrap();
                    let request = listener.next(PATIENCE).unwrap();
                    assert_eq!(request.private_data()[..8], *b"who then");
                    assert_eq!(request.private_data().len(), 180);
                    let context = request.context().unwrap();
                    let post = Post::new(&context, |queue_pair| request.activate(queue_pair));
                    post.post_receives(2);
                    request.answer(&post.queue_pair, b"me").unwrap();
                    let (message, sender) = post.receive();
                    assert_eq!(message, b"a question");
                    let handle = sender.handle(&post.end.domain).unwrap();
                    post.send(b"an answer", &sender, &handle);
                });
            });
            let address = hear.recv().unwrap();
            on_host("b", || {
                let route = Route::to(address).resolve_datagrams().unwrap();
                let context = route.context().unwrap();
                let post = Post::new(&context, |queue_pair| route.activate(queue_pair));
                post.post_receives(1);
                let (peer, data) = route.look_up(b"who then", PATIENCE).unwrap();
                assert_eq!((&data[..3], data.len()), (&b"me\0"[..], 136));
                let handle = peer.handle(&post.end.domain).unwrap();
                post.send(b"a question", &peer, &handle);
                assert_eq!(post.receive().0, b"an answer");
            });
        });
    }
}

#[test]
fn a_service_that_is_not_there_or_says_no_is_told_apart() {
    require_device!();
    let listener = DatagramListener::bind(IPV4.parse().unwrap()).unwrap();
    let address = listener.local_address().unwrap();
    let look_up = || {
        let route = Route::to(address).resolve_datagrams().unwrap();
        route.look_up(b"", PATIENCE).unwrap_err()
    };
    thread::scope(|scope| {
        scope.spawn(|| listener.next(PATIENCE).unwrap().reject(b"closed").unwrap());
        let error = look_up();
        let Error::Rejected { reason, private_data, .. } = &error else { panic!("{error}") };
        assert_eq!(*reason, RejectReason::BY_THE_PROGRAM);
        assert_eq!(private_data[..6], *b"closed");
    });
    thread::scope(|scope| {
        scope.spawn(|| drop(listener.next(PATIENCE).unwrap()));
        assert!(matches!(look_up(), Error::Rejected { .. }));
    });
    drop(listener);
    let error = look_up();
    let Error::Rejected { reason, .. } = &error else { panic!("{error}") };
    assert_eq!(*reason, RejectReason::NOT_LISTENING);
}

#[test]
fn a_message_to_a_group_reaches_its_members() {
    require_device!();
    let member = |host: &str, address: &str| {
        on_host(host, || {
            let (group, from) = ("239.99.1.1:0".parse().unwrap(), address.parse().unwrap());
            MulticastGroup::join(group, Some(from), MemberKind::Full, PATIENCE).unwrap()
        })
    };
    let (receiving, sending) = (member("a", "10.99.1.1:0"), member("b", "10.99.1.2:0"));
    assert_eq!(sending.peer().number, QueuePairNumber::MULTICAST);
    let context = receiving.context().unwrap();
    let receiver = Post::new(&context, |queue_pair| receiving.activate(queue_pair));
    let context = sending.context().unwrap();
    let sender = Post::new(&context, |queue_pair| sending.activate(queue_pair));
    receiver.post_receives(1);
    let membership = receiving.attach(&receiver.queue_pair).unwrap();
    let handle = sending.peer().handle(&sender.end.domain).unwrap();
    sender.send(b"to whom it may concern", sending.peer(), &handle);
    assert_eq!(receiver.receive_from_anybody().0, b"to whom it may concern");
    assert!(sending.try_event().unwrap().is_none());
    // The membership of the queue pair and that of the port end in any order.
    drop(receiving);
    drop(membership);
}

#[test]
fn a_group_of_a_family_that_the_kernel_does_not_join_says_so() {
    require_device!();
    let (group, from) = ("[ff0e::99:1]:0".parse().unwrap(), IPV6.parse().unwrap());
    let error = MulticastGroup::join(group, Some(from), MemberKind::Full, PATIENCE).unwrap_err();
    assert!(error.to_string().contains("IPv4"), "{error}");
}

#[test]
fn groups_are_left_and_identifiers_dropped_while_they_join() {
    use ibverbs::connection::{EventChannel, Identifier, PortSpace};
    require_device!();
    let group: SocketAddr = "239.99.1.2:0".parse().unwrap();
    let channel = EventChannel::create().unwrap();
    let identifier = Identifier::create(&channel, PortSpace::UDP).unwrap();
    let early = identifier.join_multicast(group, MemberKind::Full).unwrap_err();
    assert!(matches!(early, Error::Invalid { .. }), "{early}");
    let source = IPV4.parse().unwrap();
    identifier.resolve_address(Some(source), group, PATIENCE).unwrap();
    let event = channel.wait_event(PATIENCE).unwrap().unwrap();
    event.expect(EventKind::ADDRESS_RESOLVED).unwrap();
    identifier.leave_multicast(group).unwrap_err();
    for _ in 0..8 {
        identifier.join_multicast(group, MemberKind::Full).unwrap();
        identifier.leave_multicast(group).unwrap();
    }
    identifier.join_multicast(group, MemberKind::Full).unwrap();
    let event = channel.wait_event(PATIENCE).unwrap().unwrap();
    assert!(event.private_data().is_empty());
    assert!(event.datagram_peer().is_some());
    drop(identifier);
    assert!(channel.wait_event(Duration::from_millis(50)).unwrap().is_none());
}

/// Its port cannot be chosen.
const UDADDY: &str = "10.99.1.1:7174";

#[test]
fn udaddy_as_the_client_is_served() {
    require_device!();
    on_host("a", || {
        let listener = DatagramListener::bind(UDADDY.parse().unwrap()).unwrap();
        let count = 10;
        let client = Program::start("b", &["udaddy", "-s", "10.99.1.1", "-C", "10", "-S", "100"]);
        let request = listener.next(PATIENCE).unwrap();
        let context = request.context().unwrap();
        let post = Post::new(&context, |queue_pair| request.activate(queue_pair));
        post.post_receives(count);
        request.answer(&post.queue_pair, b"").unwrap();
        let mut sender = None;
        for _ in 0..count {
            let (message, from) = post.receive();
            assert_eq!(message.len(), LENGTH);
            sender = Some(from);
        }
        let sender = sender.unwrap();
        let handle = sender.handle(&post.end.domain).unwrap();
        for _ in 0..count {
            post.send(&[7; LENGTH], &sender, &handle);
        }
        let text = client.end();
        assert!(text.contains("return status 0"), "{text}");
    });
}

#[test]
fn udaddy_as_the_server_serves() {
    require_device!();
    let server = Program::start("a", &["udaddy", "-b", "10.99.1.1", "-C", "10", "-S", "100"]);
    on_host("b", || {
        let address = UDADDY.parse().unwrap();
        let deadline = Instant::now() + PATIENCE;
        let (post, peer) = loop {
            assert!(Instant::now() < deadline, "udaddy does not listen");
            let route = Route::to(address).resolve_datagrams().unwrap();
            let context = route.context().unwrap();
            let post = Post::new(&context, |queue_pair| route.activate(queue_pair));
            match route.look_up(b"", PATIENCE) {
                Err(Error::Rejected { reason: RejectReason::NOT_LISTENING, .. }) => {}
                found => break (post, found.unwrap().0),
            }
        };
        let count = 10;
        post.post_receives(count);
        let handle = peer.handle(&post.end.domain).unwrap();
        for _ in 0..count {
            post.send(&[7; LENGTH], &peer, &handle);
        }
        for _ in 0..count {
            assert_eq!(post.receive().0.len(), LENGTH);
        }
    });
    let text = server.end();
    assert!(text.contains("return status 0"), "{text}");
}
