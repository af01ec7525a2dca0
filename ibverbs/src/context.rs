//! An open device.
#![expect(unsafe_code, reason = "owns an ibv_context")]

mod link;

use std::{
    ffi::c_int,
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::{
    Device, DeviceAttributes, DeviceSelector, Error, Gid, GidEntry, GidType, PortAttributes,
    PortNumber, PortState, Result, Verb, error::verb, gid,
};

/// An open device: what everything else is made from. Closed when dropped.
///
/// Each call here enters the kernel unless it says otherwise.
#[derive(Debug)]
pub struct Context {
    /// From `ibv_open_device`, with the four data path entries present; freed only by drop.
    raw: NonNull<rdma_sys::ibv_context>,
    device: Device,
    /// Told apart from every other context of the process by it, also from those that are gone.
    tag: ContextTag,
}

/// A number that only one context has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContextTag(pub(crate) u32);

impl ContextTag {
    /// The next one. They are not used again, so that 2^32 - 1 contexts can be opened.
    fn next() -> Result<Self> {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let last =
            LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| last.checked_add(1));
        last.map(|last| Self(last + 1)).map_err(|_| Error::Invalid {
            what: "the process has opened more contexts than can be told apart".into(),
            remedy: "keep contexts instead of opening them again",
        })
    }
}

/// The port and the GID that a queue pair of this side uses.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LocalPort {
    /// The port.
    pub port: PortNumber,
    /// What it can do and what state it is in.
    pub attributes: PortAttributes,
    /// The entry of its GID table.
    pub gid: GidEntry,
}

impl Context {
    pub(crate) fn open(device: &Device) -> Result<Self> {
        let (verb, open) = verb!(device.library(), ibv_open_device)?;
        let tag = ContextTag::next()?;
        // SAFETY: `device` keeps its list alive.
        let raw = verb.object(unsafe { open(device.as_raw()) })?;
        Self::checked(Self { raw, device: device.clone(), tag })
    }

    /// Takes over a context that a verb of `library` opened.
    ///
    /// # Safety
    ///
    /// `raw` is open, and nobody else closes it.
    pub(crate) unsafe fn from_raw(
        raw: NonNull<rdma_sys::ibv_context>,
        library: &'static rdma_sys::Library,
    ) -> Result<Self> {
        // SAFETY: open, by this function's contract.
        let device = unsafe { Device::of_context(raw, library) };
        let made = device.and_then(|device| Ok((device, ContextTag::next()?)));
        let (device, tag) = made.inspect_err(|_| {
            if let Ok((verb, close)) = verb!(library, ibv_close_device) {
                // SAFETY: as above, and nothing reads it after this.
                verb.log_refusal(unsafe { close(raw.as_ptr()) });
            }
        })?;
        Self::checked(Self { raw, device, tag })
    }

    /// A context whose provider has what the data path jumps through.
    fn checked(context: Self) -> Result<Self> {
        let raw = context.raw;
        // SAFETY: open; the table of operations is filled by then and not changed any more.
        let operations = unsafe { &(*raw.as_ptr()).ops };
        Verb::new("ibv_poll_cq").find(operations.poll_cq)?;
        Verb::new("ibv_req_notify_cq").find(operations.req_notify_cq)?;
        Verb::new("ibv_post_send").find(operations.post_send)?;
        Verb::new("ibv_post_recv").find(operations.post_recv)?;
        Ok(context)
    }

    pub(crate) fn tag(&self) -> ContextTag {
        self.tag
    }

    /// The device this is.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// How many interrupt vectors completion channels may choose from.
    #[must_use]
    pub fn completion_vectors(&self) -> u32 {
        // SAFETY: `raw` is live; the field is constant after opening.
        let count = unsafe { (*self.raw.as_ptr()).num_comp_vectors };
        u32::try_from(count).unwrap_or(1)
    }

    /// What the device can do, the extended attributes included where there are any.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] if the device is gone. See `ibv_query_device_ex(3)`.
    #[doc(alias = "ibv_query_device")]
    #[doc(alias = "ibv_query_device_ex")]
    pub fn query_device(&self) -> Result<DeviceAttributes> {
        let mut attributes = rdma_sys::ibv_device_attr_ex::default();
        // SAFETY: `raw` is live, and the struct is zeroed and of the length that is passed on.
        let returned = unsafe {
            rdma_sys::ibv_query_device_ex(self.as_raw(), std::ptr::null(), &raw mut attributes)
        };
        match returned {
            // As the C inline does: old kernels and providers have the basic query only.
            None | Some(libc::EOPNOTSUPP | libc::ENOSYS) => {
                let (verb, query) = verb!(self.library(), ibv_query_device)?;
                attributes = rdma_sys::ibv_device_attr_ex::default();
                // SAFETY: `raw` is live, and the struct is a valid place.
                verb.status(unsafe { query(self.as_raw(), &raw mut attributes.orig_attr) })?;
            }
            Some(returned) => Verb::new("ibv_query_device_ex").status(returned)?,
        }
        Ok(DeviceAttributes::new(attributes))
    }

