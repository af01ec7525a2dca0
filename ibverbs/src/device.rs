//! The RDMA devices of this machine.
#![expect(unsafe_code, reason = "walks and frees the list of ibv_device")]

use std::{ffi::CStr, fmt, ptr::NonNull, slice, sync::Arc};

use crate::{Context, DeviceSelector, Error, Result, error::verb};

/// The devices that rdma-core finds on this machine; an empty list is not an error.
///
/// Reads sysfs, allocates.
///
/// # Errors
///
/// [`Error::Library`] if rdma-core is not installed, [`Error::Verb`] with `ENOSYS` if the kernel has no RDMA
/// support loaded. See `ibv_get_device_list(3)`.
#[doc(alias = "ibv_get_device_list")]
pub fn devices() -> Result<Devices> {
    Devices::of(rdma_sys::Library::system()?)
}

/// A list of devices, as they were when it was made.
#[derive(Debug, Clone)]
pub struct Devices(Vec<Device>);

impl Devices {
    /// The devices of a given library, such as a device in software.
    ///
    /// # Errors
    ///
    /// As for [`devices`].
    pub fn of(library: &'static rdma_sys::Library) -> Result<Self> {
        let (verb, get) = verb!(library, ibv_get_device_list)?;
        let mut count = 0;
        // SAFETY: `count` is a valid place; see ibv_get_device_list(3).
        let raw = verb.object(unsafe { get(&raw mut count) })?;
        let list = Arc::new(List { raw, library });
        // SAFETY: the list has `count` entries before its terminating null, and is freed by `list` only.
        let entries = unsafe { slice::from_raw_parts(raw.as_ptr(), verb.count(count)?) };
        let device = |&raw| NonNull::new(raw).map(|raw| Device { raw, list: Arc::clone(&list) });
        Ok(Self(entries.iter().filter_map(device).collect()))
    }

    /// The first device that a selector wants and that has an active port.
    ///
    /// A device named without an active port is taken if no better one is there, so that its error is
    /// about the port. Opens each candidate.
    ///
    /// # Errors
    ///
    /// [`Error::NoDevice`] with what is there, or the error of opening the only candidate.
    pub fn select(&self, selector: &DeviceSelector) -> Result<Device> {
        let mut fallback = None;
        let mut seen = Vec::new();
        for device in &self.0 {
            if !selector.wants(device.name()) {
                seen.push(format!("{} (not selected)", device.name()));
                continue;
            }
            match device.open().and_then(|context| context.choose_port(selector)) {
                Ok(_) => return Ok(device.clone()),
                Err(error) => {
                    seen.push(format!("{} ({error})", device.name()));
                    fallback.get_or_insert((device, error));
                }
            }
        }
        match fallback {
            Some((_, error)) if seen.len() == 1 => Err(error),
            Some(_) => Err(Error::NoDevice {
                wanted: format!("with an active port {selector}"),
                present: seen,
                remedy: "bring a port up (`rdma link`, `ip link set … up`)",
            }),
            None if self.0.is_empty() => Err(Error::NoDevice {
                wanted: selector.to_string(),
                present: seen,
                remedy: "the machine has no RDMA device, its driver is not loaded, or this container \
                         was not given it; software devices exist: `rdma link add rxe0 type rxe netdev \
                         eth0`",
            }),
            None => Err(Error::NoDevice {
                wanted: selector.to_string(),
                present: seen,
                remedy: "set RDMA_DEVICE to one of the devices that are present",
            }),
        }
    }

    /// The devices.
    #[must_use]
    pub fn as_slice(&self) -> &[Device] {
        &self.0
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each device.
    pub fn iter(&self) -> slice::Iter<'_, Device> {
        self.0.iter()
    }

    /// The device of this name.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<&Device> {
        self.0.iter().find(|device| device.name() == name)
    }
}

impl<'a> IntoIterator for &'a Devices {
    type Item = &'a Device;
    type IntoIter = slice::Iter<'a, Device>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl IntoIterator for Devices {
    type Item = Device;
    type IntoIter = std::vec::IntoIter<Device>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// A device that can be opened. Cheap to clone: a name in a shared list.
#[derive(Clone)]
pub struct Device {
    /// An entry of `list`, valid as long as that is not freed.
    raw: NonNull<rdma_sys::ibv_device>,
    list: Arc<List>,
}

impl Device {
    /// The device of an open context, out of a list of its own: a device may outlive the context.
    ///
    /// # Safety
    ///
    /// `context` is open, by a verb of `library`.
    pub(crate) unsafe fn of_context(
        context: NonNull<rdma_sys::ibv_context>,
        library: &'static rdma_sys::Library,
    ) -> Result<Self> {
        // SAFETY: open, by this function's contract.
        let device = unsafe { (*context.as_ptr()).device };
        // SAFETY: an open context names its device, which is not written to.
        let name = text(unsafe { &(*device).name });
        let devices = Devices::of(library)?;
        devices.by_name(name).cloned().ok_or_else(|| Error::NoDevice {
            wanted: format!("named {name}"),
            present: devices.iter().map(|device| device.name().to_owned()).collect(),
            remedy: "the device of the open context is gone",
        })
    }

    /// What the kernel calls it: `mlx5_0`, `rxe0`.
    #[must_use]
    #[doc(alias = "ibv_get_device_name")]
    pub fn name(&self) -> &str {
        text(&self.view().name)
    }

    /// The name of its character device: `uverbs0`.
    #[must_use]
    pub fn node_name(&self) -> &str {
        text(&self.view().dev_name)
    }

