//! The transport: a vfio-user server, by the `vfio_user` crate.
//!
//! That crate serves one connection per call, blocks, and needs every guest page to come with a
//! file descriptor; QEMU's `memory-backend-memfd` with `share=on` gives it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vfio_bindings::bindings::vfio;
use vfio_user::{
    DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion, SparseArea,
};

use crate::error::Error;
use crate::layout::{DOORBELL_BAR, Layout, REGISTER_BAR, SEND_QUEUE_BAR, VECTORS};

use super::config_space::{self, ConfigSpace};
use super::machine::Machine;
use super::mapping::Mapping;
use super::{PciFunction, REGISTER_BAR_BYTES};

/// Regions of a PCI function, in the order of their numbers: six BARs, ROM, configuration space,
/// VGA.
const REGIONS: u32 = 9;
const CONFIG_REGION: u32 = vfio::VFIO_PCI_CONFIG_REGION_INDEX;
/// Interrupt kinds: legacy, MSI, MSI-X, error, request.
const INTERRUPT_KINDS: u32 = 5;
const MSIX: u32 = vfio::VFIO_PCI_MSIX_IRQ_INDEX;

/// A socket that QEMU connects to.
pub(crate) struct Socket {
    server: Server,
    path: PathBuf,
}

impl Socket {
    /// Listens on `path` for the QEMU of a device with this layout, which finds its send queue
    /// memory in `machine`. A socket left behind by an earlier run is replaced.
    pub(crate) fn listen(path: &Path, layout: Layout, machine: &Machine) -> Result<Self, Error> {
        if let Err(error) = std::fs::remove_file(path)
            && error.kind() != io::ErrorKind::NotFound
        {
            log::warn!("{}: {error}", path.display());
        }
        let regions = (0..REGIONS).map(|number| region(number, layout, machine)).collect();
        let interrupts = (0..INTERRUPT_KINDS).map(interrupts).collect();
        let path = path.to_path_buf();
        match Server::new(&path, true, interrupts, regions) {
            Ok(server) => Ok(Self { server, path }),
            Err(source) => Err(Error::Listen { path, source }),
        }
    }

    /// Serves `function` to one QEMU after the other; returns when the socket breaks.
    pub(crate) fn serve(&self, function: &mut dyn PciFunction, machine: &Arc<Machine>) -> Error {
        loop {
            let mut connection =
                Connection { function, machine: machine.clone(), config: ConfigSpace::new() };
            let ended = self.server.run(&mut connection);
            connection.function.reset();
            machine.unplug();
            match ended {
                Ok(()) => log::info!("{}: disconnected", self.path.display()),
                Err(source @ vfio_user::Error::SocketAccept(_)) => {
                    return Error::Conversation { path: self.path.clone(), source };
                }
                Err(error) => log::warn!("{}: {error}", self.path.display()),
            }
        }
    }
}

fn region(number: u32, layout: Layout, machine: &Machine) -> ServerRegion {
    let bar = u8::try_from(number).unwrap_or(u8::MAX);
    let size = match (number, bar) {
        (CONFIG_REGION, _) => config_space::BYTES as u64,
        (_, REGISTER_BAR) => REGISTER_BAR_BYTES,
        (_, SEND_QUEUE_BAR) => layout.send_queue_bytes(),
        (_, DOORBELL_BAR) => layout.doorbell_bytes(),
        _ => 0,
    };
    let mut region_info = vfio::vfio_region_info {
        argsz: u32::try_from(size_of::<vfio::vfio_region_info>()).unwrap_or(0),
        index: number,
        size,
        ..Default::default()
    };
    if size > 0 {
        region_info.flags = vfio::VFIO_REGION_INFO_FLAG_READ | vfio::VFIO_REGION_INFO_FLAG_WRITE;
    }
    // The driver copies every send request to this BAR: trapped, each would cost eight messages.
    if bar == SEND_QUEUE_BAR {
        region_info.flags |= vfio::VFIO_REGION_INFO_FLAG_MMAP;
        let area = vfio::vfio_region_sparse_mmap_area { offset: 0, size };
        ServerRegion {
            region_info,
            sparse_areas: vec![SparseArea { area }],
            mmap_fd: Some(machine.send_queue_descriptor()),
        }
    } else {
        ServerRegion { region_info, sparse_areas: Vec::new(), mmap_fd: None }
    }
}

fn interrupts(kind: u32) -> IrqInfo {
    let count = if kind == MSIX { VECTORS.into() } else { 0 };
    let flags =
        if count > 0 { vfio::VFIO_IRQ_INFO_EVENTFD | vfio::VFIO_IRQ_INFO_NORESIZE } else { 0 };
    IrqInfo { index: kind, flags, count }
}

/// One QEMU.
struct Connection<'a> {
    function: &'a mut dyn PciFunction,
    machine: Arc<Machine>,
    config: ConfigSpace,
}

impl ServerBackend for Connection<'_> {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        data.fill(0);
        match (region, u8::try_from(region)) {
            (CONFIG_REGION, _) => self.config.read(offset, data),
            (_, Ok(SEND_QUEUE_BAR)) => {
                crate::host::Host::read_send_queue(&*self.machine, offset, data);
            }
            (_, Ok(bar)) => self.function.read(bar, offset, data),
            (_, Err(_)) => {}
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        match (region, u8::try_from(region)) {
            (CONFIG_REGION, _) => self.config.write(offset, data),
            (_, Ok(SEND_QUEUE_BAR)) => self.machine.write_send_queue(offset, data),
            (_, Ok(bar)) => self.function.write(bar, offset, data),
            (_, Err(_)) => {}
        }
        Ok(())
    }

    fn dma_map(
        &mut self,
        flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        fd: Option<File>,
    ) -> io::Result<()> {
        // Without a descriptor it is not memory but, for instance, another function's BAR.
        let Some(file) = fd else { return Ok(()) };
        let mapping = Mapping::new(&file, offset, size, flags.contains(DmaMapFlags::WRITE))?;
        self.machine.map(address, size, mapping);
        Ok(())
    }

    fn dma_unmap(&mut self, flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        if flags.contains(DmaUnmapFlags::UNMAP_ALL) {
            self.machine.unmap(0, u64::MAX);
        } else {
            self.machine.unmap(address, size);
        }
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        self.function.reset();
        Ok(())
    }

    fn set_irqs(
        &mut self,
        index: u32,
        flags: u32,
        start: u32,
        count: u32,
        fds: Vec<File>,
    ) -> io::Result<()> {
        if index != MSIX {
            return Ok(());
        }
        if count == 0 {
            self.machine.forget_vectors();
            return Ok(());
        }
        if flags & vfio::VFIO_IRQ_SET_DATA_EVENTFD == 0 {
            return Ok(());
        }
        if count > VECTORS.into() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // Vectors without a descriptor are unwired.
        let mut signals: Vec<Option<File>> = fds.into_iter().map(Some).collect();
        signals.resize_with(crate::bytes::index(count.into()), || None);
        if self.machine.wire(start, signals) {
            Ok(())
        } else {
            Err(io::ErrorKind::InvalidInput.into())
        }
    }
}
