//! Bringing a controller up, and what targets may say meanwhile.

use std::time::{Duration, Instant};

use super::{connect, options};
use crate::{
    Buffer, Controller, Error, Nqn, Options, Request, Secret,
    fake::{FakeTarget, namespace, subsystem},
    wire::{
        block_format::ProtectionType,
        discovery::tests::entry,
        event::AsynchronousEvent,
        identify::SglSupport,
        identify_namespace::NamespaceName,
        log_page::ChangedNamespaces,
        property::{CommandSets, Configuration},
    },
};

#[test]
fn a_controller_comes_up_and_tells_what_it_is() {
    let target = FakeTarget::new(1024);
    let controller = connect(&target, options()).unwrap();
    assert!(controller.is_connected());
    assert_eq!(controller.identify().model_number, "Fake");
    assert_eq!(controller.version().to_string(), "2.0.0");
    assert_eq!(controller.queues(), 2);
    assert_eq!(controller.max_transfer(), 32_768);
    assert_eq!(controller.in_capsule_bytes(), 4096);
    assert_eq!(controller.namespaces().unwrap(), [1]);
    let namespace = controller.namespace(1).unwrap();
    assert_eq!((namespace.block_size(), namespace.blocks()), (512, 1024));
    assert_eq!(namespace.names(), [NamespaceName::Uuid([7; 16])]);
    assert_eq!(controller.changed_namespaces().unwrap(), ChangedNamespaces::Listed(Vec::new()));
    controller.close();
}

#[test]
fn an_unknown_subsystem_is_refused_with_the_parameter_that_is_wrong() {
    let target = FakeTarget::new(16);
    let other = Nqn::new("nqn.2024-01.org.example:other").unwrap();
    let error = Controller::connect_over(target.transport(), other, options()).unwrap_err();
    assert!(matches!(error, Error::ConnectRefused { queue: 0, .. }));
    assert!(error.to_string().contains("Connect Invalid Parameters"), "{error}");
}

#[test]
fn the_target_grants_fewer_queues_than_asked_for() {
    let target = FakeTarget::new(16);
    target.lock().queues = 3;
    assert_eq!(connect(&target, options().io_queues(8)).unwrap().queues(), 3);
}

#[test]
fn queues_are_no_deeper_than_the_target_says() {
    let target = FakeTarget::new(16);
    target.lock().identify.max_outstanding_commands = 10;
    let controller = connect(&target, options().queue_entries(100)).unwrap();
    assert_eq!(controller.take_queue::<Buffer>().unwrap().depth(), 9);
}

#[test]
fn queues_are_no_deeper_than_the_target_has_receives() {
    let target = FakeTarget::new(1024);
    target.lock().receives = Some(5);
    let controller = connect(&target, options().queue_entries(100)).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let mut queue = controller.take_queue().unwrap();
    assert_eq!(queue.depth(), 5);
    // Five commands fill the queue; the sixth waits until one has ended.
    target.lock().batch = 5;
    for block in 0..10 {
        let buffer = controller.allocate(512).unwrap();
        queue.submit(Request::read(&namespace, block, buffer)).unwrap();
    }
    for _ in 0..10 {
        queue.wait(Duration::from_secs(10)).unwrap().result.unwrap();
    }
    assert_eq!(target.lock().most_in_flight, 5);
    drop(queue);

    // The next connection may have more, and may have less.
    target.lock().batch = 0;
    for receives in [Some(1), None, Some(64)] {
        target.lock().receives = receives;
        target.cut();
        while namespace.flush().is_err() {}
        let buffer = controller.allocate(1024 * 512).unwrap();
        namespace.read(0, &buffer).unwrap();
        let depth = usize::from(receives.unwrap_or(99));
        assert_eq!(controller.take_queue::<Buffer>().unwrap().depth(), depth);
    }

    target.lock().receives = Some(0);
    assert!(matches!(connect(&target, options()), Err(Error::Malformed { .. })));
}

#[test]
fn absurd_answers_leave_a_controller_that_works_or_an_error() {
    let target = FakeTarget::new(64);
    {
        let mut target = target.lock();
        target.capabilities = u64::MAX;
        target.identify.max_transfer_exponent = 255;
        target.identify.command_capsule_units = u32::MAX;
        target.identify.max_outstanding_commands = 1;
        target.queues = u16::MAX;
    }
    let controller = connect(&target, options()).unwrap();
    assert_eq!(controller.in_capsule_bytes(), 16 * 1024);
    let namespace = controller.namespace(1).unwrap();
    let buffer = controller.allocate(64 * 512).unwrap();
    namespace.write(0, &buffer).unwrap();
    namespace.read(0, &buffer).unwrap();

    target.lock().capabilities = 0;
    assert!(matches!(connect(&target, options()), Err(Error::Unsupported { .. })));
}

#[test]
fn a_controller_without_keyed_blocks_is_refused() {
    let target = FakeTarget::new(16);
    target.lock().identify.sgl_support = SglSupport(1);
    assert!(matches!(connect(&target, options()), Err(Error::Unsupported { .. })));
}

#[test]
fn a_controller_that_fails_or_never_gets_ready_is_an_error() {
    let target = FakeTarget::new(16);
    target.lock().status = 2;
    assert!(matches!(connect(&target, options()), Err(Error::ControllerFailed { .. })));
    {
        let mut target = target.lock();
        target.status = 0;
        target.capabilities &= !(0xff << 24);
    }
    let started = Instant::now();
    assert!(matches!(connect(&target, options()), Err(Error::ControllerFailed { .. })));
    assert!(started.elapsed() >= Duration::from_secs(1));
}

