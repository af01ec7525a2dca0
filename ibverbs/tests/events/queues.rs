//! Completion queues: size and moderation.

use std::time::Duration;

use crate::support::Bench;

#[test]
fn a_moderation_period_beyond_what_c_can_say_is_out_of_range() {
    let bench = Bench::new();
    let queue = bench.queue();
    let error = queue.modify_moderation(16, Duration::from_secs(1)).unwrap_err();
    assert!(error.to_string().contains("1000000, allowed is 0 to 65535"), "{error}");
    drop(queue);
    bench.end();
}

#[test]
fn no_two_queues_have_the_same_number() {
    let bench = Bench::new();
    let (first, second) = (bench.queue(), bench.queue());
    assert_ne!(first.id(), second.id());
    assert_eq!(first.capacity(), 256);
    drop((first, second));
    bench.end();
}
