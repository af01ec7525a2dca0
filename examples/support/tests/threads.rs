//! Ranks as threads of one process.

use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

use example_support::{AnyError, Error, Launcher, World, chain, launch, pattern, run};

fn byte(rank: usize) -> u8 {
    u8::try_from(rank).unwrap_or(u8::MAX)
}

#[test]
fn every_rank_gets_the_bytes_of_all_ranks_in_order() {
    for ranks in [1, 2, 5] {
        let ran = AtomicUsize::new(0);
        launch(ranks, |world| {
            let all = world.exchange(&vec![byte(world.rank()); world.rank() * 3])?;
            let expected: Vec<Vec<u8>> =
                (0..ranks).map(|rank| vec![byte(rank); rank * 3]).collect();
            assert_eq!(all, expected);
            assert_eq!((world.size(), world.local_rank()), (ranks, world.rank()));
            assert_eq!(world.launcher(), Launcher::Threads);
            ran.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Error>(())
        })
        .unwrap();
        assert_eq!(ran.into_inner(), ranks);
    }
}

#[test]
fn a_broadcast_reaches_every_rank_from_any_rank() {
    launch(3, |world| {
        for from in 0..3 {
            let own = format!("from rank {}", world.rank());
            let heard = world.broadcast(from, own.as_bytes())?;
            assert_eq!(heard, format!("from rank {from}").as_bytes());
        }
        assert!(matches!(world.broadcast(3, b""), Err(Error::NoSuchRank { rank: 3, size: 3 })));
        Ok::<_, Error>(())
    })
    .unwrap();
}

#[test]
fn nobody_passes_a_barrier_before_all_have_come() {
    let arrived = AtomicUsize::new(0);
    launch(4, |world| {
        for round in 1..=20 {
            arrived.fetch_add(1, Ordering::SeqCst);
            world.barrier()?;
            assert!(arrived.load(Ordering::SeqCst) >= round * 4);
            world.barrier()?;
        }
        Ok::<_, Error>(())
    })
    .unwrap();
}

#[test]
fn messages_larger_than_any_socket_buffer_arrive_whole() {
    launch(3, |world| {
        let all = world.exchange(&pattern(world.rank() as u64, World::LONGEST_MESSAGE))?;
        for (rank, bytes) in all.iter().enumerate() {
            assert_eq!(bytes.len(), World::LONGEST_MESSAGE);
            assert!(*bytes == pattern(rank as u64, bytes.len()));
        }
        Ok::<_, Error>(())
    })
    .unwrap();
}

#[test]
fn a_message_over_the_limit_is_refused_and_nothing_is_lost() {
    launch(2, |world| {
        let long = vec![0; World::LONGEST_MESSAGE + 1];
        let error = world.exchange(&long).unwrap_err();
        assert!(matches!(error, Error::TooLong { length: 16_777_217, .. }), "{error}");
        let own = byte(world.rank());
        assert_eq!(world.exchange_with_peer(&[own])?, [1 - own]);
        Ok::<_, Error>(())
    })
    .unwrap();
}

#[test]
fn an_exchange_with_the_peer_needs_two_ranks() {
    launch(3, |world| {
        let error = world.exchange_with_peer(b"").unwrap_err();
        assert!(matches!(error, Error::WorldSize { needed: 2, found: 3 }), "{error}");
        Ok::<_, Error>(())
    })
    .unwrap();
}

#[test]
fn the_first_failure_is_returned_and_the_others_hear_its_reason() {
    let heard = Mutex::new(Vec::new());
    let error = launch(3, |world| {
        world.barrier()?;
        if world.rank() == 1 {
            return Err(AnyError::from("no device"));
        }
        let error = world.barrier().unwrap_err();
        heard.lock().unwrap().push(error.to_string());
        Err(error.into())
    })
    .unwrap_err();
    assert_eq!(chain(&error), "rank 1 failed: no device");
    assert_eq!(heard.into_inner().unwrap(), ["rank 1 gave up: no device"; 2]);
}

