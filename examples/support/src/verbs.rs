//! What most examples do with queue pairs before they come to their own point.

use ibverbs::{
    Access, Completion, CompletionQueue, ConnectOptions, FinishedWork, LocalPort, QpInfo,
    QueuePair, Rc, Reset,
};

use crate::{AnyError, World};

/// Connects a queue pair to the other rank's, over a port of this side; the other rank may then do what
/// `incoming` allows.
///
/// # Errors
///
/// The other rank is missing or sends something else, or the device refuses.
pub fn connect<'a>(
    world: &World,
    port: &LocalPort,
    pair: QueuePair<'a, Rc, Reset>,
    incoming: Access,
) -> Result<QueuePair<'a, Rc>, AnyError> {
    let local = pair.endpoint(port);
    let remote = QpInfo::from_bytes(&world.exchange_with_peer(&local.to_bytes())?)?;
    Ok(pair.connect(&remote, &ConnectOptions::new(port).access(incoming))?)
}

/// Waits for one completion, which must be a success, and hands it to `look`. Ends with an error when the other
/// rank dies or the time-out passes.
///
/// # Errors
///
/// The work failed, a rank failed, or nothing came in time.
pub fn wait<T>(
    world: &World,
    what: &str,
    queue: &CompletionQueue<'_>,
    look: impl Fn(FinishedWork<'_>) -> T,
) -> Result<T, AnyError> {
    let mut slots = Completion::slots::<1>();
    world.wait_for(what, || -> Result<Option<T>, AnyError> {
        match queue.poll(&mut slots)? {
            [completion] => Ok(Some(look(completion.outcome()?))),
            _ => Ok(None),
        }
    })
}
