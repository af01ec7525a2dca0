//! Authentication with right, wrong and missing secrets.

use super::{connect, host, options};
use crate::{
    Error, Secret,
    auth::verifier::Verifier,
    fake::{FakeTarget, subsystem},
    wire::auth::{FailureReason, GroupId},
};

const HOST: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const CONTROLLER: &str =
    "DHHC-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:";

fn secret(text: &str) -> Secret {
    text.parse().unwrap()
}

fn target(group: GroupId) -> FakeTarget {
    let target = FakeTarget::new(16);
    target.lock().verifier = Some(Verifier {
        secret: secret(HOST),
        controller_secret: Some(secret(CONTROLLER)),
        host: host().nqn,
        subsystem: subsystem(),
        group,
    });
    target
}

#[test]
fn the_right_secrets_connect_one_way_and_both_ways() {
    for group in [GroupId::NULL, GroupId::FFDHE_2048, GroupId::FFDHE_3072] {
        let target = target(group);
        for options in [
            options().secret(secret(HOST)),
            options().secret(secret(HOST)).controller_secret(secret(CONTROLLER)),
        ] {
            let controller = connect(&target, options).unwrap();
            let block = controller.allocate(512).unwrap();
            controller.namespace(1).unwrap().write(0, &block).unwrap();
        }
    }
}

#[test]
fn wrong_secrets_fail_on_the_side_that_notices() {
    let target = target(GroupId::NULL);
    for options in [
        options().secret(secret(CONTROLLER)),
        options().secret(secret(HOST)).controller_secret(secret(HOST)),
    ] {
        let error = connect(&target, options).unwrap_err();
        assert!(
            matches!(error, Error::Authentication { reason: FailureReason::FAILED }),
            "{error}"
        );
    }
}

#[test]
fn a_missing_secret_is_said_to_be_missing() {
    let error = connect(&target(GroupId::NULL), options()).unwrap_err();
    assert!(matches!(error, Error::AuthenticationRequired), "{error}");
}

#[test]
fn a_controller_that_cannot_be_made_to_prove_itself_is_refused() {
    let open = FakeTarget::new(16);
    let options = options().secret(secret(HOST)).controller_secret(secret(CONTROLLER));
    assert!(matches!(connect(&open, options), Err(Error::Unsupported { .. })));
}