#[test]
fn a_failure_of_rank_0_reaches_the_others() {
    let error = launch(2, |world| {
        if world.rank() == 0 {
            return Err(AnyError::from("no device"));
        }
        let error = world.barrier().unwrap_err();
        assert_eq!(error.to_string(), "rank 0 gave up: no device");
        Ok(())
    })
    .unwrap_err();
    assert_eq!(chain(&error), "rank 0 failed: no device");
}

#[test]
fn a_panic_becomes_an_error() {
    let error = launch(2, |world| {
        assert_ne!(world.rank(), 1, "on purpose");
        let error = world.barrier().unwrap_err();
        assert!(error.to_string().starts_with("rank 1 gave up: it panicked"), "{error}");
        Err(error)
    })
    .unwrap_err();
    assert!(matches!(&error, Error::Panicked { rank: 1, message } if message.contains("purpose")));
}

#[test]
fn ranks_that_call_different_operations_are_told_which() {
    let error = launch(2, |world| match world.rank() {
        0 => world.barrier(),
        _ => world.exchange(b"").map(drop),
    })
    .unwrap_err();
    let text = chain(&error);
    assert!(text.contains("rank 1 calls exchange (operation 1)"), "{text}");
    assert!(text.contains("this rank calls barrier (operation 1)"), "{text}");

    let error = launch(2, |world| world.broadcast(world.rank(), b"").map(drop)).unwrap_err();
    assert!(chain(&error).contains("broadcast from rank 1 (operation 1)"), "{error}");
}

#[test]
fn a_rank_that_has_ended_is_missed_by_name() {
    let error = launch(2, |world| if world.rank() == 1 { Ok(()) } else { world.barrier() });
    let text = chain(&error.unwrap_err());
    assert_eq!(text, "rank 0 failed: rank 1 has ended, this rank still waits for it in barrier");
}

#[test]
fn after_a_failure_the_world_says_why_it_is_unusable() {
    let error = launch(2, |world| {
        if world.rank() == 0 {
            return Ok(());
        }
        let first = world.barrier().unwrap_err();
        let second = world.barrier().unwrap_err();
        assert!(matches!(&second, Error::Unusable { reason } if *reason == first.to_string()));
        assert!(matches!(world.check_peers(), Err(Error::Unusable { .. })));
        Err(first)
    });
    assert!(chain(&error.unwrap_err()).starts_with("rank 1 failed: rank 0 has ended"));
}

#[test]
fn peers_are_well_while_they_work_and_after_they_finished() {
    launch(2, |world| {
        world.check_peers()?;
        if world.rank() == 1 {
            return world.exchange_with_peer(b"early").map(drop);
        }
        // Looking takes nothing away from what the other rank has already sent.
        for _ in 0..1000 {
            world.check_peers()?;
        }
        assert_eq!(world.exchange_with_peer(b"late")?, b"early");
        for _ in 0..1000 {
            world.check_peers()?;
        }
        Ok::<_, Error>(())
    })
    .unwrap();
}

#[test]
fn waiting_ends_with_what_was_found_or_when_a_peer_fails() {
    let error = launch(2, |world| {
        if world.rank() == 1 {
            return Err(AnyError::from("gone"));
        }
        let mut polls = 0;
        let found = world.wait_for("poll", || {
            polls += 1;
            Ok::<_, Error>((polls == 3).then_some(polls))
        })?;
        assert_eq!(found, 3);
        let error = world.wait_for("poll", || Ok::<Option<()>, Error>(None)).unwrap_err();
        assert_eq!(error.to_string(), "rank 1 gave up: gone");
        Ok(())
    });
    assert_eq!(chain(&error.unwrap_err()), "rank 1 failed: gone");
}

#[test]
fn many_worlds_live_side_by_side() {
    std::thread::scope(|scope| {
        for world in 0_u8..4 {
            scope.spawn(move || {
                launch(2, |rank| {
                    assert_eq!(rank.exchange_with_peer(&[world])?, [world]);
                    Ok::<_, Error>(())
                })
                .unwrap();
            });
        }
    });
}

#[test]
fn no_ranks_are_an_error_and_run_starts_threads_without_a_launcher() {
    assert!(launch(0, |_| Ok::<_, Error>(())).is_err());
    run(2, World::barrier).unwrap();
}
