//! Which NIC is near which GPU: distances on the PCI buses and NUMA nodes, as sysfs has them.

use std::{cmp, fmt, fs, io, path::Path, str::FromStr};

use crate::{Error, Gpu, Result};

/// Where a device is on the PCI buses, such as `0000:1b:00.0`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the parts of an address, under their names")]
pub struct PciAddress {
    pub domain: u32,
    pub bus: u8,
    pub device: u8,
    pub function: u8,
}

impl FromStr for PciAddress {
    type Err = Error;

    /// Reads `domain:bus:device.function`, all hexadecimal.
    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let mut parts = text.trim().split(':');
            let (domain, bus, rest) = (parts.next()?, parts.next()?, parts.next()?);
            let (device, function) = rest.split_once('.')?;
            let number = |digits: &str, most: u32| {
                let plain = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
                u32::from_str_radix(digits, 16).ok().filter(|number| plain && *number <= most)
            };
            parts.next().is_none().then_some(Self {
                domain: number(domain, u32::MAX)?,
                bus: u8::try_from(number(bus, 0xff)?).ok()?,
                device: u8::try_from(number(device, 0x1f)?).ok()?,
                function: u8::try_from(number(function, 7)?).ok()?,
            })
        };
        parse().ok_or_else(|| Error::Malformed {
            what: "a PCI address".to_owned(),
            found: text.to_owned(),
            expected: "domain:bus:device.function, such as 0000:1b:00.0",
        })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

impl fmt::Debug for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// How far two devices are from each other; nearer is less. The names in brackets are those of `nvidia-smi topo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Distance {
    /// Below one PCIe switch (PIX).
    OneSwitch,
    /// Below several switches, without the processor in between (PXB).
    SeveralSwitches,
    /// Through one host bridge of the processor (PHB).
    HostBridge,
    /// Through two host bridges of one NUMA node (NODE).
    NumaNode,
    /// From one NUMA node to another (SYS).
    System,
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OneSwitch => "same PCIe switch",
            Self::SeveralSwitches => "several PCIe switches",
            Self::HostBridge => "same host bridge",
            Self::NumaNode => "same NUMA node",
            Self::System => "another NUMA node",
        })
    }
}

/// A device and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PciDevice {
    /// For an RDMA device its name, such as `mlx5_0`; for a GPU its address.
    pub name: String,
    /// Its address.
    pub address: PciAddress,
    /// Its NUMA node, if the machine tells.
    pub numa_node: Option<u32>,
    /// The host bridge (`pci0000:00`) and the addresses of the bridges on the way down, the device itself last.
    way: Vec<String>,
}

impl PciDevice {
    /// How far it is to another one.
    #[must_use]
    pub fn distance(&self, other: &Self) -> Distance {
        let shared = self.shared_steps(other);
        // The first step is the host bridge and the second its root port: a switch hangs below that.
        if shared >= 3 {
            let below = cmp::max(self.way.len(), other.way.len()) - shared;
            // A switch has a port for each device: bridge above, port, device.
            if below <= 2 { Distance::OneSwitch } else { Distance::SeveralSwitches }
        } else if shared >= 1 {
            Distance::HostBridge
        } else if self.numa_node.is_none() || self.numa_node != other.numa_node {
            Distance::System
        } else {
            Distance::NumaNode
        }
    }

    /// How many bridges lie between the two.
    fn steps(&self, other: &Self) -> usize {
        self.way.len() + other.way.len() - 2 * self.shared_steps(other)
    }

    fn shared_steps(&self, other: &Self) -> usize {
        self.way.iter().zip(&other.way).take_while(|(mine, theirs)| mine == theirs).count()
    }
}

/// A NIC as seen from a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Neighbour {
    /// The RDMA device.
    pub device: PciDevice,
    /// How far it is.
    pub distance: Distance,
}

/// The GPUs and RDMA devices of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Topology {
    /// GPUs of NVIDIA, by address.
    pub gpus: Vec<PciDevice>,
    /// RDMA devices that are on PCI, by name.
    pub rdma_devices: Vec<PciDevice>,
}

const NVIDIA: &str = "0x10de";
/// The PCI classes of a VGA and of a 3D controller, without the programming interface.
const DISPLAY_CLASSES: [&str; 2] = ["0x0300", "0x0302"];

impl Topology {
    /// Reads `/sys` of this machine.
    ///
    /// # Errors
    ///
    /// [`Error::Sysfs`] if a file is there and cannot be read.
    pub fn read() -> Result<Self> {
        Self::read_from(Path::new("/sys"))
    }

