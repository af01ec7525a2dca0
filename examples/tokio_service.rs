//! A service on tokio: many tasks on several threads share one queue pair.
//!
//! Rank 1 serves: it takes requests, adds up their bytes, and answers. Rank 0 asks: each of its tasks sends
//! requests and waits for its own answers, side by side with the others. All handles are `Arc`s in plain structs, with
//! no lifetime in sight; buffers are moved into requests and come back with their completions, so that no byte is
//! copied but by the network.
//!
//! ```text
//! cargo run --example tokio_service               both ranks here, on a real device or in software
//! torchrun --no-python --nproc-per-node 2 target/debug/examples/tokio_service
//! ```
//!
//! `RDMA_DEVICE`, `RDMA_PORT` and `RDMA_GID_INDEX` choose the device, its port and the GID.

use std::{
    collections::HashMap,
    process::ExitCode,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use example_support::{AnyError, World, any_device, report, run};
use ibverbs::{
    AsyncQueuePair, ConnectOptions, DeviceSelector, OwnedBuffer, OwnedQueuePair, ProtectionDomain,
    QpInfo, Rc, SendWr,
};
use tokio::{runtime::Builder, sync::oneshot, task::JoinSet};

/// Tasks of the client, and requests of each.
const TASKS: u32 = 8;
const REQUESTS: u32 = 50;
/// A request: its number and its bytes.
const REQUEST: usize = 4 + 1024;
/// An answer: the number of its request and the sum of the bytes.
const ANSWER: usize = 4 + 8;
/// More than the client's tasks ever have outstanding, since each waits for its answer.
const DEPTH: u32 = 2 * TASKS;

type Bytes = OwnedBuffer<'static, Vec<u8>>;
type Pair = AsyncQueuePair<Rc, Vec<u8>>;

fn main() -> ExitCode {
    report(run(2, rank))
}

fn rank(world: &World) -> Result<(), AnyError> {
    let selector = DeviceSelector::from_env()?;
    let context = Arc::new(any_device(world, &selector)?.open()?);
    let port = context.local_port(&selector)?;
    let domain = Arc::new(ProtectionDomain::allocate(&context)?);

    // Receives are posted before the peer can send.
    let options = ConnectOptions::new(&port);
    let pair = OwnedQueuePair::create(&domain, DEPTH, DEPTH)?;
    let mut pair = pair.initialize(&options)?;
    for _ in 0..DEPTH {
        pair.post_receive(OwnedBuffer::register(&domain, vec![0; REQUEST])?)?;
    }
    let local = pair.endpoint(&port);
    let remote = QpInfo::from_bytes(&world.exchange_with_peer(&local.to_bytes())?)?;
    let pair = pair.connect(&remote, &options)?;

    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let said = runtime.block_on(async {
        let pair = AsyncQueuePair::new(pair)?;
        let spare = (0..DEPTH).map(|_| OwnedBuffer::register(&domain, vec![0; REQUEST]));
        let spare = Mutex::new(spare.collect::<Result<_, _>>()?);
        match world.rank() {
            0 => Client { pair, spare, waiting: Mutex::default() }.ask_from_tasks().await,
            _ => Server { pair, spare }.serve().await,
        }
    })?;
    world.say(said);
    // Nobody leaves while the other may still need an answer from this side's device.
    world.barrier()?;
    Ok(())
}

/// What a service stores: no lifetimes, and every handle keeps its parents alive.
struct Server {
    pair: Pair,
    /// Buffers for answers.
    spare: Mutex<Vec<Bytes>>,
}

impl Server {
    async fn serve(self) -> Result<String, AnyError> {
        let server = Arc::new(self);
        let mut answers = JoinSet::new();
        for _ in 0..TASKS * REQUESTS {
            let request = server.pair.receive().await?;
            let sum = sum(request.received()?);
            let number = number(request.received()?)?;
            server.pair.post_receive(request.buffer)?;
            // Answers go out side by side, as many as there are buffers, while the next request is taken.
            if answers.len() == DEPTH as usize {
                answers.join_next().await.ok_or("no answer is under way")???;
            }
            answers.spawn(Arc::clone(&server).answer(number, sum));
        }
        while let Some(answer) = answers.join_next().await {
            answer??;
        }
        Ok(format!("answered {} requests", TASKS * REQUESTS))
    }

    async fn answer(self: Arc<Self>, number: u32, sum: u64) -> Result<(), AnyError> {
        let mut buffer = take(&self.spare)?;
        buffer[..4].copy_from_slice(&number.to_be_bytes());
        buffer[4..ANSWER].copy_from_slice(&sum.to_be_bytes());
        let sent = self.pair.post(buffer, ..ANSWER, |segment| SendWr::send(segment))?.await?;
        sent.outcome()?;
        lock(&self.spare).push(sent.buffer);
        Ok(())
    }
}

struct Client {
    pair: Pair,
    /// Buffers for requests.
    spare: Mutex<Vec<Bytes>>,
    /// Who waits for the answer to which request.
    waiting: Mutex<HashMap<u32, oneshot::Sender<u64>>>,
}

impl Client {
    async fn ask_from_tasks(self) -> Result<String, AnyError> {
        let client = Arc::new(self);
        let answers = tokio::spawn(Arc::clone(&client).hand_out_answers());
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let client = Arc::clone(&client);
            tasks.spawn(async move {
                for request in 0..REQUESTS {
                    client.ask(task * REQUESTS + request).await?;
                }
                Ok::<_, AnyError>(())
            });
        }
        while let Some(task) = tasks.join_next().await {
            task??;
        }
        answers.await??;
        Ok(format!("{TASKS} tasks got {} answers, each the right one", TASKS * REQUESTS))
    }

    /// Sends one request and waits for its answer.
    async fn ask(&self, number: u32) -> Result<(), AnyError> {
        let mut buffer = take(&self.spare)?;
        buffer[..4].copy_from_slice(&number.to_be_bytes());
        buffer[4..].fill(number.to_be_bytes()[3]);
        let expected = sum(&buffer);
        let (tell, answer) = oneshot::channel();
        lock(&self.waiting).insert(number, tell);
        let sent = self.pair.send(buffer)?.await?;
        sent.outcome()?;
        lock(&self.spare).push(sent.buffer);
        let answer = answer.await?;
        if answer != expected {
            return Err(format!("request {number}: {answer} instead of {expected}").into());
        }
        Ok(())
    }

    async fn hand_out_answers(self: Arc<Self>) -> Result<(), AnyError> {
        for _ in 0..TASKS * REQUESTS {
            let answer = self.pair.receive().await?;
            let bytes = answer.received()?;
            let sum = bytes.get(4..ANSWER).ok_or("an answer is too short")?;
            let sum = u64::from_be_bytes(sum.try_into()?);
            if let Some(tell) = lock(&self.waiting).remove(&number(bytes)?) {
                // The task may have given up.
                tell.send(sum).unwrap_or_default();
            }
            self.pair.post_receive(answer.buffer)?;
        }
        Ok(())
    }
}

fn number(message: &[u8]) -> Result<u32, AnyError> {
    let bytes = message.first_chunk().ok_or("a message is too short")?;
    Ok(u32::from_be_bytes(*bytes))
}

/// The sum of the bytes of a request.
fn sum(request: &[u8]) -> u64 {
    request.iter().skip(4).map(|byte| u64::from(*byte)).sum()
}

fn take(spare: &Mutex<Vec<Bytes>>) -> Result<Bytes, AnyError> {
    lock(spare).pop().ok_or_else(|| "no buffer is left".into())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
