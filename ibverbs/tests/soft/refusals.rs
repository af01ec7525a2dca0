//! Whatever verb is refused, at whichever of its calls: an error, and nothing is left behind.

use std::error::Error;

use ibverbs::{Access, Completion, ConnectOptions, DeviceSelector, Posting, Rc, RecvWr, SendWr};
use soft_device::SoftDevice;

use crate::support::{assert_clean, listed, memory_file, part_of};

/// Uses everything once, with borrowed parents.
#[expect(unsafe_code, reason = "registers memory by its descriptor")]
#[expect(clippy::panic_in_result_fn, reason = "what is refused is an error, what is wrong a panic")]
fn life(device: &SoftDevice, posting: Option<Posting>) -> Result<(), Box<dyn Error>> {
    let context = listed(device).open()?;
    let attributes = context.query_device()?;
    let port = context.local_port(&DeviceSelector::default())?;
    context.local_port(&DeviceSelector::default().gid_index(0))?;
    context.query_gid(port.port, 0)?;
    let key = context.query_pkey(port.port, 0)?;
    assert_eq!(context.pkey_index(port.port, key)?, 0);
    let domain = context.allocate_protection_domain()?;
    let queue = context.create_completion_queue(16)?;
    let create = || {
        let builder = domain.queue_pair::<Rc>(&queue, &queue).max_inline(16);
        match posting {
            Some(posting) => builder.posting(posting).create(),
            None => builder.create(),
        }
    };
    let (a, b) = (create()?, create()?);
    let (to_a, to_b) = (a.endpoint(&port), b.endpoint(&port));
    let options = ConnectOptions::new(&port).access(Access::REMOTE_WRITE);
    let (a, b) = (a.connect(&to_b, &options)?, b.connect(&to_a, &options)?);
    assert_eq!(a.query()?.peer(), b.number());
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let memory = domain.register(vec![1_u8; 64], access)?;
    let relaxed = domain.register(vec![0_u8; 64], access | Access::RELAXED_ORDERING)?;
    let file = memory_file(4096);
    let part = part_of(&file, 0, 4096, 0);
    // SAFETY: nobody else reaches the file.
    let foreign = unsafe { domain.register_dma_buf(vec![0_u8; 0], part, access) }?;
    let mut borrowed = [0_u8; 64];
    domain.scope(|scope| scope.register(&mut borrowed, access).map(|_| ()))?;
    for target in [&*relaxed, &*foreign] {
        b.post_receive(&mut [RecvWr::new(1)])?;
        let to = target.remote().at(0)?;
        a.post_send(&mut [SendWr::write_with_imm(memory.segment(..)?, &to, 1).signaled()])?;
    }
    let mut slots = Completion::slots::<8>();
    let found = queue.poll(&mut slots)?;
    assert_eq!(found.len(), 4);
    for completion in found {
        completion.outcome()?;
    }
    a.fail()?;
    a.reset()?;
    assert_eq!(relaxed.into_buffer()?, [1; 64]);
    assert!(attributes.port_count() > 0);
    Ok(())
}

/// All that a program calls. The list of devices is not here, since other tests read it at the same time,
/// and neither is deregistration, whose refusal ends a scope by aborting.
const VERBS: [&str; 22] = [
    "ibv_open_device",
    "ibv_query_device",
    "ibv_query_device_ex",
    "ibv_query_port",
    "ibv_query_gid",
    "ibv_query_gid_ex",
    "ibv_query_gid_table",
    "ibv_query_pkey",
    "ibv_get_pkey_index",
    "ibv_alloc_pd",
    "ibv_reg_mr",
    "ibv_reg_mr_iova",
    "ibv_reg_dmabuf_mr",
    "ibv_create_cq",
    "ibv_create_qp",
    "ibv_create_qp_ex",
    "ibv_modify_qp",
    "ibv_query_qp",
    "ibv_post_send",
    "ibv_post_recv",
    "ibv_wr_complete",
    "ibv_poll_cq",
];

