//! Connections that come about.

use std::{os::fd::AsFd, sync::Arc, thread};

use ibverbs::{
    Access, Posting, QueuePairState, RemoteMemory, SendWr,
    connection::{Connection, EventKind, Listener, Route},
};

use crate::support::{
    End, IPV4, IPV6, PATIENCE, accept, connect, is_loopback_device, listen, on_host, pair,
    parameters, require_device, route, send,
};

#[test]
fn data_goes_both_ways_over_ipv4_and_ipv6() {
    require_device!();
    for address in [IPV4, IPV6] {
        let pair = pair(address, &parameters());
        send(&pair.client, &pair.server, b"from the client");
        send(&pair.server, &pair.client, b"from the server, a little longer");
        let (local, peer) = (pair.client.0.local_address().unwrap(), pair.client.0.peer_address());
        assert!(is_loopback_device(local.ip()), "{local}");
        assert_eq!(pair.server.0.peer_address(), Some(local));
        assert_eq!(pair.server.0.local_address(), peer);
    }
}

#[test]
fn data_goes_between_two_hosts() {
    require_device!();
    for address in ["10.99.1.1:0", "[fd00:99:1::1]:0"] {
        let (told, hear) = std::sync::mpsc::channel();
        let (server, client) = thread::scope(|scope| {
            let server = scope.spawn(move || {
                on_host("a", || {
                    let (listener, address) = listen(address);
                    told.send(address).unwrap();
                    accept(listener.accept(PATIENCE).unwrap(), &parameters())
                })
            });
            let address = hear.recv().unwrap();
            let client = on_host("b", || connect(address, &parameters()).unwrap());
            (server.join().unwrap(), client)
        });
        let device = |end: &End| end.domain.context().device().name().to_owned();
        assert_eq!((device(&server.1), device(&client.1)), ("rxe_a".into(), "rxe_b".into()));
        send(&client, &server, b"from b to a");
        send(&server, &client, b"from a to b");
    }
}

#[test]
fn the_type_of_service_reaches_the_queue_pair() {
    require_device!();
    let (listener, address) = listen(IPV4);
    thread::scope(|scope| {
        let server = scope.spawn(|| accept(listener.accept(PATIENCE).unwrap(), &parameters()));
        // Expedited forwarding, DSCP 46.
        let route =
            Route::to(address).type_of_service(46 << 2).timeout(PATIENCE).resolve().unwrap();
        let end = End::on(&route.context().unwrap());
        let pair = route.initialize(end.pair()).unwrap();
        let client = (route.connect(pair, &parameters()).unwrap(), end);
        let server = server.join().unwrap();
        let attributes = client.0.queue_pair().query().unwrap();
        assert_eq!(attributes.as_raw().ah_attr.grh.traffic_class, 46 << 2);
        send(&client, &server, b"first");
    });
}

#[test]
fn private_data_goes_both_ways() {
    require_device!();
    let (listener, address) = listen(IPV4);
    let request_data: Vec<u8> = (1..=56).collect();
    let answer_data: Vec<u8> = (1..=196).collect();
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            let request = listener.accept(PATIENCE).unwrap();
            assert_eq!(request.private_data(), request_data);
            accept(request, &parameters().private_data(answer_data.clone()))
        });
        let client = connect(address, &parameters().private_data(request_data.clone())).unwrap();
        assert_eq!(client.0.private_data(), answer_data);
        let server = server.join().unwrap();
        assert_eq!(server.0.private_data(), request_data);
        // Shorter data is filled with zeros.
        let server = scope.spawn(|| {
            let request = listener.accept(PATIENCE).unwrap();
            assert_eq!(request.private_data()[..3], *b"abc");
            assert!(request.private_data()[3..].iter().all(|byte| *byte == 0));
            accept(request, &parameters())
        });
        let client = connect(address, &parameters().private_data(*b"abc")).unwrap();
        assert!(client.0.private_data().iter().all(|byte| *byte == 0));
        drop(server.join().unwrap());
    });
}

