//! Connections that do not come about, and what is said about it.

use std::{net::SocketAddr, thread, time::Duration};

use ibverbs::{
    Error,
    connection::{EventChannel, EventKind, Identifier, Listener, PortSpace, RejectReason, Route},
};

use crate::support::{
    End, IPV4, PATIENCE, connect, listen, on_host, parameters, require_device, route,
};

#[test]
fn a_rejection_carries_the_reason_and_private_data() {
    require_device!();
    let (listener, address) = listen(IPV4);
    let why: Vec<u8> = (1..=148).collect();
    thread::scope(|scope| {
        scope.spawn(|| listener.accept(PATIENCE).unwrap().reject(&why).unwrap());
        let error = connect(address, &parameters()).unwrap_err();
        let text = error.to_string();
        let Error::Rejected { peer, reason, private_data } = error else { panic!("{text}") };
        assert_eq!((peer, reason), (Some(address), RejectReason::BY_THE_PROGRAM));
        assert_eq!(private_data, why);
    });
}

#[test]
fn a_request_that_is_dropped_is_rejected() {
    require_device!();
    let (listener, address) = listen(IPV4);
    thread::scope(|scope| {
        scope.spawn(|| drop(listener.accept(PATIENCE).unwrap()));
        let error = connect(address, &parameters()).unwrap_err();
        assert!(matches!(error, Error::Rejected { .. }), "{error}");
    });
}

#[test]
fn a_port_where_nobody_listens_says_so() {
    require_device!();
    let (listener, address) = listen(IPV4);
    drop(listener);
    let error = connect(address, &parameters()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("nobody listens") && text.contains(&address.to_string()), "{text}");
    let Error::Rejected { reason, .. } = error else { panic!("{text}") };
    assert_eq!(reason, RejectReason::NOT_LISTENING);
}

#[test]
fn an_address_that_does_not_answer_says_so() {
    require_device!();
    let error = on_host("b", || {
        // An address of the same network that no machine has.
        let nobody = "10.99.1.77:4420".parse().unwrap();
        Route::to(nobody).timeout(Duration::from_secs(8)).resolve().unwrap_err()
    });
    let text = error.to_string();
    assert!(text.contains("10.99.1.77:4420") && text.contains("ARP"), "{text}");
    let Error::Connection { event, source, .. } = error else { panic!("{text}") };
    assert_eq!(event, EventKind::ADDRESS_ERROR, "{source:?}");
}

#[test]
fn an_address_that_no_rdma_device_leads_to_says_so() {
    require_device!();
    let error = Route::to("198.51.100.1:1".parse().unwrap()).resolve().unwrap_err();
    assert!(error.errno().is_some(), "{error}");
    let error = Listener::bind("198.51.100.1:0".parse().unwrap()).unwrap_err();
    assert!(error.to_string().contains("rdma link"), "{error}");
}

#[test]
fn a_port_that_is_taken_says_so() {
    require_device!();
    let (listener, address) = listen(IPV4);
    let error = Listener::bind(address).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EADDRINUSE));
    assert!(error.to_string().contains("reuse_address"), "{error}");
    drop(listener);
    Listener::bind(address).unwrap();
}

#[test]
fn a_peer_that_does_not_answer_is_given_up_in_time() {
    require_device!();
    let (listener, address) = listen(IPV4);
    let short = parameters().timeout(Duration::from_millis(300));
    let error = connect(address, &short).unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    let error = Listener::bind(IPV4.parse().unwrap())
        .unwrap()
        .accept(Duration::from_millis(50))
        .unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    // The request has come in, but its peer is gone: accepting it does not succeed.
    let request = listener.accept(PATIENCE).unwrap();
    let end = End::on(&request.context().unwrap());
    let initialized = request.initialize(end.pair());
    let accepted = initialized.and_then(|queue_pair| request.accept(queue_pair, &parameters()));
    let error = accepted.unwrap_err();
    assert!(error.to_string().contains("given up"), "{error}");
}

