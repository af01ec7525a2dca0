//! An echo server and its client, which find each other by IP address and port.
//!
//! ```text
//! cargo run --example cm_echo -- listen 0.0.0.0:7471          serves everybody, until it is stopped
//! cargo run --example cm_echo -- listen 0.0.0.0:7471 1        serves one connection
//! cargo run --example cm_echo -- 192.0.2.7:7471 hello world   sends two words there and prints what comes back
//! ```
//!
//! Nothing says which device to use: the connection manager finds the one that leads to the address. It works on real
//! devices only; `rdma link add rxe0 type rxe netdev eth0` makes one in software.

#![expect(clippy::print_stdout, reason = "a program for people")]

use std::{env, process::ExitCode, sync::Arc, thread, time::Duration};

use example_support::{AnyError, chain};
use ibverbs::{
    Access, Completion, CompletionChannel, CompletionQueue, Context, Initialized, MemoryRegion,
    Operation, PostsReceives, ProtectionDomain, QueuePair, Rc, RecvWr, Reset, Segment, SendWr,
    connection::{Connection, EventKind, Listener, Parameters, Request, Route},
};

/// The longest message.
const SLOT: usize = 1024;
/// How many messages can be on the way to this side at a time.
const DEPTH: usize = 4;
/// How long one side waits for the other.
const TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["listen", address] => listen(address, None),
        ["listen", address, count] => listen(address, Some(count)),
        [address, messages @ ..] if !messages.is_empty() => ask(address, messages),
        _ => {
            Err("usage: cm_echo listen ADDRESS:PORT [CONNECTIONS] | cm_echo ADDRESS:PORT WORD…"
                .into())
        }
    };
    if let Err(error) = outcome {
        println!("error: {}", chain(&*error));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn listen(address: &str, count: Option<&str>) -> Result<(), AnyError> {
    let count = count.map_or(Ok(usize::MAX), str::parse)?;
    let listener = Listener::at(address.parse()?).reuse_address().listen()?;
    println!("listening at {}", listener.local_address().ok_or("it has no address")?);
    thread::scope(|scope| {
        for _ in 0..count {
            let request = listener.accept(None)?;
            scope.spawn(|| {
                if let Err(error) = serve(request) {
                    println!("a connection failed: {}", chain(&*error));
                }
            });
        }
        Ok(())
    })
}

/// Sends each message back, until the peer ends the connection.
fn serve(request: Request) -> Result<(), AnyError> {
    let peer = request.peer_address().ok_or("it has no address")?;
    let end = End::on(&request.context()?)?;
    // The receives are there before the peer can send.
    let queue_pair = end.ready(request.initialize(end.queue_pair()?)?)?;
    let connection = request.accept(queue_pair, &Parameters::new())?;
    println!("{peer} is connected");
    let mut messages = 0;
    loop {
        let mut slots = Completion::slots::<DEPTH>();
        for completion in end.queue.wait(&mut slots, Duration::from_millis(50))? {
            // What is left when the connection ends comes back as flushed.
            let Ok(work) = completion.outcome() else { continue };
            let slot = usize::try_from(work.id())?;
            if work.operation() == Operation::RECEIVE {
                let message = end.part(slot, work.byte_length() as usize)?;
                let echo = SendWr::send(message).id(work.id()).signaled();
                connection.queue_pair().post_send(&mut [echo])?;
                messages += 1;
            } else {
                // The echo has left, so that its memory takes the next message.
                end.post_receive(connection.queue_pair(), slot)?;
            }
        }
        if connection.try_event()?.is_some_and(|event| event.kind() == EventKind::DISCONNECTED) {
            println!("{peer} has gone after {messages} messages");
            return Ok(());
        }
    }
}

fn ask(address: &str, messages: &[&str]) -> Result<(), AnyError> {
    let route = Route::to(address.parse()?).resolve()?;
    let context = route.context()?;
    println!("the way there is {}", context.device().name());
    let end = End::on(&context)?;
    let queue_pair = end.ready(route.initialize(end.queue_pair()?)?)?;
    let connection = route.connect(queue_pair, &Parameters::new())?;
    for message in messages {
        let bytes = message.as_bytes();
        // The slot after those of the receives.
        let outgoing = end.part(DEPTH, bytes.len())?;
        end.memory.bytes().write(DEPTH * SLOT, bytes)?;
        connection.queue_pair().post_send(&mut [SendWr::send(outgoing).signaled()])?;
        println!("{}", end.echo(&connection)?);
    }
    connection.disconnect()?;
    connection.wait_disconnected(TIMEOUT)?;
    Ok(())
}

/// What one end of a connection needs. Everything is shared, so that it can be stored beside what it was made from.
struct End {
    domain: Arc<ProtectionDomain<'static>>,
    queue: Arc<CompletionQueue<'static>>,
    /// A slot for each receive, and one more.
    memory: MemoryRegion<'static, Vec<u8>>,
}

impl End {
    fn on(context: &Arc<Context>) -> Result<Self, AnyError> {
        let domain = Arc::new(ProtectionDomain::allocate(context)?);
        let channel = Arc::new(CompletionChannel::create(context)?);
        let queue = CompletionQueue::builder(context, 16).channel(channel).create()?;
        let memory = vec![0; (DEPTH + 1) * SLOT];
        let memory = MemoryRegion::register(&domain, memory, Access::LOCAL_WRITE)?;
        Ok(Self { domain, queue: Arc::new(queue), memory })
    }

    fn queue_pair(&self) -> Result<QueuePair<'static, Rc, Reset>, AnyError> {
        Ok(QueuePair::builder(&self.domain, &self.queue, &self.queue).create()?)
    }

    /// Posts every receive.
    fn ready(
        &self,
        queue_pair: QueuePair<'static, Rc, Initialized>,
    ) -> Result<QueuePair<'static, Rc, Initialized>, AnyError> {
        for slot in 0..DEPTH {
            self.post_receive(&queue_pair, slot)?;
        }
        Ok(queue_pair)
    }

    fn post_receive<S: PostsReceives>(
        &self,
        queue_pair: &QueuePair<'static, Rc, S>,
        slot: usize,
    ) -> Result<(), AnyError> {
        let receive = RecvWr::to(slot as u64, self.part(slot, SLOT)?);
        Ok(queue_pair.post_receive(&mut [receive])?)
    }

    /// The first bytes of a slot.
    fn part(&self, slot: usize, length: usize) -> Result<Segment<'_>, AnyError> {
        if length > SLOT {
            return Err(format!("{length} bytes; a message has at most {SLOT}").into());
        }
        Ok(self.memory.segment(slot * SLOT..slot * SLOT + length)?)
    }

    /// Waits for the completion of the send, and for the message that comes back.
    fn echo(&self, connection: &Connection<'static>) -> Result<String, AnyError> {
        let (mut sent, mut echo) = (false, None);
        loop {
            if let (true, Some(echo)) = (sent, &echo) {
                return Ok(String::clone(echo));
            }
            let mut slots = Completion::slots::<1>();
            let [completion] = self.queue.wait(&mut slots, TIMEOUT)? else {
                return Err("the server does not answer".into());
            };
            let work = completion.outcome()?;
            if work.operation() == Operation::RECEIVE {
                let slot = usize::try_from(work.id())?;
                let mut bytes = vec![0; work.byte_length() as usize];
                self.memory.bytes().read(slot * SLOT, &mut bytes)?;
                echo = Some(String::from_utf8(bytes)?);
                self.post_receive(connection.queue_pair(), slot)?;
            } else {
                sent = true;
            }
        }
    }
}
