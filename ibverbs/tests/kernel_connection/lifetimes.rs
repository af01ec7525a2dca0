//! Nothing must be dropped before something else, and nothing that is leaked does harm.

use std::{mem, thread, time::Duration};

use ibverbs::connection::{EventChannel, EventKind, Identifier, PortSpace};

use crate::support::{
    End, IPV4, PATIENCE, Pair, connect, listen, pair, parameters, require_device, route, send,
};

#[test]
fn queue_pair_identifier_and_channel_are_dropped_in_any_order() {
    require_device!();
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let Pair { server, client } = pair(IPV4, &parameters());
        let (queue_pair, identifier, channel) = client.0.into_parts();
        let (mut queue_pair, mut identifier, mut channel) =
            (Some(queue_pair), Some(identifier), Some(channel));
        for part in order {
            match part {
                0 => drop(queue_pair.take()),
                1 => drop(identifier.take()),
                _ => drop(channel.take()),
            }
        }
        server.0.wait_disconnected(PATIENCE).unwrap();
    }
}

#[test]
fn completion_queue_and_domain_live_as_long_as_their_connection() {
    require_device!();
    let Pair { server, client } = pair(IPV4, &parameters());
    let memory = client.1.memory(16);
    let end = client.1.clone();
    drop((client.1, memory));
    send(&(client.0, end), &server, b"still there");
}

#[test]
#[expect(clippy::mem_forget, reason = "what is leaked must not do harm")]
fn forgotten_parts_keep_what_they_need_and_block_nothing() {
    require_device!();
    for part in 0..3 {
        let Pair { server, client } = pair(IPV4, &parameters());
        let (queue_pair, identifier, channel) = client.0.into_parts();
        match part {
            0 => {
                mem::forget(queue_pair);
                drop((identifier, channel));
            }
            1 => {
                mem::forget(identifier);
                drop((queue_pair, channel));
            }
            _ => {
                mem::forget(channel);
                drop((queue_pair, identifier));
            }
        }
        drop(client.1);
        if part != 1 {
            server.0.wait_disconnected(PATIENCE).unwrap();
        }
    }
    // Whole connections, and requests that nobody answers.
    let Pair { server, client } = pair(IPV4, &parameters());
    mem::forget(client);
    drop(server);
    let (listener, address) = listen(IPV4);
    let route = route(address);
    let end = End::on(&route.context().unwrap());
    let queue_pair = route.initialize(end.pair()).unwrap();
    let connecting = route.start_connect(queue_pair, &parameters()).unwrap();
    mem::forget(listener.accept(PATIENCE).unwrap());
    mem::forget(listener);
    drop(connecting);
}

/// An event that is taken from its channel and then leaked must not make the destruction of its
/// identifier wait for ever.
#[test]
#[expect(clippy::mem_forget, reason = "what is leaked must not do harm")]
fn events_that_are_kept_or_forgotten_do_not_block_destruction() {
    require_device!();
    let (listener, address) = listen(IPV4);
    let channel = EventChannel::create().unwrap();
    let identifier = Identifier::create(&channel, PortSpace::TCP).unwrap();
    identifier.resolve_address(None, address, PATIENCE).unwrap();
    let kept = channel.wait_event(PATIENCE).unwrap().unwrap();
    identifier.resolve_route(PATIENCE).unwrap();
    mem::forget(channel.wait_event(PATIENCE).unwrap().unwrap());
    drop(identifier);
    assert_eq!(kept.kind(), EventKind::ADDRESS_RESOLVED);
    // Events that nobody has fetched go with their identifier too.
    let identifier = Identifier::create(&channel, PortSpace::TCP).unwrap();
    identifier.resolve_address(None, address, PATIENCE).unwrap();
    drop(channel);
    thread::sleep(Duration::from_millis(200));
    drop((identifier, listener));
}

#[test]
fn an_identifier_outlives_its_channel_handle_and_moves_to_another() {
    require_device!();
    let (listener, address) = listen(IPV4);
    let (first, second) = (EventChannel::create().unwrap(), EventChannel::create().unwrap());
    let mut identifier = Identifier::create(&first, PortSpace::TCP).unwrap();
    identifier.resolve_address(None, address, PATIENCE).unwrap();
    thread::sleep(Duration::from_millis(200));
    identifier.migrate(&second).unwrap();
    identifier.migrate(&second).unwrap();
    drop(first);
    let event = second.wait_event(PATIENCE).unwrap().unwrap();
    assert_eq!(event.kind(), EventKind::ADDRESS_RESOLVED);
    assert_eq!(event.identifier(), identifier.number());
    drop((second, listener));
    assert_eq!(identifier.peer_address(), Some(address));
}

#[test]
fn a_listener_may_go_before_its_requests_and_connections() {
    require_device!();
    let (listener, address) = listen(IPV4);
    thread::scope(|scope| {
        let client = scope.spawn(|| connect(address, &parameters()).unwrap());
        let request = listener.accept(PATIENCE).unwrap();
        drop(listener);
        let server = crate::support::accept(request, &parameters());
        send(&server, &client.join().unwrap(), b"without a listener");
    });
}

#[test]
fn a_panic_in_the_middle_leaves_the_peer_with_a_clean_end() {
    require_device!();
    let Pair { server, client } = pair(IPV4, &parameters());
    let panicked = thread::spawn(move || {
        let _client = client;
        panic!("on purpose");
    });
    panicked.join().unwrap_err();
    server.0.wait_disconnected(PATIENCE).unwrap();
}

#[test]
fn identifiers_are_used_and_dropped_while_another_thread_takes_events() {
    require_device!();
    let (_listener, address) = listen(IPV4);
    let channel = EventChannel::create().unwrap();
    let rounds = 50;
    thread::scope(|scope| {
        let taking = scope.spawn(|| {
            let mut seen = 0;
            while let Some(event) = channel.wait_event(Duration::from_secs(2)).unwrap() {
                assert_eq!(event.kind(), EventKind::ADDRESS_RESOLVED);
                seen += 1;
            }
            seen
        });
        for round in 0..rounds {
            let identifier = Identifier::create(&channel, PortSpace::TCP).unwrap();
            identifier.resolve_address(None, address, PATIENCE).unwrap();
            assert!(identifier.local_address().is_none_or(|local| local.is_ipv4()));
            if round % 2 == 0 {
                while identifier.port().is_none() {
                    thread::yield_now();
                }
            }
        }
        assert!(taking.join().unwrap() >= rounds / 2);
    });
}