    /// The state and the limits of a port.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`], `EINVAL` if the device has no such port. See `ibv_query_port(3)`.
    #[doc(alias = "ibv_query_port")]
    pub fn query_port(&self, port: PortNumber) -> Result<PortAttributes> {
        let verb = Verb::new("ibv_query_port");
        let mut attributes = rdma_sys::ibv_port_attr::default();
        let length = size_of_val(&attributes);
        // SAFETY: `raw` is live, and the struct is zeroed and of the length that is passed on.
        let returned = unsafe {
            rdma_sys::ibv_query_port_ex(self.as_raw(), port.get(), &raw mut attributes, length)
        };
        let returned = match returned {
            Some(returned) => returned,
            None => {
                let (_, query) = verb!(self.library(), ibv_query_port)?;
                // SAFETY: the older struct is a prefix of the newer one, which is zeroed.
                unsafe { query(self.as_raw(), port.get(), (&raw mut attributes).cast()) }
            }
        };
        verb.status(returned)?;
        Ok(PortAttributes::new(port, attributes))
    }

    /// The ports of the device, 1 up to as many as there are.
    ///
    /// # Errors
    ///
    /// As for [`query_device`](Self::query_device).
    pub fn ports(&self) -> Result<impl Iterator<Item = PortNumber> + use<>> {
        let count = self.query_device()?.port_count();
        Ok((1..=count).filter_map(|number| PortNumber::new(number).ok()))
    }

    /// A partition key of a port, host order.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`], `EINVAL` past the end of the table. See `ibv_query_pkey(3)`.
    #[doc(alias = "ibv_query_pkey")]
    pub fn query_pkey(&self, port: PortNumber, index: u16) -> Result<u16> {
        let (verb, query) = verb!(self.library(), ibv_query_pkey)?;
        let mut key = 0;
        // SAFETY: `raw` is live and `key` is a valid place.
        let returned =
            unsafe { query(self.as_raw(), port.get(), c_int::from(index), &raw mut key) };
        verb.status(returned)?;
        Ok(u16::from_be(key))
    }

    /// The place of a partition key, given in host order, in a port's table.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] if the port does not have it. See `ibv_get_pkey_index(3)`.
    #[doc(alias = "ibv_get_pkey_index")]
    pub fn pkey_index(&self, port: PortNumber, key: u16) -> Result<u16> {
        let (verb, find) = verb!(self.library(), ibv_get_pkey_index)?;
        // SAFETY: `raw` is live.
        let index = verb.count(unsafe { find(self.as_raw(), port.get(), key.to_be()) })?;
        u16::try_from(index).map_err(|_| verb.unsupported())
    }

    /// One entry of a port's GID table; all zero if it is empty.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] past the end of the table. See `ibv_query_gid(3)`.
    #[doc(alias = "ibv_query_gid")]
    pub fn query_gid(&self, port: PortNumber, index: u8) -> Result<Gid> {
        let (verb, query) = verb!(self.library(), ibv_query_gid)?;
        let mut gid = rdma_sys::ibv_gid { raw: [0; 16] };
        // SAFETY: `raw` is live and `gid` is a valid place.
        let returned =
            unsafe { query(self.as_raw(), port.get(), c_int::from(index), &raw mut gid) };
        verb.status(returned)?;
        Ok(Gid::from_raw(gid))
    }

    /// One entry of a port's GID table with its type and network interface.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`], `ENODATA` if the entry is empty, `EINVAL` past the end. See
    /// `ibv_query_gid_ex(3)`.
    #[doc(alias = "ibv_query_gid_ex")]
    pub fn query_gid_entry(&self, port: PortNumber, index: u8) -> Result<GidEntry> {
        let verb = Verb::new("ibv_query_gid_ex");
        let query = verb.find(self.library().verbs()._ibv_query_gid_ex)?;
        let mut entry = rdma_sys::ibv_gid_entry::default();
        let (port, index, length) = (port.get().into(), index.into(), size_of_val(&entry));
        // SAFETY: `raw` is live, and the entry is of the length that is passed on.
        verb.status(unsafe { query(self.as_raw(), port, index, &raw mut entry, 0, length) })?;
        gid_entry(&entry)
    }

    /// Every filled entry of the GID tables of all ports, up to index 255: no request can name more.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] if the device is gone. See `ibv_query_gid_table(3)`.
    #[doc(alias = "ibv_query_gid_table")]
    pub fn query_gid_table(&self) -> Result<Vec<GidEntry>> {
        let verb = Verb::new("ibv_query_gid_table");
        let query = verb.find(self.library().verbs()._ibv_query_gid_table)?;
        let mut room = 0;
        for port in self.ports()? {
            room += usize::try_from(self.query_port(port)?.gid_table_length()).unwrap_or(0);
        }
        let mut entries = vec![rdma_sys::ibv_gid_entry::default(); room];
        let length = size_of::<rdma_sys::ibv_gid_entry>();
        // SAFETY: `raw` is live, and there are `room` entries of the length that is passed on.
        let count = unsafe { query(self.as_raw(), entries.as_mut_ptr(), room, 0, length) };
        let count = verb.count(c_int::try_from(count).unwrap_or(c_int::MAX))?;
        // An address vector has eight bits for the index; what lies behind cannot be used.
        let usable = |entry: &&rdma_sys::ibv_gid_entry| entry.gid_index <= u8::MAX.into();
        entries.iter().take(count).filter(usable).map(gid_entry).collect()
    }