#[test]
fn both_ways_of_posting_work() {
    require_device!();
    for posting in [Posting::Extended, Posting::Classic] {
        let (listener, address) = listen(IPV4);
        thread::scope(|scope| {
            let server = scope.spawn(|| accept(listener.accept(PATIENCE).unwrap(), &parameters()));
            let route = route(address);
            let end = End::on(&route.context().unwrap());
            let queue_pair = route.initialize(end.pair_posting(Some(posting))).unwrap();
            let connection = route.connect(queue_pair, &parameters()).unwrap();
            assert_eq!(connection.queue_pair().posting(), posting);
            send(&(connection, end), &server.join().unwrap(), b"one message");
        });
    }
}

#[test]
fn the_peer_reads_and_writes_what_the_parameters_allow() {
    require_device!();
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let pair = pair(IPV4, &parameters().access(access));
    let (server, client) = (pair.server.1.memory(64), pair.client.1.memory(64));
    client.bytes().fill(0, 64, 7).unwrap();
    let target = RemoteMemory::from_bytes(&server.remote().to_bytes()).unwrap();
    let target = target.at(0).unwrap();
    let connection = &pair.client.0;
    let write = SendWr::write(client.segment(..).unwrap(), &target).signaled();
    connection.queue_pair().post_send(&mut [write]).unwrap();
    pair.client.1.completion().outcome().unwrap();
    assert_eq!(server.bytes().to_vec(), [7; 64]);
    server.bytes().fill(0, 64, 9).unwrap();
    let read = SendWr::read(client.segment(..).unwrap(), &target).signaled();
    connection.queue_pair().post_send(&mut [read]).unwrap();
    pair.client.1.completion().outcome().unwrap();
    assert_eq!(client.bytes().to_vec(), [9; 64]);
}

#[test]
fn the_peer_writes_nothing_where_the_parameters_do_not_allow_it() {
    require_device!();
    let pair = pair(IPV4, &parameters());
    let (server, client) = (pair.server.1.memory(64), pair.client.1.memory(64));
    client.bytes().fill(0, 64, 7).unwrap();
    let target = server.remote().at(0).unwrap();
    let write = SendWr::write(client.segment(..).unwrap(), &target).signaled();
    pair.client.0.queue_pair().post_send(&mut [write]).unwrap();
    pair.client.1.completion().outcome().unwrap_err();
    assert_eq!(server.bytes().to_vec(), [0; 64]);
}

#[test]
fn reads_are_what_both_sides_agreed_on() {
    require_device!();
    let (listener, address) = listen(IPV4);
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            let request = listener.accept(PATIENCE).unwrap();
            assert_eq!((request.wanted_reads(), request.offered_reads()), (2, 8));
            accept(request, &parameters().incoming_reads(16).outgoing_reads(4))
        });
        let client = connect(address, &parameters().incoming_reads(8).outgoing_reads(2)).unwrap();
        let server = server.join().unwrap();
        let reads = |connection: &Connection<'_>| {
            let attributes = connection.queue_pair().query().unwrap();
            let raw = *attributes.as_raw();
            assert_eq!(attributes.state(), QueuePairState::READY_TO_SEND);
            (raw.max_dest_rd_atomic, raw.max_rd_atomic)
        };
        assert_eq!(reads(&server.0), (2, 4));
        assert_eq!(reads(&client.0), (4, 2));
    });
}

#[test]
fn all_connections_of_a_device_share_one_context_and_one_domain() {
    require_device!();
    let (listener, address) = listen(IPV4);
    let first = route(address);
    let context = first.context().unwrap();
    assert!(Arc::ptr_eq(&context, &route(address).context().unwrap()));
    let (end, count) = (End::on(&context), 4);
    thread::scope(|scope| {
        let listener = &listener;
        let server = scope.spawn(move || {
            let accept = |_| accept(listener.accept(PATIENCE).unwrap(), &parameters());
            (0..count).map(accept).collect::<Vec<_>>()
        });
        let connections: Vec<_> = (0..count)
            .map(|_| {
                let route = route(address);
                let queue_pair = route.initialize(end.pair()).unwrap();
                route.connect(queue_pair, &parameters()).unwrap()
            })
            .collect();
        let servers = server.join().unwrap();
        // Accepted connections come in the order of their requests.
        for (connection, server) in connections.into_iter().zip(&servers) {
            send(&(connection, end.clone()), server, b"through a shared domain");
        }
    });
}

