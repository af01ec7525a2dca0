//! A channel to the target, without a network.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use super::Target;
use crate::{
    Error, Result, Status, StatusType,
    transport::{Channel, Response, Waiter},
    wire::{Command, Completion},
};

/// One channel as both ends see it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) queue: u16,
    /// The controller that the connection was asked for.
    pub(super) controller_id: u16,
    pub(super) entries: u16,
    pub(super) state: Mutex<LinkState>,
    pub(super) arrived: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct LinkState {
    pub(super) is_cut: bool,
    pub(super) responses: VecDeque<Response>,
    /// Commands met by silence, and event requests.
    pub(super) silent: Vec<u16>,
    pub(super) event_requests: Vec<u16>,
    pub(super) held: Vec<(Command, Vec<u8>)>,
    pub(super) head: u16,
    pub(super) is_shut_down: bool,
    pub(super) authentication: Option<Vec<u8>>,
}

#[derive(Debug)]
pub(super) struct FakeChannel {
    pub(super) target: Arc<Mutex<Target>>,
    pub(super) link: Arc<Link>,
    pub(super) sent: Vec<(Command, Vec<u8>)>,
}

impl Channel for FakeChannel {
    fn entries(&self) -> u16 {
        self.link.entries
    }

    fn send(&mut self, place: u16, command: &Command, data: &[u8]) -> Result<()> {
        assert!(place < self.link.entries, "a place outside the queue");
        self.link.check()?;
        self.sent.push((*command, data.to_vec()));
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.link.check()?;
        let sent = std::mem::take(&mut self.sent);
        let mut target = self.target.lock().unwrap();
        for (command, data) in sent {
            target.take(&self.link, command, data);
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Response>> {
        let response = self.link.state.lock().unwrap().responses.pop_front();
        // What arrived before a cut is still there, as completions of a real queue are.
        match response {
            Some(response) => Ok(Some(response)),
            None => self.link.check().map(|()| None),
        }
    }

    fn arm(&mut self) -> Result<Arc<dyn Waiter>> {
        self.link.check()?;
        let waiter: Arc<dyn Waiter> = self.link.clone();
        Ok(waiter)
    }
}

impl Drop for FakeChannel {
    fn drop(&mut self) {
        self.link.cut();
    }
}

impl Waiter for Link {
    fn wait(&self, at_most: Duration) -> Result<()> {
        let state = self.state.lock().unwrap();
        if state.responses.is_empty() && !state.is_cut {
            drop(self.arrived.wait_timeout(state, at_most).unwrap());
        }
        Ok(())
    }

    #[cfg(feature = "tokio")]
    fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}

impl Link {
    pub(super) fn check(&self) -> Result<()> {
        if self.state.lock().unwrap().is_cut { Err(lost(self.queue)) } else { Ok(()) }
    }

    pub(super) fn cut(&self) {
        self.state.lock().unwrap().is_cut = true;
        self.arrived.notify_all();
    }

    pub(super) fn respond(&self, command_id: u16, result: u64, status: Status) {
        let submission_queue_head = {
            let mut state = self.state.lock().unwrap();
            state.head = (state.head + 1) % self.entries;
            state.head
        };
        let completion = Completion { result, submission_queue_head, command_id, status };
        self.deliver(Response { bytes: completion.to_bytes(), length: 16 });
    }

    pub(super) fn deliver(&self, response: Response) {
        self.state.lock().unwrap().responses.push_back(response);
        self.arrived.notify_all();
    }
}

/// Access outside of the host's memory: cuts the connection, as on RDMA.
pub(super) fn refuse(link: &Link) -> Status {
    link.cut();
    Status::new(StatusType::GENERIC, 0x04)
}

pub(super) fn lost(queue: u16) -> Error {
    Error::Transport { operation: "the fake", queue, source: "the connection is cut".into() }
}