#[test]
fn a_controller_is_shut_down_as_it_was_enabled() {
    for shift in [0, 1, 15] {
        let target = FakeTarget::new(16);
        target.lock().capabilities |= shift << 48;
        connect(&target, options()).unwrap().close();
        let enabled = Configuration::enabled(4096 << shift);
        assert_eq!(target.lock().configurations, [enabled, enabled.normal_shutdown()]);
    }
}

#[test]
fn the_command_sets_that_a_controller_offers_are_selected_until_it_is_shut_down() {
    let (nvm, sets, none) = (1 << 37, 1 << 43, 1 << 44);
    let selected = |offered: u64, subsystem| {
        let target = FakeTarget::new(16);
        target.lock().discovery.push(entry());
        target.lock().capabilities = 127 | 15 << 24 | offered;
        Controller::connect_over(target.transport(), subsystem, options()).map(|controller| {
            controller.close();
            let told = target.lock().configurations.clone();
            assert!(told.len() == 2 && told[1] == told[0].normal_shutdown(), "{told:?}");
            told[0].command_sets()
        })
    };
    for (offered, expected) in
        [(nvm, CommandSets::NVM), (nvm | sets, CommandSets::ALL), (sets, CommandSets::ALL)]
    {
        assert_eq!(selected(offered, subsystem()).unwrap(), expected);
        assert_eq!(selected(offered, Nqn::discovery()).unwrap(), expected);
    }
    assert_eq!(selected(none, Nqn::discovery()).unwrap(), CommandSets::NONE);
    assert_eq!(selected(0, Nqn::discovery()).unwrap(), CommandSets::NVM);
    for offered in [none, 0] {
        let refused = selected(offered, subsystem()).unwrap_err();
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
    }
}

#[test]
fn namespaces_that_do_not_exist_or_carry_metadata_are_refused() {
    let target = FakeTarget::new(16);
    let controller = connect(&target, options()).unwrap();
    assert!(matches!(controller.namespace(9), Err(Error::Command { .. })));
    // What Linux says of one that does not exist.
    target.lock().namespace.size_in_blocks = 0;
    let text = controller.namespace(1).unwrap_err().to_string();
    assert!(text.starts_with("namespace \"1\"") && text.contains("lists"), "{text}");
    for wrong in [
        namespace(0, 9, 0, ProtectionType::NONE),
        namespace(16, 9, 8, ProtectionType::NONE),
        namespace(16, 9, 64, ProtectionType::TYPE_1),
        namespace(16, 9, 8, ProtectionType(5)),
        namespace(16, 40, 0, ProtectionType::NONE),
        namespace(16, 0, 0, ProtectionType::NONE),
        namespace(u64::MAX, 12, 0, ProtectionType::NONE),
        // Larger than the largest transfer.
        namespace(16, 20, 0, ProtectionType::NONE),
    ] {
        target.lock().namespace = wrong.clone();
        controller.namespace(1).map(|_| ()).expect_err(&format!("{wrong:?}"));
    }
}

#[test]
fn options_that_make_no_sense_are_refused_before_anything_is_sent() {
    let target = FakeTarget::new(16);
    let secret: Secret =
        "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:".parse().unwrap();
    for wrong in [
        options().queue_entries(1),
        options().max_transfer(511),
        options().controller_secret(secret),
    ] {
        connect(&target, wrong).unwrap_err();
    }
}

#[test]
fn events_reach_whoever_asks() {
    let target = FakeTarget::new(16);
    let controller = connect(&target, options()).unwrap();
    assert_eq!(controller.next_event(Duration::ZERO), None);
    for _ in 0..3 {
        target.report_event(0x0004_0002);
        let event = controller.next_event(Duration::from_secs(10));
        assert_eq!(event, Some(AsynchronousEvent::NamespaceChanged));
    }
}

#[test]
fn keep_alives_are_sent_while_nothing_else_is() {
    let target = FakeTarget::new(16);
    let _controller = connect(&target, options().keep_alive(Some(Duration::from_millis(20))));
    let started = Instant::now();
    while target.lock().keep_alives < 5 {
        assert!(started.elapsed() < Duration::from_secs(20), "no keep-alives");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn no_keep_alive_is_sent_when_it_is_switched_off() {
    let target = FakeTarget::new(16);
    let _controller = connect(&target, options().keep_alive(None)).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(target.lock().keep_alives, 0);
}

#[test]
fn a_closed_controller_ends_what_still_uses_it() {
    let target = FakeTarget::new(16);
    let controller = connect(&target, options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let buffer = controller.allocate(512).unwrap();
    controller.close();
    assert!(matches!(namespace.read(0, &buffer), Err(Error::Disconnected { .. })));
}

#[test]
fn a_namespace_keeps_its_controller_connected() {
    let target = FakeTarget::new(16);
    let controller = connect(&target, options()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let buffer = controller.allocate(512).unwrap();
    drop(controller);
    namespace.read(0, &buffer).unwrap();
}

#[test]
fn the_defaults_are_those_that_the_documentation_names() {
    let options = Options::default();
    assert_eq!((options.port, options.io_queues, options.queue_entries), (4420, 1, 128));
    assert!(!options.retry_writes);
}