    /// The port that a selector asks for, or else the first active one.
    ///
    /// # Errors
    ///
    /// [`Error::NoDevice`] if that port, or every port, is down; [`Error::OutOfRange`] if the device has no
    /// such port.
    pub fn choose_port(&self, selector: &DeviceSelector) -> Result<PortNumber> {
        let count = self.query_device()?.port_count();
        let ports = match selector.wanted_port(self.device.name()) {
            Some(port) => {
                let remedy = "the device has no other ports";
                Error::check_or("the port number", port.get().into(), 1..=count.into(), remedy)?;
                vec![port]
            }
            None => self.ports()?.collect(),
        };
        let mut seen = Vec::new();
        for port in ports {
            let state = self.query_port(port)?.state();
            if state == PortState::ACTIVE {
                return Ok(port);
            }
            seen.push(format!("port {port} is {state}"));
        }
        Err(Error::NoDevice {
            wanted: format!("named {} with an active port", self.device.name()),
            present: seen,
            remedy: "bring the link up (`ip link set … up`; InfiniBand: a subnet manager must run)",
        })
    }

    /// The port and GID that a selector asks for, or else the first active port and the entry of its
    /// table that other machines can most likely reach: RoCE v2 before v1, IPv4 before IPv6,
    /// link-local last.
    ///
    /// # Errors
    ///
    /// [`Error::NoDevice`] if no port is active, [`Error::OutOfRange`] if the GID index is past the end of the
    /// table, [`Error::NoGid`] if the entry or the table is empty.
    pub fn local_port(&self, selector: &DeviceSelector) -> Result<LocalPort> {
        let port = self.choose_port(selector)?;
        let attributes = self.query_port(port)?;
        let gid = match selector.wanted_gid_index() {
            Some(index) => self.filled_gid(&attributes, index)?,
            None => gid::best(port, &self.query_gid_table()?)?,
        };
        if gid.gid.is_link_local() && gid.kind != GidType::INFINIBAND {
            log::warn!(
                "GID {} of {} is link-local: no router forwards it, and software RoCE devices do not \
                 loop it back",
                gid.index,
                self.device.name()
            );
        }
        Ok(LocalPort { port, attributes, gid })
    }

    /// An entry of a port's GID table that must be there and filled.
    pub(crate) fn filled_gid(&self, port: &PortAttributes, index: u8) -> Result<GidEntry> {
        let last = u64::from(port.gid_table_length().saturating_sub(1));
        let remedy =
            "the port's table has no more entries: leave RDMA_GID_INDEX unset to have one chosen";
        Error::check_or("the GID index", index.into(), 0..=last, remedy)?;
        let empty = Error::NoGid {
            port: port.number().get(),
            remedy: "this entry of its GID table is empty; leave RDMA_GID_INDEX unset to have one \
                     chosen, or look at `rdma link` and /sys/class/infiniband/*/ports/*/gids",
        };
        match self.query_gid_entry(port.number(), index) {
            Ok(entry) if entry.gid.is_zero() => Err(empty),
            Err(error) if error.errno() == Some(libc::ENODATA) => Err(empty),
            other => other,
        }
    }

    /// The C object, valid as long as this is.
    #[must_use]
    pub fn as_raw(&self) -> *mut rdma_sys::ibv_context {
        self.raw.as_ptr()
    }

    /// The library that the device came from.
    #[must_use]
    pub fn library(&self) -> &'static rdma_sys::Library {
        self.device.library()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Ok((verb, close)) = verb!(self.library(), ibv_close_device) {
            // SAFETY: `raw` is live and nothing reads it after this. What safe code leaked of its
            // children is unreachable, and the kernel frees it with the file.
            verb.log_refusal(unsafe { close(self.as_raw()) });
        }
    }
}

// SAFETY: verbs objects are by default safe to use from many threads, ibv_alloc_td(3).
unsafe impl Send for Context {}
// SAFETY: as for `Send`; each `&self` method is one verb.
unsafe impl Sync for Context {}

fn gid_entry(entry: &rdma_sys::ibv_gid_entry) -> Result<GidEntry> {
    let narrow = |what, value: u32| {
        u8::try_from(value).map_err(|_| Error::OutOfRange {
            what,
            asked: value.into(),
            minimum: 0,
            maximum: u8::MAX.into(),
            remedy: None,
        })
    };
    Ok(GidEntry {
        gid: Gid::from_raw(entry.gid),
        index: narrow("the GID index", entry.gid_index)?,
        port: PortNumber::new(narrow("the port number", entry.port_num)?)?,
        kind: GidType(entry.gid_type),
        interface_index: entry.ndev_ifindex,
    })
}
