//! Requests as futures, on tokio.

use std::{
    collections::HashMap,
    fmt,
    future::{Future, poll_fn},
    os::fd::OwnedFd,
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{mpsc, oneshot},
    time,
};

use crate::{
    Controller, Error, Finished, IoQueue, Memory, Refused, Request, Result, Ticket,
    transport::Waiter,
};

/// An I/O queue whose requests are futures.
///
/// A task of tokio owns the queue and waits for the device; the handle may be shared by any number
/// of tasks. The last handle's end lets the task finish what is pending and give the queue back.
///
/// Dropping the future of a request drops interest in it and nothing else: the request goes on,
/// and keeps its buffer until it ends.
pub struct AsyncQueue<B> {
    submissions: mpsc::Sender<Submission<B>>,
}

struct Submission<B> {
    request: Request<B>,
    answer: oneshot::Sender<Answer<B>>,
}

type Answer<B> = Result<Finished<B>, Refused<B>>;

impl Controller {
    /// Takes an I/O queue for futures, and starts the task that drives it on the present runtime,
    /// which needs its I/O and time drivers. Like [`Controller::take_queue`] otherwise.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if every queue is taken or in use.
    ///
    /// # Panics
    ///
    /// If there is no runtime, as [`tokio::spawn`] does.
    pub fn take_async_queue<B: Memory + 'static>(&self) -> Result<AsyncQueue<B>> {
        let queue = self.take_queue()?;
        let (submissions, received) = mpsc::channel(queue.depth());
        tokio::spawn(drive(queue, received));
        Ok(AsyncQueue { submissions })
    }
}

impl<B: Memory + 'static> AsyncQueue<B> {
    /// Runs a request to its end, waiting for a place in the queue first if there is none.
    ///
    /// # Errors
    ///
    /// [`Refused`] with the request if it was not taken: as
    /// [`IoQueue::submit`](crate::IoQueue::submit), and [`Error::Closed`] if the runtime is
    /// shutting down. How a request that was taken ended is in [`Finished::result`].
    pub async fn run(&self, request: Request<B>) -> Result<Finished<B>, Refused<B>> {
        let (answer, answered) = oneshot::channel();
        if let Err(mpsc::error::SendError(Submission { request, .. })) =
            self.submissions.send(Submission { request, answer }).await
        {
            return Err(Refused { error: Error::Closed, request });
        }
        // The task answers every submission, unless its runtime drops it with the request inside.
        match answered.await {
            Ok(answer) => answer,
            Err(_) => Ok(Finished::lost()),
        }
    }
}

impl<B> Clone for AsyncQueue<B> {
    fn clone(&self) -> Self {
        Self { submissions: self.submissions.clone() }
    }
}

impl<B> fmt::Debug for AsyncQueue<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncQueue").finish_non_exhaustive()
    }
}

/// Owns the queue until nobody submits any more and nothing is pending.
async fn drive<B: Memory>(mut queue: IoQueue<B>, mut received: mpsc::Receiver<Submission<B>>) {
    let mut answers: HashMap<Ticket, oneshot::Sender<Answer<B>>> = HashMap::new();
    let mut readiness = Readiness::default();
    let mut is_open = true;
    while is_open || !answers.is_empty() {
        while queue.has_room() {
            let Ok(Submission { request, answer }) = received.try_recv() else { break };
            submit(&mut queue, &mut answers, request, answer);
        }
        let mut has_progressed = false;
        while let Some(finished) = queue.poll() {
            has_progressed = true;
            if let Some(answer) = answers.remove(&finished.ticket) {
                // Nobody waits any more for a request whose future was dropped.
                drop(answer.send(Ok(finished)));
            }
        }
        if has_progressed {
            tokio::task::yield_now().await;
            continue;
        }
        if answers.is_empty() {
            match received.recv().await {
                Some(Submission { request, answer }) => {
                    submit(&mut queue, &mut answers, request, answer);
                }
                None => is_open = false,
            }
            continue;
        }
        let waiter = queue.arm();
        if let Some(finished) = queue.poll() {
            if let Some(answer) = answers.remove(&finished.ticket) {
                drop(answer.send(Ok(finished)));
            }
            continue;
        }
        let may_take = is_open && queue.has_room();
        let mut ready = pin!(readiness.wait(waiter));
        let mut late = pin!(time::sleep(queue.patience()));
        let submission = poll_fn(|context| {
            if may_take && let Poll::Ready(submission) = received.poll_recv(context) {
                return Poll::Ready(Some(submission));
            }
            let is_over =
                ready.as_mut().poll(context).is_ready() || late.as_mut().poll(context).is_ready();
            if is_over { Poll::Ready(None) } else { Poll::Pending }
        });
        match submission.await {
            Some(Some(Submission { request, answer })) => {
                submit(&mut queue, &mut answers, request, answer);
            }
            Some(None) => is_open = false,
            None => {}
        }
    }
}

