//! A fabric served to virtual machines: one socket per device, one clock.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::bytes::Fields;
use crate::config::{DeviceConfig, FabricConfig};
use crate::error::Error;
use crate::fabric::{DeviceNumber, Fabric};
use crate::layout::{DOORBELL_BAR, Layout, REGISTER_BAR};
use crate::transport::{Machine, PciFunction, Socket};

/// A device to serve, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The Unix socket that QEMU connects to.
    pub socket: PathBuf,
    /// What the device is like.
    pub config: DeviceConfig,
}

/// Serves devices on one fabric, and returns when a socket breaks.
///
/// Starts one thread per device, and runs the fabric's clock in another. Each socket takes one
/// QEMU at a time; when that one goes away its device is reset and the next may connect.
///
/// # Errors
///
/// Whatever kept it from listening on every socket, or the first socket to break.
pub fn serve(config: FabricConfig, endpoints: Vec<Endpoint>) -> Result<(), Error> {
    let mut fabric = Fabric::new(config);
    let mut devices = Vec::new();
    for Endpoint { socket, config } in endpoints {
        config.check()?;
        let layout = Layout::new(&config);
        let bytes = layout.send_queue_bytes();
        let machine =
            Machine::new(bytes).map_err(|source| Error::SendQueueMemory { bytes, source })?;
        let machine = Arc::new(machine);
        let number = fabric.add(config, machine.clone())?;
        let socket = Socket::listen(&socket, layout, &machine)?;
        devices.push((number, socket, machine));
    }
    let clocked = Arc::new(Clocked::new(fabric));
    let (report, reports) = std::sync::mpsc::channel();
    for (number, socket, machine) in devices {
        let mut function = Function { clocked: clocked.clone(), number };
        let report = report.clone();
        start(format!("{number:?}"), move || {
            let error = socket.serve(&mut function, &machine);
            report.send(error).unwrap_or_else(|lost| log::error!("{}", lost.0));
        })?;
    }
    drop(report);
    start("the clock".to_owned(), move || clocked.run())?;
    reports.recv().map_or(Ok(()), Err)
}

fn start(what: String, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let spawned: io::Result<thread::JoinHandle<()>> =
        thread::Builder::new().name(what.clone()).spawn(run);
    spawned.map(drop).map_err(|source| Error::Thread { what, source })
}

/// A fabric with a clock.
#[derive(Debug)]
struct Clocked {
    state: Mutex<State>,
    sooner: Condvar,
    started: Instant,
}

#[derive(Debug)]
struct State {
    fabric: Fabric,
    /// When the clock thread wakes up.
    wake_at: Duration,
}

impl Clocked {
    fn new(fabric: Fabric) -> Self {
        Self {
            state: Mutex::new(State { fabric, wake_at: Duration::ZERO }),
            sooner: Condvar::new(),
            started: Instant::now(),
        }
    }

    /// Does `work` on the fabric, and everything that is due with it.
    fn with<T>(&self, work: impl FnOnce(&mut Fabric) -> T) -> T {
        let mut state = self.lock();
        state.fabric.advance(self.started.elapsed());
        let done = work(&mut state.fabric);
        let next = state.fabric.advance(self.started.elapsed());
        if next < state.wake_at {
            self.sooner.notify_one();
        }
        done
    }

    /// Wakes up whenever something is due.
    fn run(&self) {
        let mut state = self.lock();
        loop {
            let now = self.started.elapsed();
            state.wake_at = state.fabric.advance(now);
            let pause = state.wake_at.saturating_sub(now);
            (state, _) =
                self.sooner.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One device of a fabric as a PCI function.
struct Function {
    clocked: Arc<Clocked>,
    number: DeviceNumber,
}

impl PciFunction for Function {
    fn read(&mut self, bar: u8, offset: u64, data: &mut [u8]) {
        if bar != REGISTER_BAR || !offset.is_multiple_of(4) {
            return;
        }
        let number = self.number;
        let value = self.clocked.with(|fabric| fabric.read_register(number, offset));
        for (byte, value) in data.iter_mut().zip(value.to_le_bytes()) {
            *byte = value;
        }
    }

    fn write(&mut self, bar: u8, offset: u64, data: &[u8]) {
        if data.len() != 4 {
            log::debug!("write of {} bytes to BAR {bar} at {offset:#x} ignored", data.len());
            return;
        }
        let (number, value) = (self.number, Fields(data).u32(0));
        match bar {
            REGISTER_BAR => {
                self.clocked.with(|fabric| fabric.write_register(number, offset, value));
            }
            DOORBELL_BAR => self.clocked.with(|fabric| fabric.ring(number, offset, value)),
            _ => {}
        }
    }

    fn reset(&mut self) {
        let number = self.number;
        self.clocked.with(|fabric| fabric.reset(number));
    }
}