/// Calls whose refusal the crate makes good by another one.
fn has_a_fallback(verb: &str, posting: Option<Posting>, errno: i32) -> bool {
    match verb {
        "ibv_create_qp_ex" => posting.is_none(),
        "ibv_query_device_ex" => errno == libc::EOPNOTSUPP,
        _ => false,
    }
}

fn every_call_refused(posting: Option<Posting>, errno: i32) {
    let device = SoftDevice::new();
    life(&device, posting).unwrap();
    assert_clean(&device);
    let calls = VERBS.map(|verb| (verb, device.calls(verb)));
    for (verb, count) in calls {
        for nth in 1..=count {
            let device = SoftDevice::new();
            device.refuse(verb, nth, errno);
            let outcome = life(&device, posting);
            assert_clean(&device);
            match outcome {
                Ok(()) => assert!(has_a_fallback(verb, posting, errno), "{verb}, call {nth}"),
                Err(error) => assert!(mentions(&*error, verb), "{verb}, call {nth}: {error}"),
            }
        }
    }
    let called: Vec<&str> =
        calls.into_iter().filter(|(_, count)| *count > 0).map(|(verb, _)| verb).collect();
    for verb in ["ibv_reg_dmabuf_mr", "ibv_modify_qp", "ibv_query_gid_table", "ibv_open_device"] {
        assert!(called.contains(&verb), "{verb} is not in the life of a program");
    }
}

/// Whether an error or one of its causes names the verb; a change of state names the states.
fn mentions(error: &(dyn Error + 'static), verb: &str) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        if text.contains(verb) || (verb == "ibv_modify_qp" && text.contains("did not go from")) {
            return true;
        }
        next = error.source();
    }
    false
}

#[test]
fn no_refused_call_leaves_anything_behind_with_extended_posting() {
    every_call_refused(Some(Posting::Extended), libc::EIO);
}

#[test]
fn no_refused_call_leaves_anything_behind_with_classic_posting() {
    every_call_refused(Some(Posting::Classic), libc::EIO);
}

#[test]
fn no_refused_call_leaves_anything_behind_with_the_posting_the_device_has() {
    every_call_refused(None, libc::ENOMEM);
    every_call_refused(None, libc::EOPNOTSUPP);
}

#[test]
fn a_refused_destruction_is_logged_and_panics_nowhere() {
    for (verb, nth) in [
        ("ibv_destroy_qp", 1),
        ("ibv_destroy_cq", 1),
        ("ibv_dealloc_pd", 1),
        ("ibv_close_device", 1),
        // The first one is that of the scope, the second one gives a buffer back.
        ("ibv_dereg_mr", 3),
    ] {
        let device = SoftDevice::new();
        device.refuse(verb, nth, libc::EIO);
        let (outcome, log) = crate::support::log_lines::logged(|| life(&device, None));
        outcome.unwrap();
        assert!(log.contains(verb), "{verb}: {log}");
        assert!(log.contains("leaked"), "{verb}: {log}");
        assert_ne!(device.leaks(), [""; 0], "{verb}");
    }
}

#[test]
fn a_limit_of_the_device_is_named_with_its_number() {
    let device = SoftDevice::builder().limits(|limits| limits.max_qp_wr = 100).build();
    let context = listed(&device).open().unwrap();
    let domain = context.allocate_protection_domain().unwrap();
    let queue = context.create_completion_queue(16).unwrap();
    let builder = domain.queue_pair::<Rc>(&queue, &queue).max_send_requests(101);
    let text = builder.create().unwrap_err().to_string();
    assert_eq!(
        text,
        "the number of send requests cannot be 101: it must be from 0 to 100; the device has no more"
    );
}

#[test]
fn queues_of_another_context_are_refused() {
    let device = SoftDevice::new();
    let (one, other) = (listed(&device).open().unwrap(), listed(&device).open().unwrap());
    let domain = one.allocate_protection_domain().unwrap();
    let queue = one.create_completion_queue(16).unwrap();
    let foreign = other.create_completion_queue(16).unwrap();
    let error = domain.queue_pair::<Rc>(&queue, &foreign).create().unwrap_err();
    assert!(error.to_string().contains("different contexts"), "{error}");
    assert_eq!(device.calls("ibv_create_qp_ex"), 0);
}
