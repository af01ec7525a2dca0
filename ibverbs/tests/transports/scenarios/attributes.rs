//! Changing and asking for attributes.

use std::thread;

use ibverbs::{
    Access, CompletionStatus, ConnectOptions, EnhancedConnection, Error, Initialized, Inline,
    Operation, PortNumber, QueueKey, QueuePairChange, QueuePairState, RateLimit, Rc, ReadyToSend,
    RemoteKey, RemoteMemory, SendWr,
};

use super::{ALL, Host};
use crate::run;

#[test]
fn raw_changes_lead_where_the_typed_ones_do() {
    run(|host, posting| {
        let (a, b) = (host.end::<Rc>(posting), host.end::<Rc>(posting));
        let (to_a, to_b) = (a.pair.endpoint(&host.port), b.pair.endpoint(&host.port));
        let options = ConnectOptions::new(&host.port).access(ALL);
        let b = b.map(|pair| pair.connect(&to_a, &options).unwrap());
        let a = a.map(|pair| {
            let init = QueuePairChange::to(QueuePairState::INITIALIZED)
                .port(host.port.port)
                .pkey_index(0)
                .access(Access::REMOTE_WRITE)
                .unwrap();
            pair.modify(&init).unwrap();
            let receive = QueuePairChange::to(QueuePairState::READY_TO_RECEIVE)
                .address(&to_b.address(&host.port))
                .unwrap()
                .mtu(to_b.mtu)
                .peer(to_b.number)
                .first_received_packet(to_b.first_packet)
                .incoming_reads(1)
                .receiver_not_ready_timer(std::time::Duration::from_micros(640));
            pair.modify(&receive).unwrap();
            let send = QueuePairChange::to(QueuePairState::READY_TO_SEND)
                .first_sent_packet(to_a.first_packet)
                .timeout(std::time::Duration::from_millis(67))
                .retries(7)
                .receiver_not_ready_retries(7)
                .outgoing_reads(1);
            pair.modify(&send).unwrap();
            pair.into_state::<ReadyToSend>().unwrap()
        });
        let target = b.memory.remote().part(0..3).unwrap();
        a.pair.post_send(&mut [SendWr::write(Inline(b"raw"), &target).signaled()]).unwrap();
        a.sent().outcome().unwrap();
        assert_eq!(b.bytes(0, 3), b"raw");
    });
}

#[test]
fn a_refused_change_names_the_attributes_that_are_missing_or_too_much() {
    run(|host, posting| {
        let end = host.end::<Rc>(posting);
        let change = QueuePairChange::to(QueuePairState::INITIALIZED)
            .port(host.port.port)
            .queue_key(QueueKey(1));
        let error = end.pair.modify(&change).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EINVAL));
        let text = error.to_string();
        assert!(text.contains("from reset to initialized"), "{text}");
        assert!(text.contains("it also needs IBV_QP_ACCESS_FLAGS, IBV_QP_PKEY_INDEX"), "{text}");
        assert!(text.contains("it does not take IBV_QP_QKEY"), "{text}");
        let skip = QueuePairChange::to(QueuePairState::READY_TO_SEND);
        let text = end.pair.modify(&skip).unwrap_err().to_string();
        assert!(text.contains("from reset to ready to send"), "{text}");
    });
}

/// What this side has brought it to is not what the device may have made of it since.
#[test]
fn a_refused_change_says_the_state_that_the_device_has_the_queue_pair_in() {
    run(|host, posting| {
        let (a, b) = host.ends::<Rc>(posting);
        let nowhere = RemoteMemory::new(0x1000, 8, RemoteKey(!b.memory.remote_key().0)).unwrap();
        let write = SendWr::write(Inline(b"nowhere!"), &nowhere.at(0).unwrap());
        a.pair.post_send(&mut [write.signaled()]).unwrap();
        a.sent().outcome().unwrap_err();
        let back = QueuePairChange::to(QueuePairState::READY_TO_SEND);
        let text = a.pair.modify(&back).unwrap_err().to_string();
        assert!(text.contains("did not go from error to ready to send"), "{text}");
        assert!(text.ends_with("reset it first"), "{text}");
    });
}

