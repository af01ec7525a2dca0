//! Making a queue of a channel: Connect, and authentication where the target asks for it.

use std::{sync::Arc, time::Duration};

use crate::{
    Buffer, CommandSet, Error, Host, Memory, Nqn, Result, Secret, Violation,
    auth::Exchange,
    error::Whole,
    status::{Status, StatusType},
    sync_queue::SyncQueue,
    transport::{ChannelParameters, Transport},
    wire::{
        Command, Descriptor,
        auth::{FailureReason, MAX_MESSAGE_BYTES, failure2},
        fabrics::{self, Connect, ConnectComplaint, ConnectData, ConnectResult},
    },
};

/// Who connects to what, the same for all queues of a controller.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) host: Host,
    pub(crate) subsystem: Nqn,
    pub(crate) secret: Option<Secret>,
    pub(crate) controller_secret: Option<Secret>,
}

/// Opens a channel and makes a queue of it. `controller` is the controller to join, or
/// [`ConnectData::ANY_CONTROLLER`] on the admin queue. Gives the controller that was joined.
pub(crate) fn open(
    transport: &dyn Transport,
    parameters: &ChannelParameters,
    identity: &Identity,
    controller: u16,
    keep_alive: Duration,
    timeout: Duration,
) -> Result<(SyncQueue, u16)> {
    let mut queue = SyncQueue::open(transport, parameters, timeout)?;
    let data = ConnectData {
        host_id: identity.host.id.0,
        controller_id: controller,
        subsystem: identity.subsystem.clone(),
        host: identity.host.nqn.clone(),
    };
    let buffer = transport.allocate(ConnectData::BYTES)?;
    buffer.write_at(0, &data.to_bytes())?;
    let connect = Connect {
        queue: parameters.queue,
        entries: queue.entries(),
        keep_alive_milliseconds: u32::try_from(keep_alive.as_millis()).unwrap_or(u32::MAX),
    };
    let command = connect.to_command().data(descriptor(&buffer, ConnectData::BYTES));
    let completion = queue.complete("connect", command)?;
    if !completion.status.is_success() {
        return Err(refused(parameters.queue, completion.status, completion.dword0()));
    }
    let joined = ConnectResult::from_dword(completion.dword0());
    if controller != ConnectData::ANY_CONTROLLER && joined.controller_id != controller {
        let violation =
            Violation::WrongController { expected: controller, found: joined.controller_id };
        return Err(Error::Protocol { queue: parameters.queue, violation });
    }
    if joined.secure_channel_required {
        return Err(Error::Unsupported {
            what: "a secure channel",
            reason: "the target asks for one, which RDMA does not have; switch it off there",
        });
    }
    if joined.authentication_required {
        authenticate(transport, &mut queue, identity)?;
    } else if identity.controller_secret.is_some() && parameters.queue == 0 {
        return Err(Error::Unsupported {
            what: "proof of who the controller is",
            reason: "the target does not ask for authentication, and only then proves anything; \
                     set it up there, or connect without the controller's secret",
        });
    }
    Ok((queue, joined.controller_id))
}

/// Proves to the target who the host is, and checks who the target is if that is wanted.
fn authenticate(
    transport: &dyn Transport,
    queue: &mut SyncQueue,
    identity: &Identity,
) -> Result<()> {
    let secret = identity.secret.as_ref().ok_or(Error::AuthenticationRequired)?;
    let mut exchange = Exchange::new(
        secret,
        identity.controller_secret.as_ref(),
        &identity.host.nqn,
        &identity.subsystem,
        queue.number().wrapping_add(1),
    );
    let transaction = exchange.transaction();
    let buffer = transport.allocate(usize::try_from(MAX_MESSAGE_BYTES).unwrap_or(4096))?;
    let outcome = (|| {
        send(queue, &buffer, &exchange.negotiate())?;
        let challenge = receive(queue, &buffer)?;
        let reply = exchange.reply(&challenge)?;
        let judged = send(queue, &buffer, &reply).and_then(|()| receive(queue, &buffer));
        exchange.finish(&judged.map_err(|error| {
            if error.is_connection() {
                Error::LostWhileAuthenticating { cause: Arc::new(error) }
            } else {
                error
            }
        })?)
    })();
    match outcome {
        Ok(Some(last)) => send(queue, &buffer, &last),
        Ok(None) => Ok(()),
        Err(Error::Authentication { reason }) => {
            // The target may have closed the connection already; the reason matters more.
            let told = send(queue, &buffer, &failure2(transaction, reason));
            if let Err(error) = told {
                log::debug!("the target was not told of the failure: {}", Whole(&error));
            }
            Err(Error::Authentication { reason })
        }
        Err(Error::Malformed { .. } | Error::Short { .. }) => {
            Err(Error::Authentication { reason: FailureReason::INCORRECT_PAYLOAD })
        }
        Err(other) => Err(other),
    }
}

fn send(queue: &mut SyncQueue, buffer: &Buffer, message: &[u8]) -> Result<()> {
    buffer.write_at(0, message)?;
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let command = fabrics::authentication_send(length).data(descriptor(buffer, message.len()));
    queue.execute("authentication send", CommandSet::Fabrics, command).map(|_| ())
}

fn receive(queue: &mut SyncQueue, buffer: &Buffer) -> Result<Vec<u8>> {
    buffer.write_at(0, &vec![0; buffer.len()])?;
    let command =
        fabrics::authentication_receive(MAX_MESSAGE_BYTES).data(descriptor(buffer, buffer.len()));
    queue.execute("authentication receive", CommandSet::Fabrics, command)?;
    Ok(buffer.to_vec())
}

/// The first `length` bytes of a buffer as data of a command.
pub(crate) fn descriptor(buffer: &Buffer, length: usize) -> Descriptor {
    Descriptor::Keyed {
        address: buffer.address(),
        length: u32::try_from(length).unwrap_or(u32::MAX).min(Descriptor::MAX_KEYED_LENGTH),
        key: buffer.remote_key(),
    }
}

/// Memory for what a command of the admin queue returns.
pub(crate) struct Page(Buffer);

impl Page {
    /// Registers memory for `length` bytes.
    pub(crate) fn new(transport: &dyn Transport, length: u32) -> Result<Self> {
        transport.allocate(usize::try_from(length).unwrap_or(usize::MAX)).map(Self)
    }

    /// Sends a command that fills the memory, and gives the bytes.
    pub(crate) fn fetch(
        &self,
        queue: &mut SyncQueue,
        operation: &'static str,
        command: Command,
    ) -> Result<Vec<u8>> {
        let data = descriptor(&self.0, self.0.len());
        queue.execute(operation, CommandSet::Admin, command.data(data))?;
        Ok(self.0.to_vec())
    }
}

/// Sends a command that returns `length` bytes, and gives them.
pub(crate) fn fetch(
    transport: &dyn Transport,
    queue: &mut SyncQueue,
    operation: &'static str,
    command: Command,
    length: u32,
) -> Result<Vec<u8>> {
    Page::new(transport, length)?.fetch(queue, operation, command)
}

fn refused(queue: u16, status: Status, dword: u32) -> Error {
    let speaks_of_a_parameter = [0x82, 0x84]
        .into_iter()
        .any(|code| status.is_same_code(Status::new(StatusType::COMMAND_SPECIFIC, code)));
    let complaint = if speaks_of_a_parameter {
        ConnectComplaint::from_dword(dword).parameter()
    } else {
        "nothing in particular"
    };
    Error::ConnectRefused { queue, status, complaint }
}
