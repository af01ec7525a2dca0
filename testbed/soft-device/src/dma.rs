//! Memory that only another device reaches: dma-bufs that the processor cannot map.
//!
//! A test hands the device a [`DmaEngine`], which moves bytes to and from such memory as the DMA of a
//! NIC would. Writes can be held back until they are flushed, as those of a NIC into a GPU may be.

use std::{
    collections::VecDeque,
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use crate::{errno::Outcome, fabric::Fabric};

/// Bytes of a registered dma-buf.
#[derive(Debug, Clone, Copy)]
pub struct DmaAddress<'a> {
    /// The file that was registered.
    pub file: BorrowedFd<'a>,
    /// Where the bytes begin in it.
    pub offset: u64,
    /// The address by which work requests name the first byte.
    pub iova: u64,
}

/// Moves bytes to and from memory behind a dma-buf that the processor cannot map.
///
/// It is called while the device does its work, with the lock of all devices held: it must not call
/// any verb, and whatever it waits for must not need one.
pub trait DmaEngine: Send + Sync {
    /// Asks whether the engine reaches `length` bytes. Its error becomes the errno with which the
    /// registration is refused.
    ///
    /// # Errors
    ///
    /// The engine does not know the file, or not so many bytes of it.
    fn attach(&self, at: DmaAddress<'_>, length: u64) -> io::Result<()>;

    /// Reads bytes of the memory.
    ///
    /// # Errors
    ///
    /// The transfer failed; the work request ends with `IBV_WC_GENERAL_ERR`.
    fn read(&self, at: DmaAddress<'_>, bytes: &mut [u8]) -> io::Result<()>;

    /// Writes bytes to the memory.
    ///
    /// # Errors
    ///
    /// The transfer failed; the work request ends with `IBV_WC_GENERAL_ERR`.
    fn write(&self, at: DmaAddress<'_>, bytes: &[u8]) -> io::Result<()>;

    /// Copies bytes from one memory that the engine reaches to another, without the processor; `None` if they are
    /// to be read and written. It cannot unless it says so.
    fn copy(
        &self,
        _from: DmaAddress<'_>,
        _to: DmaAddress<'_>,
        _length: u64,
    ) -> Option<io::Result<()>> {
        None
    }

    /// Whether the engine wants files that the processor can map, too. It does not unless it says so.
    fn prefers_mappable(&self) -> bool {
        false
    }
}

/// The engine of a device.
#[derive(Clone)]
pub(crate) struct Engine(pub(crate) Arc<dyn DmaEngine>);

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DmaEngine")
    }
}

/// A registered dma-buf that an engine reaches.
#[derive(Debug)]
pub(crate) struct Attachment {
    engine: Engine,
    device: u32,
    file: OwnedFd,
    offset: u64,
    iova: u64,
    /// Writes that were not flushed: where, from the start, and what.
    unflushed: VecDeque<(u64, Vec<u8>)>,
}

/// An engine failed, or cannot do what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EngineFailed;

impl Attachment {
    fn at(&self, offset: u64) -> DmaAddress<'_> {
        let (file, iova) = (self.file.as_fd(), self.iova + offset);
        DmaAddress { file, offset: self.offset + offset, iova }
    }

    /// Does the writes that were held back.
    fn flush(&mut self) -> Result<(), EngineFailed> {
        while let Some((offset, bytes)) = self.unflushed.pop_front() {
            let written = self.engine.0.write(self.at(offset), &bytes);
            written.map_err(|_| EngineFailed)?;
        }
        Ok(())
    }

    /// Reads bytes, after every write before.
    pub(crate) fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<(), EngineFailed> {
        self.flush()?;
        self.engine.0.read(self.at(offset), bytes).map_err(|_| EngineFailed)
    }

    /// Writes bytes, now or when they are flushed.
    pub(crate) fn write(
        &mut self,
        offset: u64,
        bytes: &[u8],
        later: bool,
    ) -> Result<(), EngineFailed> {
        if later {
            self.unflushed.push_back((offset, bytes.to_vec()));
            return Ok(());
        }
        self.flush()?;
        self.engine.0.write(self.at(offset), bytes).map_err(|_| EngineFailed)
    }
}

impl Fabric {
    /// Gives a dma-buf to the engine of a device; `None` if it has none, or one that does not want it.
    pub(crate) fn attach(
        &mut self,
        device: u32,
        file: BorrowedFd<'_>,
        (offset, length, iova): (u64, u64, u64),
        mappable: bool,
    ) -> Outcome<Option<u32>> {
        let Some(engine) = self.control(device).and_then(|control| control.engine.clone()) else {
            return Ok(None);
        };
        if mappable && !engine.0.prefers_mappable() {
            return Ok(None);
        }
        let code = |error: io::Error| error.raw_os_error().unwrap_or(libc::EOPNOTSUPP);
        engine.0.attach(DmaAddress { file, offset, iova }, length).map_err(code)?;
        let file = file.try_clone_to_owned().map_err(code)?;
        let unflushed = VecDeque::new();
        Ok(Some(self.attachments.insert_with(|_| Attachment {
            engine,
            device,
            file,
            offset,
            iova,
            unflushed,
        })))
    }

    /// Copies between two attachments by their engine alone; `false` if that cannot be done.
    pub(crate) fn copy_attached(
        &mut self,
        (from, from_offset): (u32, u64),
        (to, to_offset): (u32, u64),
        length: usize,
    ) -> Result<bool, EngineFailed> {
        if self.holds_inbound(to) {
            return Ok(false);
        }
        for each in [from, to] {
            self.attachments.get_mut(each).ok_or(EngineFailed)?.flush()?;
        }
        let source = self.attachments.get(from).ok_or(EngineFailed)?;
        let target = self.attachments.get(to).ok_or(EngineFailed)?;
        if !Arc::ptr_eq(&source.engine.0, &target.engine.0) {
            return Ok(false);
        }
        let length = u64::try_from(length).map_err(|_| EngineFailed)?;
        let copied = source.engine.0.copy(source.at(from_offset), target.at(to_offset), length);
        copied.transpose().map(|done| done.is_some()).map_err(|_| EngineFailed)
    }

    /// Takes a dma-buf back from its engine. What was held back is written first.
    pub(crate) fn detach(&mut self, number: u32) {
        if let Some(mut attachment) = self.attachments.remove(number)
            && attachment.flush().is_err()
        {
            let text = "ibv_dereg_mr: the DMA engine failed to write what was held back";
            self.violation(attachment.device, text.into());
        }
    }

    /// Does the writes that were held back on a device.
    pub(crate) fn flush_inbound(&mut self, device: u32) {
        let mut failed = 0;
        for (_, each) in self.attachments.iter_mut().filter(|(_, each)| each.device == device) {
            failed += usize::from(each.flush().is_err());
        }
        if failed > 0 {
            let text = format!("flush: the DMA engine failed in {failed} regions");
            self.violation(device, text);
        }
    }

    /// Whether writes into an attachment wait for a flush.
    pub(crate) fn holds_inbound(&self, number: u32) -> bool {
        let device = self.attachments.get(number).and_then(|each| self.device(each.device));
        device.is_some_and(|device| device.control.holds_inbound)
    }
}
