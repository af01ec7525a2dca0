//! Authentication with right, wrong and missing secrets.
#![expect(clippy::expect_used, reason = "what goes wrong here fails the test")]

use crate::target::{Nvmet, has_target, host, options, pattern};
use nvmeof::{Error, Secret};

const HOST: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const TRANSFORMED: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const CONTROLLER: &str =
    "DHHC-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:";

fn secret(text: &str) -> Secret {
    text.parse().expect("a valid secret")
}

#[test]
fn the_right_secrets_open_every_queue_in_every_group() {
    if !has_target() {
        return;
    }
    for group in ["null", "ffdhe2048", "ffdhe3072", "ffdhe4096"] {
        for host_secret in [HOST, TRANSFORMED] {
            let mut target = Nvmet::new("secret");
            target.authenticate(&host().nqn, group, host_secret, None);
            let settings = options().io_queues(2).secret(secret(host_secret));
            let controller = target.connect(settings).unwrap();
            let namespace = controller.namespace(1).unwrap();
            let buffer = controller.allocate(4096).unwrap();
            buffer.write_at(0, &pattern(4096, 9)).unwrap();
            namespace.write(0, &buffer).unwrap();
        }
    }
}

#[test]
fn the_controller_proves_itself_if_it_has_to() {
    if !has_target() {
        return;
    }
    let mut target = Nvmet::new("mutual");
    target.authenticate(&host().nqn, "ffdhe2048", HOST, Some(CONTROLLER));
    let both = options().secret(secret(HOST)).controller_secret(secret(CONTROLLER));
    let controller = target.connect(both).unwrap();
    assert_eq!(controller.namespaces().unwrap(), [1]);
    drop(controller);

    let wrong = options().secret(secret(HOST)).controller_secret(secret(HOST));
    let error = target.connect(wrong).unwrap_err();
    assert!(matches!(error, Error::Authentication { .. }), "{error:?}");
}

#[test]
fn wrong_and_missing_secrets_are_told_apart() {
    if !has_target() {
        return;
    }
    let mut target = Nvmet::new("wrong");
    target.authenticate(&host().nqn, "null", HOST, None);
    let error = target.connect(options()).unwrap_err();
    assert!(matches!(error, Error::AuthenticationRequired), "{error:?}");
    let error = target.connect(options().secret(secret(CONTROLLER))).unwrap_err();
    // The kernel sends its verdict and ends the connection at once; either may come first.
    assert!(
        matches!(error, Error::Authentication { .. } | Error::LostWhileAuthenticating { .. }),
        "{error:?}"
    );
    drop(target.connect(options().secret(secret(HOST))).unwrap());
}

#[test]
fn a_target_that_asks_nobody_cannot_be_made_to_prove_itself() {
    if !has_target() {
        return;
    }
    let target = Nvmet::new("open");
    let both = options().secret(secret(HOST)).controller_secret(secret(CONTROLLER));
    assert!(matches!(target.connect(both), Err(Error::Unsupported { .. })));
}