#[test]
fn private_data_that_does_not_fit_is_refused() {
    require_device!();
    let (_listener, address) = listen(IPV4);
    for length in [57, 255, 256] {
        let error = connect(address, &parameters().private_data(vec![1; length])).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("private data"), "{length}: {text}");
    }
}

#[test]
fn a_queue_pair_of_another_device_is_refused() {
    require_device!();
    let devices = ibverbs::devices().unwrap();
    let other = devices.iter().find(|device| device.name() == "rxe_a").unwrap();
    let end = End::on(&std::sync::Arc::new(other.open().unwrap()));
    let (_listener, address) = listen(IPV4);
    let error = route(address).initialize(end.pair()).unwrap_err();
    assert!(error.to_string().contains("another device"), "{error}");
}

#[test]
fn ports_are_shared_by_those_who_say_so_and_split_by_family() {
    require_device!();
    let channel = EventChannel::create().unwrap();
    let identifier = |reuses, one_family| {
        let identifier = Identifier::create(&channel, PortSpace::TCP).unwrap();
        identifier.set_type_of_service(8 << 2).unwrap();
        identifier.set_reuse_address(reuses).unwrap();
        identifier.set_one_family_only(one_family).unwrap();
        identifier
    };
    let bound = |identifier: Identifier, address: SocketAddr| {
        identifier.bind(address).unwrap();
        let port = identifier.local_address().unwrap().port();
        (identifier, port)
    };
    for (reuses, refused) in [(true, None), (false, Some(libc::EADDRINUSE))] {
        let (_first, port) = bound(identifier(reuses, false), IPV4.parse().unwrap());
        let mut same: SocketAddr = IPV4.parse().unwrap();
        same.set_port(port);
        let second = identifier(reuses, false).bind(same);
        assert_eq!(second.err().and_then(|error| error.errno()), refused);
    }
    for (one_family, refused) in [(true, None), (false, Some(libc::EADDRNOTAVAIL))] {
        let (_first, port) = bound(identifier(false, one_family), "0.0.0.0:0".parse().unwrap());
        let second =
            identifier(false, one_family).bind(SocketAddr::new("::".parse().unwrap(), port));
        assert_eq!(second.err().and_then(|error| error.errno()), refused);
    }
}

#[test]
fn steps_out_of_order_are_refused() {
    require_device!();
    let channel = EventChannel::create().unwrap();
    let identifier = Identifier::create(&channel, PortSpace::TCP).unwrap();
    assert!(identifier.local_address().is_none() && identifier.peer_address().is_none());
    assert!(matches!(identifier.context(), Err(Error::Invalid { .. })));
    assert!(matches!(identifier.resolve_route(PATIENCE), Err(Error::Invalid { .. })));
    identifier.disconnect().unwrap_err();
    identifier.reject(b"").unwrap_err();
    identifier.notify_established().unwrap_err();
    let (_listener, address) = listen(IPV4);
    let end = End::on(&route(address).context().unwrap());
    assert!(matches!(identifier.initialize(end.pair()), Err(Error::Invalid { .. })));
    // The address is known, but no route yet.
    identifier.resolve_address(None, address, PATIENCE).unwrap();
    let event = channel.wait_event(PATIENCE).unwrap().unwrap();
    assert_eq!(
        (event.kind(), event.identifier()),
        (EventKind::ADDRESS_RESOLVED, identifier.number())
    );
    let queue_pair = identifier.initialize(end.pair()).unwrap();
    identifier.connect(&queue_pair, &parameters()).unwrap_err();
    let other = Identifier::create(&channel, PortSpace::TCP).unwrap();
    assert!(matches!(
        other.establish(queue_pair, &parameters(), event),
        Err(Error::Invalid { .. })
    ));
    assert!(channel.wait_event(Duration::from_millis(50)).unwrap().is_none());
}