fn submit<B: Memory>(
    queue: &mut IoQueue<B>,
    answers: &mut HashMap<Ticket, oneshot::Sender<Answer<B>>>,
    request: Request<B>,
    answer: oneshot::Sender<Answer<B>>,
) {
    match queue.submit(request) {
        Ok(ticket) => {
            answers.insert(ticket, answer);
        }
        Err(refused) => drop(answer.send(Err(refused))),
    }
}

/// The registration of the present connection's descriptor, kept from one wait to the next.
#[derive(Default)]
struct Readiness {
    registered: Option<(Arc<dyn Waiter>, AsyncFd<OwnedFd>)>,
}

impl Readiness {
    /// Waits until the descriptor becomes readable; without one, a moment.
    async fn wait(&mut self, waiter: Option<Arc<dyn Waiter>>) {
        let Some(waiter) = waiter else { return a_moment().await };
        let known = self.registered.take().filter(|(known, _)| Arc::ptr_eq(known, &waiter));
        self.registered = known.or_else(|| register(&waiter).map(|ready| (waiter, ready)));
        let Some((waiter, descriptor)) = &self.registered else { return a_moment().await };
        if let Ok(mut ready) = descriptor.readable().await {
            // Takes the notice away; an error shows when the queue is polled next.
            drop(waiter.wait(Duration::ZERO));
            ready.clear_ready();
        }
    }
}

async fn a_moment() {
    time::sleep(Duration::from_millis(1)).await;
}

/// Registers a copy of a waiter's descriptor with the runtime.
#[expect(deprecated, reason = "what replaces it is unsafe, and asks for what an `OwnedFd` is")]
fn register(waiter: &Arc<dyn Waiter>) -> Option<AsyncFd<OwnedFd>> {
    let descriptor = waiter.descriptor()?.try_clone_to_owned().ok()?;
    AsyncFd::with_interest(descriptor, Interest::READABLE).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Buffer, Host, Options,
        fake::{FakeTarget, Misbehaviour, subsystem},
    };

    fn controller(target: &FakeTarget) -> Controller {
        let options = Options::new().host(Host::random().unwrap());
        Controller::connect_over(target.transport(), subsystem(), options).unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn many_tasks_share_one_queue() {
        let target = FakeTarget::new(1024);
        let controller = controller(&target);
        let namespace = Arc::new(controller.namespace(1).unwrap());
        let queue = controller.take_async_queue::<Buffer>().unwrap();
        let tasks: Vec<_> = (0..64_u8)
            .map(|task| {
                let (queue, namespace) = (queue.clone(), Arc::clone(&namespace));
                let mut buffer = controller.allocate(512).unwrap();
                tokio::spawn(async move {
                    for round in 0..10 {
                        buffer.write_at(0, &[task ^ round; 512]).unwrap();
                        let request = Request::write(&namespace, u64::from(task), buffer);
                        let finished = queue.run(request).await.unwrap();
                        finished.result.unwrap();
                        buffer = finished.buffer.unwrap();
                        buffer.write_at(0, &[0xff; 512]).unwrap();
                        let request = Request::read(&namespace, u64::from(task), buffer);
                        let finished = queue.run(request).await.unwrap();
                        finished.result.unwrap();
                        buffer = finished.buffer.unwrap();
                        assert_eq!(buffer.to_vec(), [task ^ round; 512]);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_dropped_future_leaves_its_request_alone() {
        let target = FakeTarget::new(16);
        let controller = controller(&target);
        let namespace = controller.namespace(1).unwrap();
        let queue = controller.take_async_queue::<Buffer>().unwrap();
        target.misbehave([Misbehaviour::Silence]);
        let buffer = controller.allocate(512).unwrap();
        let lost = queue.run(Request::read(&namespace, 0, buffer));
        time::timeout(Duration::from_millis(20), lost).await.map(|_| ()).unwrap_err();
        let buffer = controller.allocate(512).unwrap();
        queue.run(Request::read(&namespace, 1, buffer)).await.unwrap().result.unwrap();
    }

    #[tokio::test]
    async fn a_queue_comes_back_when_its_last_handle_is_gone() {
        let target = FakeTarget::new(16);
        let controller = controller(&target);
        let queue = controller.take_async_queue::<Buffer>().unwrap();
        controller.take_queue::<Buffer>().map(|_| ()).unwrap_err();
        drop(queue);
        let started = std::time::Instant::now();
        while controller.take_queue::<Buffer>().is_err() {
            assert!(started.elapsed() < Duration::from_secs(20));
            time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn requests_that_do_not_fit_are_refused_with_their_buffer() {
        let target = FakeTarget::new(16);
        let controller = controller(&target);
        let namespace = controller.namespace(1).unwrap();
        let queue = controller.take_async_queue::<Buffer>().unwrap();
        let buffer = controller.allocate(512).unwrap();
        let refused = queue.run(Request::read(&namespace, 16, buffer)).await.unwrap_err();
        assert!(matches!(refused.error, Error::OutOfRange { .. }));
        assert!(refused.request.into_buffer().is_some());
    }
}
