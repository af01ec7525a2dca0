//! What a machine can do about GPU memory and RDMA, and what is missing.

use std::{fmt, path::Path};

use crate::{Gpu, PciAddress, Result, Visibility, gpu::Attribute};

bitflags::bitflags! {
    /// How the writes of other devices can be flushed (`CUflushGPUDirectRDMAWritesOptions`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct FlushOptions: u32 {
        /// From the host: `cuFlushGPUDirectRDMAWrites`.
        const HOST = 1;
        /// In a stream: `CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES`.
        const STREAM = 2;
    }
}

/// Which writes of other devices are seen in order without a flush (`CUGPUDirectRDMAWritesOrdering`).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WritesOrdering(pub i32);

impl WritesOrdering {
    /// None: each needs a flush.
    pub const NONE: Self = Self(0);
    /// Those to its own memory, seen by the GPU itself.
    pub const OWNER: Self = Self(100);
    /// Those to its own memory, seen by all GPUs.
    pub const ALL_DEVICES: Self = Self(200);

    /// Whether writes must be flushed before somebody sees them.
    #[must_use]
    pub const fn needs_flush(self, visibility: Visibility) -> bool {
        self.0 < visibility.scope().cast_signed()
    }
}

impl fmt::Debug for WritesOrdering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NONE => f.write_str("none"),
            Self::OWNER => f.write_str("owner"),
            Self::ALL_DEVICES => f.write_str("all devices"),
            Self(other) => write!(f, "ordering {other}"),
        }
    }
}

/// What a GPU, its driver and the kernel can do for RDMA.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// What the GPU is called.
    pub name: String,
    /// Where it is on the PCI buses.
    pub pci_address: PciAddress,
    /// The CUDA release that the driver has, major and minor number.
    pub driver_version: (u32, u32),
    /// Its memory can be exported as a dma-buf.
    pub dma_buf: bool,
    /// It takes part in GPUDirect RDMA.
    pub gpu_direct_rdma: bool,
    /// GPUDirect RDMA works with [`VirtualMemory`](crate::VirtualMemory).
    pub gpu_direct_rdma_with_virtual_memory: bool,
    /// It has virtual memory management.
    pub virtual_memory: bool,
    /// It has memory pools: allocations in the order of a stream.
    pub memory_pools: bool,
    /// How writes of other devices can be flushed.
    pub flush_options: FlushOptions,
    /// Which of them need no flush.
    pub writes_ordering: WritesOrdering,
    /// The peer memory module that is loaded, if one is.
    pub peer_memory_module: Option<&'static str>,
}

/// Something that a machine cannot do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lack {
    /// What is missing.
    pub what: &'static str,
    /// What it would be good for, and what to do.
    pub remedy: &'static str,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no {}: {}", self.what, self.remedy)
    }
}

impl Gpu {
    /// Asks what this GPU and this machine can do. Reads sysfs; costs some driver calls.
    ///
    /// # Errors
    ///
    /// [`Error::Cuda`](crate::Error::Cuda) if the driver does not answer.
    pub fn capabilities(&self) -> Result<Capabilities> {
        let can = |which| self.attribute(which).map(|value| value != 0);
        Ok(Capabilities {
            name: self.context().name().map_err(crate::Error::cudarc("cuDeviceGetName"))?,
            pci_address: self.pci_address()?,
            driver_version: self.driver().version()?,
            dma_buf: can(Attribute::DMA_BUF)?,
            gpu_direct_rdma: can(Attribute::GPU_DIRECT_RDMA)?,
            gpu_direct_rdma_with_virtual_memory: can(Attribute::RDMA_WITH_VIRTUAL_MEMORY)?,
            virtual_memory: can(Attribute::VIRTUAL_MEMORY)?,
            memory_pools: can(Attribute::MEMORY_POOLS)?,
            flush_options: self.flush_options(),
            writes_ordering: self.writes_ordering(),
            peer_memory_module: peer_memory_module(Path::new("/sys/module")),
        })
    }
}

impl Capabilities {
    /// What is missing, with a remedy for each.
    #[must_use]
    pub fn lacks(&self) -> Vec<Lack> {
        let flushable = self.flush_options.intersects(FlushOptions::all());
        let ordered = !self.writes_ordering.needs_flush(Visibility::Owner);
        [
            (
                self.dma_buf,
                "dma-buf export",
                "register() needs it; install driver 515 or later with the open kernel modules (Turing and later), on \
                 Linux 5.12 or later",
            ),
            (
                self.gpu_direct_rdma,
                "GPUDirect RDMA",
                "a NIC cannot reach this GPU's memory; this takes a data-centre or professional GPU",
            ),
            (
                self.gpu_direct_rdma_with_virtual_memory,
                "GPUDirect RDMA with virtual memory",
                "register memory of Gpu::allocate instead of VirtualMemory",
            ),
            (self.virtual_memory, "virtual memory management", "use Gpu::allocate"),
            (
                self.memory_pools,
                "memory pools",
                "allocations wait for the whole GPU; allocate once and keep the memory",
            ),
            (
                flushable || ordered,
                "order between inbound writes and kernels",
                "neither flush is offered and writes are not ordered; receive into host memory and copy",
            ),
            (
                self.dma_buf || self.peer_memory_module.is_some(),
                "peer memory module",
                "without dma-buf export, PeerMemory needs one: `modprobe nvidia_peermem` after the RDMA drivers are \
                 loaded",
            ),
        ]
        .into_iter()
        .filter(|(there, ..)| !there)
        .map(|(_, what, remedy)| Lack { what, remedy })
        .collect()
    }
}

fn peer_memory_module(modules: &Path) -> Option<&'static str> {
    ["nvidia_peermem", "nv_peer_mem"].into_iter().find(|name| modules.join(name).is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Capabilities = Capabilities {
        name: String::new(),
        pci_address: PciAddress { domain: 0, bus: 4, device: 0, function: 0 },
        driver_version: (13, 0),
        dma_buf: true,
        gpu_direct_rdma: true,
        gpu_direct_rdma_with_virtual_memory: true,
        virtual_memory: true,
        memory_pools: true,
        flush_options: FlushOptions::HOST,
        writes_ordering: WritesOrdering::OWNER,
        peer_memory_module: None,
    };

    #[test]
    fn an_ordering_spares_the_flush_for_those_it_covers() {
        assert!(WritesOrdering::NONE.needs_flush(Visibility::Owner));
        assert!(!WritesOrdering::OWNER.needs_flush(Visibility::Owner));
        assert!(WritesOrdering::OWNER.needs_flush(Visibility::AllDevices));
        assert!(!WritesOrdering::ALL_DEVICES.needs_flush(Visibility::AllDevices));
    }

    #[test]
    fn a_machine_that_can_all_lacks_nothing_and_each_no_has_a_remedy() {
        assert_eq!(H200.lacks(), []);
        let none = Capabilities {
            dma_buf: false,
            gpu_direct_rdma: false,
            gpu_direct_rdma_with_virtual_memory: false,
            virtual_memory: false,
            memory_pools: false,
            flush_options: FlushOptions::empty(),
            writes_ordering: WritesOrdering::NONE,
            ..H200
        };
        assert_eq!(none.lacks().len(), 7);
        assert!(none.lacks()[0].to_string().starts_with("no dma-buf export: "));
    }
}
