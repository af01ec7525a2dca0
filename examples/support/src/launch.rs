//! Starting ranks: as threads of this process, or as what a launcher made of it.

use std::{
    any::Any,
    net::{Ipv4Addr, Ipv6Addr, TcpListener},
    panic::{AssertUnwindSafe, catch_unwind},
    process::{self, ExitCode},
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use crate::{
    AnyError, Error, Launcher, Result, World,
    environment::Environment,
    error::chain,
    meeting::{Meeting, digest},
    placement::Placement,
};

/// Runs `rank` as the rank that a launcher made of this process, or, without a launcher, `ranks`
/// times in threads of this process.
///
/// # Errors
///
/// As [`World::from_environment`] and [`launch`]; [`Error::WorldSize`] if the launcher started
/// another number of ranks.
pub fn run<E: Into<AnyError>>(
    ranks: usize,
    rank: impl Fn(&World) -> Result<(), E> + Sync,
) -> Result<()> {
    let environment = Environment::of_process();
    let Some(placement) = Placement::find(&environment)? else { return launch(ranks, rank) };
    if placement.size != ranks {
        return Err(Error::WorldSize { needed: ranks, found: placement.size });
    }
    let world = World::meet(placement, environment.timeout()?, None)?;
    attempt(&world, &rank).inspect_err(|error| world.give_up(&reason(error)))
}

/// Runs `rank` as one of two that somebody started by hand, here or on two hosts: without `host` as rank 0, the server, which
/// waits up to `arrival` for the other one; with it as rank 1, the client of the server there. They meet at a TCP port.
/// That the server waits is for the caller to say, who knows how the client is started.
///
/// # Errors
///
/// As [`run`].
pub fn run_by_hand<E: Into<AnyError>>(
    host: Option<&str>,
    port: u16,
    arrival: Duration,
    rank: impl Fn(&World) -> Result<(), E> + Sync,
) -> Result<()> {
    let timeout = Environment::of_process().timeout()?;
    let placement = Placement::by_hand(host, port);
    let arrival = if host.is_some() { timeout } else { arrival };
    let world = World::meet_within(placement, timeout, arrival, None)?;
    attempt(&world, &rank).inspect_err(|error| world.give_up(&reason(error)))
}

/// Runs `rank` once for each of `ranks` ranks, each in a thread of this process.
///
/// The ranks meet over TCP on the loopback device, as they would between hosts. Returns when all have
/// ended: when one fails, the others fail at their next operation, or end by themselves.
///
/// # Errors
///
/// The failure that happened first: [`Error::RankFailed`] with what the rank returned,
/// [`Error::Panicked`], or what kept the ranks from meeting. [`Error::NoSuchRank`] for no ranks at
/// all.
pub fn launch<E: Into<AnyError>>(
    ranks: usize,
    rank: impl Fn(&World) -> Result<(), E> + Sync,
) -> Result<()> {
    if ranks == 0 {
        return Err(Error::NoSuchRank { rank: 0, size: 0 });
    }
    let timeout = Environment::of_process().timeout()?;
    let (listener, meeting) = loopback()?;
    let mut listeners = Some(vec![listener]);
    let first_failure = Mutex::new(None);
    let record = |error| {
        first_failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    };
    thread::scope(|scope| {
        for number in 0..ranks {
            let placement = Placement {
                launcher: Launcher::Threads,
                rank: number,
                size: ranks,
                local_rank: number,
                meeting: (ranks > 1).then(|| meeting.clone()),
            };
            // Taken by rank 0, which comes first.
            let listeners = listeners.take();
            let (rank, record) = (&rank, &record);
            let work = move || match World::meet(placement, timeout, listeners) {
                Err(error) => record(error),
                Ok(world) => {
                    if let Err(error) = attempt(&world, rank) {
                        let reason = reason(&error);
                        // Recorded before the others hear of it, so that the first failure is first.
                        record(error);
                        world.give_up(&reason);
                    }
                }
            };
            let thread = thread::Builder::new().name(format!("rank {number}"));
            if let Err(source) = thread.spawn_scoped(scope, work) {
                record(Error::System { operation: "starting a thread for a rank", source });
                break;
            }
        }
    });
    match first_failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        None => Ok(()),
        Some(error) => Err(error),
    }
}

/// Turns the end of a program into its exit code; prints an error and its causes to standard error.
#[must_use]
pub fn report(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            use std::io::Write;
            let line = format!("error: {}\n", chain(&error));
            // Nobody is left to tell if standard error is closed.
            drop(std::io::stderr().lock().write_all(line.as_bytes()));
            ExitCode::FAILURE
        }
    }
}

fn attempt<E: Into<AnyError>>(
    world: &World,
    rank: &impl Fn(&World) -> Result<(), E>,
) -> Result<()> {
    let number = world.rank();
    match catch_unwind(AssertUnwindSafe(|| rank(world))) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(Error::RankFailed { rank: number, source: error.into() }),
        Err(payload) => {
            let message = panic_message(payload.as_ref());
            Err(Error::Panicked { rank: number, message })
        }
    }
}

/// What the others hear; the rank itself is named beside it.
fn reason(error: &Error) -> String {
    match error {
        Error::RankFailed { source, .. } => chain(source.as_ref()),
        Error::Panicked { message, .. } => format!("it panicked: {message}"),
        other => chain(other),
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a value that is no text".to_owned())
}

/// A free port of this host, held from here on.
fn loopback() -> Result<(TcpListener, Meeting)> {
    let failed = |source| Error::Listen { address: "the loopback device".to_owned(), source };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .or_else(|_| TcpListener::bind((Ipv6Addr::LOCALHOST, 0)))
        .map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let meeting = Meeting {
        hosts: vec![address.ip().to_string()],
        ports: vec![address.port()],
        job: digest(&["threads", &process::id().to_string(), &address.to_string()]),
        remedy_if_wrong: None,
    };
    Ok((listener, meeting))
}