#[test]
fn a_queue_pair_is_changed_from_many_threads() {
    run(|host, posting| {
        let (a, _b) = host.ends::<Rc>(posting);
        let rights = QueuePairChange::within().access(Access::REMOTE_READ).unwrap();
        let skip = QueuePairChange::to(QueuePairState::INITIALIZED);
        thread::scope(|scope| {
            for changer in 0..4 {
                let pair = &a.pair;
                scope.spawn(move || {
                    for _ in 0..50 {
                        let error = match changer {
                            0 => pair.fail().err(),
                            1 => pair.modify(&rights).err(),
                            _ => Some(pair.modify(&skip).unwrap_err()),
                        };
                        let known = |from| ["ready to send", "error"].contains(&from);
                        if let Some(error) = error {
                            assert!(
                                matches!(error, Error::Transition { from, .. } if known(from)),
                                "{error}"
                            );
                        }
                    }
                });
            }
        });
        assert_eq!(a.pair.query().unwrap().state(), QueuePairState::ERROR);
    });
}

#[test]
fn a_state_is_only_believed_if_the_device_says_so() {
    run(|host, posting| {
        let end = host.end::<Rc>(posting);
        let error = end.pair.into_state::<Initialized>().unwrap_err();
        assert!(matches!(error, Error::Transition { from: "reset", .. }), "{error}");
    });
}

#[test]
fn attributes_are_those_of_the_connection() {
    run(|host, posting| {
        let (a, b) = host.ends::<Rc>(posting);
        let attributes = a.pair.query().unwrap();
        assert_eq!(attributes.state(), QueuePairState::READY_TO_SEND);
        assert_eq!(attributes.peer(), b.pair.number());
        assert_eq!(attributes.port(), Some(host.port.port));
        assert_eq!(attributes.mtu(), Some(host.port.attributes.active_mtu()));
        assert_eq!(attributes.address().gid(), host.port.gid.gid);
        assert_eq!(attributes.retries(), 7);
        assert_eq!(attributes.receiver_not_ready_retries(), 7);
        assert_eq!(attributes.timeout().as_millis(), 67);
        assert_eq!(attributes.receiver_not_ready_timer().as_micros(), 640);
        assert!(attributes.access().contains(Access::REMOTE_WRITE | Access::REMOTE_READ));
        assert!(attributes.outgoing_reads() > 0 && attributes.incoming_reads() > 0);
        assert!(attributes.capabilities().send_requests >= 16);
        assert!(!attributes.signals_all());
    });
}

#[test]
fn a_right_that_is_taken_away_is_gone() {
    run(|host, posting| {
        let (a, b) = host.ends::<Rc>(posting);
        let target = b.memory.remote().part(0..8).unwrap();
        a.pair.post_send(&mut [SendWr::write(Inline(b"allowed!"), &target).signaled()]).unwrap();
        a.sent().outcome().unwrap();
        let change = QueuePairChange::within().access(Access::REMOTE_READ).unwrap();
        b.pair.modify(&change).unwrap();
        a.pair.post_send(&mut [SendWr::write(Inline(b"refused!"), &target).signaled()]).unwrap();
        let status = a.sent().status();
        let refused =
            [CompletionStatus::REMOTE_ACCESS_ERROR, CompletionStatus::REMOTE_INVALID_REQUEST];
        assert!(refused.contains(&status), "{status}");
        assert_eq!(b.bytes(0, 8), b"allowed!");
    });
}

#[test]
fn rights_that_no_peer_has_are_not_granted() {
    let error = QueuePairChange::within().access(Access::WINDOW_BIND).unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
}

#[test]
fn what_a_device_does_not_have_is_an_error_that_says_so() {
    run(|host: &Host, posting| {
        let (a, _b) = host.ends::<Rc>(posting);
        let missing = |error: Error| {
            let unsupported = matches!(error, Error::Unsupported { .. });
            let errno = error.errno();
            assert!(
                unsupported
                    || matches!(errno, Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL)),
                "{error}"
            );
        };
        if let Err(error) = a.pair.query_enhancements() {
            missing(error);
        }
        if let Err(error) = a.pair.set_enhancements(EnhancedConnection::default()) {
            missing(error);
        }
        if let Err(error) = a.pair.set_rate_limit(RateLimit::kilobits_per_second(1000)) {
            missing(error);
        }
        if let Err(error) = a.pair.data_order(Operation::WRITE, false) {
            missing(error);
        }
        let error = a.pair.data_order(Operation::BIND_WINDOW, false).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. } | Error::Unsupported { .. }), "{error}");
    });
}

#[test]
fn a_port_that_is_not_there_is_refused_with_its_number() {
    run(|host, posting| {
        let end = host.end::<Rc>(posting);
        let change = QueuePairChange::to(QueuePairState::INITIALIZED)
            .port(PortNumber::new(200).unwrap())
            .pkey_index(0)
            .access(Access::empty())
            .unwrap();
        let text = end.pair.modify(&change).unwrap_err().to_string();
        assert!(text.contains("port 200"), "{text}");
    });
}
