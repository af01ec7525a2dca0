//! Targets that break the protocol end in errors, and never in a panic or a wait without end.

use super::{connect, options};
use crate::{
    Error, Reconnect, Violation,
    fake::{FakeTarget, Misbehaviour},
};

/// The cause that an error names, all the way down.
fn root(error: &Error) -> &Error {
    match error {
        Error::ConnectionLost { cause, .. }
        | Error::OutcomeUnknown { cause, .. }
        | Error::Disconnected { cause } => root(cause),
        other => other,
    }
}

#[test]
fn each_way_to_break_the_protocol_is_named() {
    for (misbehaviour, expected) in [
        (Misbehaviour::WrongCommandId, "not in flight"),
        (Misbehaviour::ShortCapsule, "8 bytes, not 16"),
        (Misbehaviour::LongCapsule, "4096 bytes, not 16"),
        (Misbehaviour::BadHead, "submission queue head"),
    ] {
        let target = FakeTarget::new(16);
        let controller = connect(&target, options()).unwrap();
        let namespace = controller.namespace(1).unwrap();
        let block = controller.allocate(512).unwrap();
        target.misbehave([misbehaviour]);
        let error = namespace.write(0, &block).unwrap_err();
        assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
        assert!(matches!(root(&error), Error::Protocol { .. }));
        assert!(root(&error).to_string().contains(expected), "{}", root(&error));
        // A new connection, and all is well.
        namespace.write(0, &block).unwrap();
    }
}

#[test]
fn a_completion_that_comes_twice_costs_the_connection_and_no_data() {
    let target = FakeTarget::new(16);
    let controller = connect(&target, options().io_queues(1)).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let block = controller.allocate(512).unwrap();
    for _ in 0..20 {
        target.misbehave([Misbehaviour::Repeat]);
        // The first completion counts; the second is noticed by then or by the next request.
        namespace.read(0, &block).unwrap();
        namespace.read(1, &block).unwrap();
    }
}

#[test]
fn a_target_that_never_stops_misbehaving_ends_every_request_in_an_error() {
    let target = FakeTarget::new(16);
    let controller = connect(&target, options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let block = controller.allocate(512).unwrap();
    target.misbehave([Misbehaviour::WrongCommandId; 4]);
    let error = namespace.read(0, &block).unwrap_err();
    assert!(matches!(
        root(&error),
        Error::Protocol { violation: Violation::UnknownCommand { .. }, .. }
    ));
}

#[test]
fn memory_that_the_target_may_not_reach_ends_in_an_error() {
    struct Wrong(crate::Buffer);
    impl crate::Memory for Wrong {
        fn address(&self) -> u64 {
            self.0.address()
        }
        fn remote_key(&self) -> u32 {
            self.0.remote_key() + 1000
        }
        fn length(&self) -> usize {
            self.0.len()
        }
        fn copy_to(&self, _: usize, _: &mut [u8]) -> bool {
            false
        }
    }
    let target = FakeTarget::new(16);
    let controller = connect(&target, options().reconnect(Reconnect::NEVER)).unwrap();
    let wrong = Wrong(controller.allocate(512).unwrap());
    let namespace = controller.namespace(1).unwrap();
    namespace.read(0, &wrong).unwrap_err();
}