    /// Reads a tree that is like `/sys`.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read).
    pub fn read_from(sysfs: &Path) -> Result<Self> {
        let mut gpus = Vec::new();
        for (_, entry) in entries(&sysfs.join("bus/pci/devices"))? {
            let text = |name| text_of(&entry.join(name));
            let class = text("class")?.unwrap_or_default();
            let display = DISPLAY_CLASSES.iter().any(|each| class.starts_with(each));
            if display && text("vendor")?.as_deref() == Some(NVIDIA) {
                gpus.extend(pci_device(None, &entry)?);
            }
        }
        let mut rdma_devices = Vec::new();
        for (name, entry) in entries(&sysfs.join("class/infiniband"))? {
            rdma_devices.extend(pci_device(Some(name), &entry.join("device"))?);
        }
        gpus.sort_by_key(|gpu: &PciDevice| gpu.address);
        rdma_devices
            .sort_by(|one: &PciDevice, other| in_words(&one.name).cmp(&in_words(&other.name)));
        Ok(Self { gpus, rdma_devices })
    }

    /// All RDMA devices, nearest first; those that are equally near in the order of their names.
    ///
    /// Empty if the machine has none, or no GPU at this address.
    #[must_use]
    pub fn ranking(&self, gpu: PciAddress) -> Vec<Neighbour> {
        let Some(gpu) = self.gpus.iter().find(|each| each.address == gpu) else {
            return Vec::new();
        };
        let mut ranking: Vec<_> = self
            .rdma_devices
            .iter()
            .map(|device| Neighbour { device: device.clone(), distance: gpu.distance(device) })
            .collect();
        ranking.sort_by_key(|each| (each.distance, gpu.steps(&each.device)));
        ranking
    }

    /// The RDMA devices that none is nearer than.
    #[must_use]
    pub fn nearest(&self, gpu: PciAddress) -> Vec<Neighbour> {
        let mut ranking = self.ranking(gpu);
        if let Some(nearest) = ranking.first().map(|first| first.distance) {
            ranking.retain(|each| each.distance == nearest);
        }
        ranking
    }
}

/// The RDMA devices of this machine that none is nearer to a GPU than.
///
/// Their names are what [`ibverbs::Device::name`] says.
///
/// # Errors
///
/// As for [`Topology::read`] and [`Gpu::pci_address`].
pub fn nearest_devices(gpu: &Gpu) -> Result<Vec<Neighbour>> {
    Ok(Topology::read()?.nearest(gpu.pci_address()?))
}

/// A device at the end of a link of sysfs; `None` for one that is not on PCI.
fn pci_device(name: Option<String>, link: &Path) -> Result<Option<PciDevice>> {
    let place = match fs::canonicalize(link) {
        Ok(place) => place,
        // A software device has no such link.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Error::Sysfs { path: link.display().to_string(), source }),
    };
    let parts: Vec<_> = place.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let Some(bridge) = parts.iter().rposition(|part| part.starts_with("pci")) else {
        return Ok(None);
    };
    let way = parts[bridge..].to_vec();
    let Some(address) = way.last().and_then(|last| last.parse::<PciAddress>().ok()) else {
        return Ok(None);
    };
    let node = text_of(&place.join("numa_node"))?;
    // Without NUMA the kernel says -1.
    let numa_node = node.and_then(|text| text.parse().ok());
    let name = name.unwrap_or_else(|| address.to_string());
    Ok(Some(PciDevice { name, address, numa_node, way }))
}

/// The names and paths in a folder; none if it is not there.
fn entries(folder: &Path) -> Result<Vec<(String, std::path::PathBuf)>> {
    let unreadable = |source| Error::Sysfs { path: folder.display().to_string(), source };
    let list = match fs::read_dir(folder) {
        Ok(list) => list,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(error)),
    };
    list.map(|entry| {
        let entry = entry.map_err(unreadable)?;
        Ok((entry.file_name().to_string_lossy().into_owned(), entry.path()))
    })
    .collect()
}

/// The contents of a small file without the line's end; `None` if it is not there.
fn text_of(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Sysfs { path: path.display().to_string(), source }),
    }
}

/// A name as its letters and its number, so that `mlx5_10` comes after `mlx5_9`.
fn in_words(name: &str) -> (&str, u64) {
    let digits = name.len() - name.trim_end_matches(|each: char| each.is_ascii_digit()).len();
    let (word, number) = name.split_at(name.len() - digits);
    (word, number.parse().unwrap_or_default())
}

#[cfg(test)]
mod tests;
