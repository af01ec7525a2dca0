//! Memory that the processor cannot map: a dma-buf whose bytes somebody else moves.
//!
//! A GPU exports its memory as such. A real NIC reads and writes it through its IOMMU; this device asks an engine,
//! which a test supplies and which knows how to copy from and to that memory.
#![expect(unsafe_code, reason = "hands addresses to whoever moves the bytes")]

use std::{fmt, io, os::fd::BorrowedFd, ptr, sync::OnceLock};

use crate::memory::Place;

/// One end of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DmaEnd {
    /// Memory of this process, at this address.
    Process(*mut u8),
    /// Attached memory, by the number that [`DmaEngine::attach`] returned, from an offset on.
    Attached {
        /// Which memory.
        memory: u64,
        /// Where in it, in bytes.
        offset: usize,
    },
}

/// Moves the bytes of dma-bufs that cannot be mapped.
pub trait DmaEngine: Send + Sync + 'static {
    /// Is told what a NIC would be told: the dma-buf, which part of it, and what work requests call its first
    /// byte. The descriptor is closed soon after. Returns a number that the engine knows the memory by.
    ///
    /// # Errors
    ///
    /// Whatever is to be the errno of `ibv_reg_dmabuf_mr`.
    fn attach(&self, fd: BorrowedFd<'_>, offset: u64, length: usize, iova: u64) -> io::Result<u64>;

    /// The memory is deregistered: nothing is copied from or to it any more.
    fn detach(&self, memory: u64);

    /// Copies bytes. At least one end is attached memory. Returns when later copies see them; the memory's owner
    /// need not.
    ///
    /// # Safety
    ///
    /// Both ends have `length` bytes that were registered, and stay so until this returns.
    unsafe fn copy(&self, from: DmaEnd, to: DmaEnd, length: usize);
}

static ENGINE: OnceLock<Box<dyn DmaEngine>> = OnceLock::new();

/// Gives all soft devices of the process an engine, for good. `false` if they have one already.
pub fn set_dma_engine(engine: impl DmaEngine) -> bool {
    ENGINE.set(Box::new(engine)).is_ok()
}

/// Attaches what cannot be mapped; `None` without an engine.
pub(crate) fn attach(
    fd: BorrowedFd<'_>,
    offset: u64,
    length: usize,
    iova: u64,
) -> Option<Result<Place, i32>> {
    let attached = ENGINE.get()?.attach(fd, offset, length, iova);
    let place = attached.map(|memory| Place::Attached { memory, offset: 0 });
    Some(place.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO)))
}

/// Detaches what `attach` attached.
pub(crate) fn detach(place: Place) {
    if let (Place::Attached { memory, .. }, Some(engine)) = (place, ENGINE.get()) {
        engine.detach(memory);
    }
}

/// Copies where an end is attached memory.
///
/// # Safety
///
/// As for [`DmaEngine::copy`].
pub(crate) unsafe fn copy(from: Place, to: Place, length: usize) {
    let Some(engine) = ENGINE.get() else { return };
    let zeros;
    let end = |place| match place {
        Place::Host(address) => DmaEnd::Process(ptr::with_exposed_provenance_mut(address)),
        Place::Attached { memory, offset } => DmaEnd::Attached { memory, offset },
        Place::Nowhere => DmaEnd::Process(ptr::null_mut()),
    };
    let from = if from == Place::Nowhere {
        zeros = vec![0_u8; length];
        DmaEnd::Process(zeros.as_ptr().cast_mut())
    } else {
        end(from)
    };
    // SAFETY: the caller keeps the same promises; nothing is written to the zeros.
    unsafe { engine.copy(from, end(to), length) };
}

impl fmt::Debug for dyn DmaEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DmaEngine")
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::fd::AsFd, sync::Mutex};

    use super::*;
    use crate::{memory::Piece, transfer::transfer};

    /// Memory that only the engine reaches.
    struct Store(Mutex<Vec<u8>>);

    impl DmaEngine for Store {
        fn attach(
            &self,
            _: BorrowedFd<'_>,
            offset: u64,
            length: usize,
            iova: u64,
        ) -> io::Result<u64> {
            if offset % 4096 == 7 {
                return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
            }
            self.0.lock().unwrap().resize(length, 0xee);
            Ok(iova)
        }

        fn detach(&self, memory: u64) {
            assert_eq!(memory, 0x5000);
            self.0.lock().unwrap().clear();
        }

        unsafe fn copy(&self, from: DmaEnd, to: DmaEnd, length: usize) {
            let mut store = self.0.lock().unwrap();
            match (from, to) {
                (DmaEnd::Process(from), DmaEnd::Attached { memory: 0x5000, offset }) => {
                    let part = &mut store[offset..offset + length];
                    // SAFETY: the caller says that there are as many bytes.
                    unsafe { part.as_mut_ptr().copy_from_nonoverlapping(from, length) };
                }
                (DmaEnd::Attached { memory: 0x5000, offset }, DmaEnd::Process(to)) => {
                    let part = &store[offset..offset + length];
                    // SAFETY: the caller says that there are as many bytes.
                    unsafe { to.copy_from_nonoverlapping(part.as_ptr(), length) };
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn bytes_of_attached_memory_are_moved_by_the_engine() {
        let file = File::open("/dev/null").unwrap();
        assert!(attach(file.as_fd(), 0, 16, 0x5000).is_none(), "there is no engine yet");
        assert!(set_dma_engine(Store(Mutex::default())));
        assert!(!set_dma_engine(Store(Mutex::default())), "the first one stays");
        assert_eq!(attach(file.as_fd(), 7, 16, 0x5000), Some(Err(libc::EOPNOTSUPP)));
        let memory = attach(file.as_fd(), 0, 16, 0x5000).unwrap().unwrap();

        let mut bytes: Vec<u8> = (0..10).collect();
        let host = Place::Host(bytes.as_mut_ptr().expose_provenance());
        let host = [Piece { place: host, length: 10 }];
        let there = [Piece { place: memory.at(4), length: 3 }, Piece { place: memory, length: 2 }];
        // SAFETY: the vector lives, and nothing else touches it meanwhile.
        unsafe { transfer(&host, &there) };
        let whole = [Piece { place: memory, length: 10 }];
        // SAFETY: as above.
        unsafe { transfer(&whole, &host) };
        assert_eq!(bytes, [3, 4, 0xee, 0xee, 0, 1, 2, 0xee, 0xee, 0xee]);
        let nowhere = [Piece { place: Place::Nowhere, length: 10 }];
        // SAFETY: as above.
        unsafe { transfer(&nowhere, &whole) };
        // SAFETY: as above.
        unsafe { transfer(&whole, &host) };
        assert_eq!(bytes, [0; 10]);
        detach(memory);
    }
}