    /// The folder of sysfs that describes it.
    #[must_use]
    pub fn sysfs_path(&self) -> &str {
        text(&self.view().ibdev_path)
    }

    /// The worldwide unique number of the device, host order.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the library lacks the verb.
    #[doc(alias = "ibv_get_device_guid")]
    pub fn guid(&self) -> Result<u64> {
        let (_, get) = verb!(self.library(), ibv_get_device_guid)?;
        // SAFETY: `raw` is valid while its list is.
        Ok(u64::from_be(unsafe { get(self.raw.as_ptr()) }))
    }

    /// The number that the kernel gave the device, which stays while it is there.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] before rdma-core 30 or on old kernels.
    #[doc(alias = "ibv_get_device_index")]
    pub fn index(&self) -> Result<u32> {
        let (verb, get) = verb!(self.library(), ibv_get_device_index)?;
        // SAFETY: `raw` is valid while its list is.
        let index = unsafe { get(self.raw.as_ptr()) };
        u32::try_from(index).map_err(|_| verb.unsupported())
    }

    /// What kind of node it is.
    #[must_use]
    pub fn node_type(&self) -> NodeType {
        NodeType(self.view().node_type)
    }

    /// What kind of wire it speaks.
    #[must_use]
    pub fn transport_type(&self) -> TransportType {
        TransportType(self.view().transport_type)
    }

    /// Opens the device. Enters the kernel, allocates.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`], `EACCES` without permission on the device node, `ENOENT` without a node. See
    /// `ibv_open_device(3)`.
    #[doc(alias = "ibv_open_device")]
    pub fn open(&self) -> Result<Context> {
        Context::open(self)
    }

    pub(crate) fn library(&self) -> &'static rdma_sys::Library {
        self.list.library
    }

    /// The C object, valid as long as this is.
    #[must_use]
    pub fn as_raw(&self) -> *mut rdma_sys::ibv_device {
        self.raw.as_ptr()
    }

    fn view(&self) -> &rdma_sys::ibv_device {
        // SAFETY: `raw` is valid while its list is, and nobody writes to a listed device.
        unsafe { self.raw.as_ref() }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.name()).finish()
    }
}

// SAFETY: a listed device is never written to, and freeing the list is one call when all are gone.
unsafe impl Send for Device {}
// SAFETY: as for `Send`.
unsafe impl Sync for Device {}

/// What kind of node a device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeType(pub i32);

impl NodeType {
    /// A host channel adapter: InfiniBand or RoCE.
    pub const CHANNEL_ADAPTER: Self = Self(rdma_sys::IBV_NODE_CA);
    /// An InfiniBand switch.
    pub const SWITCH: Self = Self(rdma_sys::IBV_NODE_SWITCH);
    /// An InfiniBand router.
    pub const ROUTER: Self = Self(rdma_sys::IBV_NODE_ROUTER);
    /// An iWARP adapter.
    pub const IWARP: Self = Self(rdma_sys::IBV_NODE_RNIC);
    /// An adapter with a transport of its own, such as EFA.
    pub const UNSPECIFIED: Self = Self(rdma_sys::IBV_NODE_UNSPECIFIED);
}

impl fmt::Display for NodeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::CHANNEL_ADAPTER => f.write_str("channel adapter"),
            Self::SWITCH => f.write_str("switch"),
            Self::ROUTER => f.write_str("router"),
            Self::IWARP => f.write_str("iWARP adapter"),
            Self::UNSPECIFIED => f.write_str("unspecified"),
            Self(other) => write!(f, "node type {other}"),
        }
    }
}

/// What kind of wire a device speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TransportType(pub i32);

impl TransportType {
    /// InfiniBand or RoCE.
    pub const INFINIBAND: Self = Self(rdma_sys::IBV_TRANSPORT_IB);
    /// iWARP.
    pub const IWARP: Self = Self(rdma_sys::IBV_TRANSPORT_IWARP);
    /// A transport of its own, such as EFA.
    pub const UNSPECIFIED: Self = Self(rdma_sys::IBV_TRANSPORT_UNSPECIFIED);
}

impl fmt::Display for TransportType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::INFINIBAND => f.write_str("InfiniBand"),
            Self::IWARP => f.write_str("iWARP"),
            Self::UNSPECIFIED => f.write_str("unspecified"),
            Self(other) => write!(f, "transport {other}"),
        }
    }
}

/// Owns what `ibv_get_device_list` returned.
struct List {
    /// From `ibv_get_device_list`; freed only by drop.
    raw: NonNull<*mut rdma_sys::ibv_device>,
    library: &'static rdma_sys::Library,
}

impl Drop for List {
    fn drop(&mut self) {
        if let Some(free) = self.library.verbs().ibv_free_device_list {
            // SAFETY: `raw` came from ibv_get_device_list of this library and is freed once.
            unsafe { free(self.raw.as_ptr()) };
        }
    }
}

// SAFETY: the list is read-only until it is freed, by whichever thread is last.
unsafe impl Send for List {}
// SAFETY: as for `Send`.
unsafe impl Sync for List {}

/// A name out of a fixed array that C ends with a zero byte; empty if it is not UTF-8.
fn text(array: &[std::ffi::c_char]) -> &str {
    // SAFETY: c_char and u8 have one layout.
    let bytes = unsafe { slice::from_raw_parts(array.as_ptr().cast::<u8>(), array.len()) };
    CStr::from_bytes_until_nul(bytes).ok().and_then(|name| name.to_str().ok()).unwrap_or_default()
}
