//! A device that refuses the first command of each kind; see `kernel_efa_refusals.efa`.
#![cfg(test)]

#[path = "backend/kernel.rs"]
mod backend;
#[expect(dead_code, reason = "nothing is transferred here")]
mod support;

use efa::{
    Error, Srd,
    ibverbs::{CompletionQueue, DeviceSelector, MemoryRegion, ProtectionDomain},
};
use support::{ALL, KEY, Lane, device, has_devices};

/// The verb and the errno of a refusal, and what its message says.
fn refusal(error: impl Into<Error>) -> (String, Option<i32>, String) {
    let error = error.into();
    let text = error.to_string();
    let verb = text.split(' ').next().unwrap().to_owned();
    (verb, error.errno(), text)
}

#[test]
fn each_refused_command_is_an_error_of_its_verb_and_the_next_one_succeeds() {
    if !has_devices(1) {
        return;
    }
    let context = device(0).open().unwrap();
    let port = context.local_port(&DeviceSelector::default()).unwrap();

    let (verb, errno, _) = refusal(ProtectionDomain::allocate(&context).unwrap_err());
    assert_eq!((verb.as_str(), errno), ("ibv_alloc_pd", Some(libc::ENOMEM)));
    let domain = ProtectionDomain::allocate(&context).unwrap();

    let (verb, errno, _) = refusal(CompletionQueue::create(&context, 16).unwrap_err());
    assert_eq!((verb.as_str(), errno), ("ibv_create_cq", Some(libc::ENOMEM)));
    let queue = CompletionQueue::create(&context, 16).unwrap();

    let builder = || efa::queue_pair::<Srd>(&domain, &queue, &queue);
    let (verb, errno, text) = refusal(builder().create().unwrap_err());
    assert_eq!((verb.as_str(), errno), ("efadv_create_qp_ex", Some(libc::ENOMEM)));
    assert!(text.contains("the device takes at most"), "{text}");
    let error = builder().prepare(&port, KEY).unwrap_err();
    assert!(error.to_string().contains("did not go from reset to initialized"), "{error}");
    let pair = builder().prepare(&port, KEY).unwrap();

    let (verb, errno, _) =
        refusal(MemoryRegion::register(&domain, vec![0_u8; 64], ALL).unwrap_err());
    assert_eq!((verb.as_str(), errno), ("ibv_reg_mr", Some(libc::ENOMEM)));
    drop(MemoryRegion::register(&domain, vec![0_u8; 64], ALL).unwrap());

    let endpoint = efa::EndpointInfo::new(&pair, &port, KEY);
    let (verb, errno, _) = refusal(endpoint.peer(&domain, &port).unwrap_err());
    assert_eq!((verb.as_str(), errno), ("ibv_create_ah", Some(libc::ENOMEM)));
    endpoint.peer(&domain, &port).unwrap();
}

#[test]
fn more_queue_pairs_than_the_device_has_are_refused_and_given_back() {
    if !has_devices(2) {
        return;
    }
    let context = device(1).open().unwrap();
    // Each refusal is one call; what is made here goes again.
    drop(ProtectionDomain::allocate(&context));
    drop(CompletionQueue::create(&context, 16));
    let lane = Lane::open(1);
    let mut pairs = Vec::new();
    let error = loop {
        match lane.builder().create() {
            Ok(pair) => pairs.push(pair),
            Err(error) if pairs.is_empty() => drop(error),
            Err(error) => break error,
        }
        assert!(pairs.len() < 100);
    };
    assert!(error.to_string().starts_with("efadv_create_qp_ex failed"), "{error}");
    let made = pairs.len();
    pairs.clear();
    for _ in 0..made {
        pairs.push(lane.builder().create().unwrap());
    }
}