#[test]
fn a_context_that_was_opened_otherwise_serves_as_well() {
    require_device!();
    let (listener, address) = listen(IPV4);
    let devices = ibverbs::devices().unwrap();
    let own = Arc::new(devices.by_name("rxe0").unwrap().open().unwrap());
    thread::scope(|scope| {
        let server = scope.spawn(|| accept(listener.accept(PATIENCE).unwrap(), &parameters()));
        let route = route(address);
        let end = End::on(&own);
        let queue_pair = route.initialize(end.pair()).unwrap();
        let connection = route.connect(queue_pair, &parameters()).unwrap();
        send(&(connection, end), &server.join().unwrap(), b"through a context of my own");
    });
}

#[test]
fn borrowed_parents_serve_as_well() {
    require_device!();
    let (listener, address) = listen(IPV4);
    thread::scope(|scope| {
        let server = scope.spawn(|| accept(listener.accept(PATIENCE).unwrap(), &parameters()));
        let route = route(address);
        let context = route.context().unwrap();
        let domain = context.allocate_protection_domain().unwrap();
        let queue = context.create_completion_queue(8).unwrap();
        let queue_pair = domain.queue_pair(&queue, &queue).create().unwrap();
        let queue_pair = route.initialize(queue_pair).unwrap();
        let connection = route.connect(queue_pair, &parameters()).unwrap();
        assert_eq!(connection.peer_address(), Some(address));
        drop(server.join().unwrap());
    });
}

#[test]
fn one_call_connects() {
    require_device!();
    let (listener, address) = listen(IPV4);
    thread::scope(|scope| {
        let server = scope.spawn(|| accept(listener.accept(PATIENCE).unwrap(), &parameters()));
        let mut end = None;
        let connection = Connection::connect(address, &parameters(), |context| {
            Ok(end.insert(End::on(context)).pair())
        })
        .unwrap();
        send(&(connection, end.unwrap()), &server.join().unwrap(), b"one call");
    });
}

#[test]
fn the_address_of_this_side_can_be_chosen() {
    require_device!();
    let (listener, address) = listen(IPV4);
    let found = Route::to(address).from(IPV4.parse().unwrap()).type_of_service(32).resolve();
    let found = found.unwrap();
    assert_eq!(found.local_address().unwrap().ip(), address.ip());
    assert_eq!(found.port().unwrap().get(), 1);
    drop(listener);
}

#[test]
fn the_unspecified_address_listens_on_every_device_and_both_families() {
    require_device!();
    let (listener, any) = listen("[::]:0");
    for address in [IPV4, IPV6] {
        let mut address: std::net::SocketAddr = address.parse().unwrap();
        address.set_port(any.port());
        thread::scope(|scope| {
            let server = scope.spawn(|| accept(listener.accept(PATIENCE).unwrap(), &parameters()));
            let client = connect(address, &parameters()).unwrap();
            send(&client, &server.join().unwrap(), b"to any address");
        });
    }
    // A port of one family only leaves the other one free.
    let six = Listener::at("[::]:0".parse().unwrap()).one_family_only().listen().unwrap();
    let port = six.local_address().unwrap().port();
    Listener::bind(std::net::SocketAddr::from(([0, 0, 0, 0], port))).unwrap();
}

#[test]
fn many_connections_at_a_time_do_not_take_each_others_events() {
    require_device!();
    let (listener, address) = listen(IPV4);
    const CLIENTS: usize = 8;
    const EACH: usize = 4;
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            // Requests are accepted as they come, by several threads at a time.
            thread::scope(|scope| {
                let accept = || {
                    let accept = |_| accept(listener.accept(PATIENCE).unwrap(), &parameters());
                    (0..CLIENTS * EACH / 4).map(accept).collect::<Vec<_>>()
                };
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(accept)).collect();
                threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
            })
        });
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(move || {
                    let connect = |_| connect(address, &parameters()).unwrap();
                    (0..EACH).map(connect).collect::<Vec<_>>()
                })
            })
            .collect();
        let clients: Vec<_> =
            clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
        let servers = server.join().unwrap();
        for client in &clients {
            let number = client.0.queue_pair().number();
            let peer = |server: &&(Connection<'static>, End)| {
                server.0.queue_pair().query().unwrap().peer() == number
            };
            send(client, servers.iter().find(peer).unwrap(), b"to each its own");
        }
    });
}

#[test]
fn the_end_of_a_connection_is_seen_by_both_sides() {
    require_device!();
    let pair = pair(IPV4, &parameters());
    let (client, server) = (&pair.client.0, &pair.server.0);
    assert!(client.try_event().unwrap().is_none() && server.try_event().unwrap().is_none());
    server.queue_pair().post_receive(&mut [ibverbs::RecvWr::new(5)]).unwrap();
    client.disconnect().unwrap();
    server.wait_disconnected(PATIENCE).unwrap();
    client.wait_disconnected(PATIENCE).unwrap();
    // What was posted comes back as flushed.
    let flushed = pair.server.1.completion().outcome().unwrap_err();
    assert_eq!((flushed.id, flushed.status), (5, ibverbs::CompletionStatus::WORK_FLUSHED));
    assert_eq!(server.queue_pair().query().unwrap().state(), QueuePairState::ERROR);
}

#[test]
fn what_a_peer_sent_before_it_left_is_received_although_nobody_had_looked() {
    require_device!();
    let (listener, address) = listen(IPV4);
    let (told, hear) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        let client = scope.spawn(move || {
            let (connection, end) = connect(address, &parameters()).unwrap();
            let memory = end.memory(8);
            memory.bytes().fill(0, 8, 7).unwrap();
            let send = SendWr::send(memory.segment(..).unwrap()).signaled();
            connection.queue_pair().post_send(&mut [send]).unwrap();
            end.completion().outcome().unwrap();
            connection.disconnect().unwrap();
            told.send(()).unwrap();
            connection.wait_disconnected(PATIENCE).unwrap();
        });
        let request = listener.accept(PATIENCE).unwrap();
        let end = End::on(&request.context().unwrap());
        let memory = end.memory(8);
        let queue_pair = request.initialize(end.pair()).unwrap();
        let receive = ibverbs::RecvWr::to(1, memory.segment(..).unwrap());
        queue_pair.post_receive(&mut [receive]).unwrap();
        let accepting = request.start_accept(queue_pair, &parameters()).unwrap();
        hear.recv().unwrap();
        thread::sleep(std::time::Duration::from_millis(100));
        let connection = accepting.finish().unwrap();
        assert_eq!(end.completion().outcome().unwrap().byte_length(), 8);
        assert_eq!(memory.bytes().to_vec(), [7; 8]);
        connection.wait_disconnected(PATIENCE).unwrap();
        client.join().unwrap();
    });
}

#[test]
fn a_dropped_connection_ends_for_the_peer() {
    require_device!();
    let pair = pair(IPV4, &parameters());
    drop(pair.server);
    pair.client.0.wait_disconnected(PATIENCE).unwrap();
}

#[test]
fn connecting_without_waiting_tells_by_its_descriptor_when_to_look() {
    require_device!();
    let (listener, address) = listen(IPV4);
    assert!(listener.try_accept().unwrap().is_none());
    let mut resolving = Route::to(address).start().unwrap();
    let route = loop {
        if let Some(route) = resolving.try_finish().unwrap() {
            break route;
        }
        readable(&resolving);
    };
    let end = End::on(&route.context().unwrap());
    let queue_pair = route.initialize(end.pair()).unwrap();
    let mut connecting = route.start_connect(queue_pair, &parameters()).unwrap();
    assert!(connecting.try_finish().unwrap().is_none());
    readable(&listener);
    let request = listener.try_accept().unwrap().unwrap();
    let queue_pair = request.initialize(end.pair()).unwrap();
    let mut accepting = request.start_accept(queue_pair, &parameters()).unwrap();
    readable(&connecting);
    let client = connecting.try_finish().unwrap().unwrap();
    readable(&accepting);
    let server = accepting.try_finish().unwrap().unwrap();
    accepting.try_finish().unwrap();
    drop(client);
    readable(&server);
    let event = server.try_event().unwrap().unwrap();
    assert_eq!(event.kind(), EventKind::DISCONNECTED);
}

fn readable(object: &impl AsFd) {
    use std::os::fd::AsRawFd;
    let mut entry =
        libc::pollfd { fd: object.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let patience = i32::try_from(PATIENCE.as_millis()).unwrap();
    #[expect(unsafe_code, reason = "waits for a descriptor as an event loop does")]
    // SAFETY: there is one entry, and its descriptor is open.
    let count = unsafe { libc::poll(&raw mut entry, 1, patience) };
    assert_eq!(count, 1);
}
