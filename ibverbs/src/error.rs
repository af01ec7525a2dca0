//! What can go wrong, which verb it was, and what to do about it.
#![expect(unsafe_code, reason = "reads the locked-memory limit")]
#![expect(clippy::disallowed_methods, reason = "the one file that reads errno")]

use std::{
    borrow::Cow, ffi::c_int, fmt, io, net::SocketAddr, ops::RangeInclusive, ptr::NonNull,
    time::Duration,
};

use crate::connection::{EventKind, RejectReason};

/// The result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a call of this crate was refused for.
///
/// Messages do not repeat their cause; print the chain of [`source`](std::error::Error::source)s.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A library of rdma-core cannot be opened.
    #[error(transparent)]
    Library(#[from] &'static rdma_sys::LoadError),

    /// The verb ran, and the kernel or the provider refused it.
    #[error("{verb} failed{}", remedy.as_deref().map(|text| format!(": {text}")).unwrap_or_default())]
    Verb {
        /// The C function.
        verb: Verb,
        /// What to do, for the causes that are well known.
        remedy: Option<Box<str>>,
        /// The errno.
        #[source]
        source: io::Error,
    },

    /// The installed rdma-core, or the device, does not have this verb.
    #[error("{verb} is not available: {}", match since {
        Some(since) => format!("it needs rdma-core {since} or later, and a device that has it"),
        None => "the device does not have it".to_owned(),
    })]
    Unsupported {
        /// The C function.
        verb: Verb,
        /// The rdma-core release that brought it.
        since: Option<&'static str>,
    },

    /// A number is outside of what can be; nothing was called.
    #[error("{what} cannot be {asked}: it must be {}{}", allowed(*minimum, *maximum),
        remedy.map(|text| format!("; {text}")).unwrap_or_default())]
    OutOfRange {
        /// Which number, with its article.
        what: &'static str,
        /// What was asked for.
        asked: u64,
        /// The smallest allowed.
        minimum: u64,
        /// The largest allowed.
        maximum: u64,
        /// What to do, where the numbers do not say it.
        remedy: Option<&'static str>,
    },

    /// More bytes than there is room for; nothing was called.
    #[error("{} not fit the {} of {place}: {remedy}",
        if *bytes == 1 { "1 byte does".to_owned() } else { format!("{bytes} bytes do") }, in_bytes(*room))]
    DoesNotFit {
        /// How many bytes.
        bytes: u64,
        /// How many there is room for.
        room: u64,
        /// Where.
        place: &'static str,
        /// What to do.
        remedy: &'static str,
    },

    /// A range does not lie inside of a memory region; nothing was called.
    #[error("bytes {start}..{end} do not lie inside of {what}, which has {}: {}", in_bytes(*length),
        inside(*start, *end, *length))]
    OutOfBounds {
        /// What was cut into.
        what: &'static str,
        /// The first byte asked for.
        start: u64,
        /// One past the last byte asked for.
        end: u64,
        /// How many bytes there are.
        length: u64,
    },

    /// Arguments that contradict each other; nothing was called.
    #[error("{what}: {remedy}")]
    Invalid {
        /// What was wrong.
        what: Cow<'static, str>,
        /// What would be right.
        remedy: &'static str,
    },

    /// No device matches.
    #[error("no RDMA device {wanted}: {remedy} (present: {})", if present.is_empty() { "none".to_owned() } else { present.join(", ") })]
    NoDevice {
        /// What was looked for.
        wanted: String,
        /// The devices that are there, and why each was passed over.
        present: Vec<String>,
        /// What to do.
        remedy: &'static str,
    },

    /// A port has no GID that a packet could be routed by.
    #[error("port {port} has no usable GID: {remedy}")]
    NoGid {
        /// The port.
        port: u8,
        /// What to do.
        remedy: &'static str,
    },

    /// An environment variable does not say what it should.
    #[error("{variable}={value:?} cannot be read: it must be {expected}")]
    Setting {
        /// The variable's name.
        variable: &'static str,
        /// What it holds.
        value: String,
        /// What it may hold.
        expected: &'static str,
    },

    /// Bytes from a peer are not what they should be.
    #[error("{what} from the peer is malformed: {reason}")]
    Malformed {
        /// The wire format.
        what: &'static str,
        /// What is wrong with it, with the numbers.
        reason: String,
    },

    /// The device reported a request that is not outstanding: it, or its driver, is broken.
    #[error(
        "the device reported request {id:#x}, which is not outstanding: drop its queue pair, and look at the \
        kernel's log"
    )]
    UnknownWork {
        /// The number that it reported.
        id: u64,
    },

    /// The connection manager reports that a connection cannot be made, or has ended.
    #[error("{event}{}: {}", named(" (", *peer, ")"), event.remedy(-status))]
    Connection {
        /// What it reported.
        event: EventKind,
        /// The status of the event: a negative errno, or 0.
        status: i32,
        /// The peer, as far as it is known.
        peer: Option<SocketAddr>,
        /// The errno, if there is one.
        #[source]
        source: Option<io::Error>,
    },

    /// The peer does not want the connection.
    #[error("rejected{} ({reason}): {}", named(" by ", *peer, ""), reason.remedy())]
    Rejected {
        /// The peer.
        peer: Option<SocketAddr>,
        /// Why.
        reason: RejectReason,
        /// What it sent along; over InfiniBand and RoCE always 148 bytes, filled with zeros.
        private_data: Vec<u8>,
    },

    /// Something did not happen in time.
    #[error("{what} took longer than {after:?}: {remedy}")]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// How long.
        after: Duration,
        /// What to do.
        remedy: &'static str,
    },

    /// A queue pair did not change its state.
    #[error("queue pair {number:#08x} did not {}: {reason}", change(from, to))]
    Transition {
        /// The queue pair's number.
        number: u32,
        /// The state it is in.
        from: &'static str,
        /// The state it should have gone to; the same if only its attributes should have changed.
        to: &'static str,
        /// Which attribute is the likely cause.
        reason: String,
        /// The errno.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// The errno of the refused verb, if one was called.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Verb { source, .. } | Self::Transition { source, .. } => source.raw_os_error(),
            Self::Connection { source, .. } => source.as_ref().and_then(io::Error::raw_os_error),
            _ => None,
        }
    }

    pub(crate) fn check(what: &'static str, asked: u64, minimum: u64, maximum: u64) -> Result<()> {
        Self::check_or(what, asked, minimum..=maximum, None)
    }

    /// As [`check`](Self::check), and says what to do.
    pub(crate) fn check_or(
        what: &'static str,
        asked: u64,
        allowed: RangeInclusive<u64>,
        remedy: impl Into<Option<&'static str>>,
    ) -> Result<()> {
        if allowed.contains(&asked) {
            return Ok(());
        }
        let (minimum, maximum) = allowed.into_inner();
        Err(Self::OutOfRange { what, asked, minimum, maximum, remedy: remedy.into() })
    }

    /// A number of bytes that a wire format does not have.
    pub(crate) fn wrong_length(what: &'static str, found: usize, expected: usize) -> Self {
        let reason = format!(
            "it has {} and not {expected}; do both sides exchange the same things, in the same order?",
            in_bytes(found as u64)
        );
        Self::Malformed { what, reason }
    }
}

/// What to do about a number over what the device has.
pub(crate) const DEVICE_LIMIT: &str = "the device has no more";

/// What a number may be.
fn allowed(minimum: u64, maximum: u64) -> String {
    match (minimum, maximum) {
        (one, other) if one == other => one.to_string(),
        (_, u64::MAX) => format!("at least {minimum}"),
        _ => format!("from {minimum} to {maximum}"),
    }
}

/// What a queue pair should have done.
fn change(from: &str, to: &str) -> String {
    if from == to {
        format!("change its attributes in state \"{from}\"")
    } else {
        format!("go from {from} to {to}")
    }
}

fn in_bytes(count: u64) -> String {
    if count == 1 { "1 byte".to_owned() } else { format!("{count} bytes") }
}

/// What would lie inside.
fn inside(start: u64, end: u64, length: u64) -> String {
    if start > end {
        "the range ends before it starts".to_owned()
    } else if start > length {
        format!("a range can start at {length} at most")
    } else {
        format!("from {start} on there are {}", length - start)
    }
}

/// An object could not be closed; it comes back with the reason.
#[derive(Debug, thiserror::Error)]
#[error("the object could not be closed, and is still there")]
pub struct CloseError<T> {
    /// The object, as it was.
    pub object: T,
    /// Why it was refused.
    #[source]
    pub error: Error,
}

/// The name of a C function, as its manual page has it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Verb(&'static str);

impl Verb {
    /// A function of rdma-core by its C name.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// The C name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.0
    }

    /// The function, if the library has it.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] with the release that brought it.
    pub fn find<F>(self, function: Option<F>) -> Result<F> {
        function.ok_or_else(|| self.unsupported())
    }

    /// The error that says that the library or the device does not have this verb.
    #[must_use]
    pub fn unsupported(self) -> Error {
        Error::Unsupported { verb: self, since: rdma_sys::since(self.0) }
    }

    /// Reads the convention "null, and errno is set".
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] if `returned` is null.
    pub fn object<T>(self, returned: *mut T) -> Result<NonNull<T>> {
        NonNull::new(returned).ok_or_else(|| self.error(io::Error::last_os_error()))
    }

    /// Reads the convention "0, or an errno"; a negative number means that errno is set.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] if `returned` is not 0.
    pub fn status(self, returned: c_int) -> Result<()> {
        match returned {
            0 => Ok(()),
            code if code > 0 => Err(self.error(io::Error::from_raw_os_error(code))),
            code => Err(self.error(errno_after(code))),
        }
    }

    /// Reads the convention of `ibv_rereg_mr(3)`: 0, or a negative code of its own, with errno set.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] if `returned` is not 0.
    pub(crate) fn reregistered(self, returned: c_int) -> Result<()> {
        if returned == 0 { Ok(()) } else { Err(self.error(errno_after(-1))) }
    }

    /// Reads the convention "a count, or a negative number".
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] if `returned` is negative.
    pub fn count(self, returned: c_int) -> Result<usize> {
        usize::try_from(returned).map_err(|_| self.error(errno_after(returned)))
    }

    /// The error of this verb for an errno.
    #[must_use]
    pub fn error(self, source: io::Error) -> Error {
        let errno = source.raw_os_error().unwrap_or(0);
        if matches!(errno, libc::EOPNOTSUPP | libc::ENOSYS) && self.0 != "ibv_get_device_list" {
            let remedy = unsupported_remedy(self.0);
            return Error::Verb { verb: self, remedy: Some(remedy.into()), source };
        }
        Error::Verb { verb: self, remedy: remedy(self.0, errno), source }
    }

    /// For destructors: a refusal leaks the object and is logged, never a panic.
    pub fn log_refusal(self, returned: c_int) {
        if let Err(error) = self.status(returned) {
            let source = std::error::Error::source(&error).map(ToString::to_string);
            log::warn!("{error} ({}); the object is leaked", source.unwrap_or_default());
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl fmt::Debug for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// A function of a library by its C name, together with its [`Verb`].
macro_rules! verb {
    ($library:expr, $name:ident) => {{
        let verb = $crate::error::Verb::new(stringify!($name));
        verb.find($library.verbs().$name).map(|function| (verb, function))
    }};
}
pub(crate) use verb;

/// `-1` means that errno says what happened, other negative numbers are the errno themselves.
fn errno_after(code: c_int) -> io::Error {
    let error =
        if code == -1 { io::Error::last_os_error() } else { io::Error::from_raw_os_error(-code) };
    // A provider that fails without setting errno has still failed.
    if error.raw_os_error() == Some(0) { io::Error::from_raw_os_error(libc::EIO) } else { error }
}

fn named(before: &str, peer: Option<SocketAddr>, after: &str) -> String {
    peer.map(|peer| format!("{before}{peer}{after}")).unwrap_or_default()
}

fn unsupported_remedy(verb: &str) -> &'static str {
    match verb {
        "ibv_reg_dmabuf_mr" => {
            "the device or its driver cannot register dma-bufs; this needs Linux 5.12, and efa, mlx5, \
             or (rdma-core 56 and later) bnxt_re or irdma"
        }
        _ => "the device does not support this",
    }
}

/// An errno that the kernel keeps to itself, mostly.
const KERNEL_ENOTSUPP: i32 = 524;

fn remedy(verb: &str, errno: i32) -> Option<Box<str>> {
    let text = match (verb, errno) {
        ("ibv_get_device_list", libc::ENOSYS) => {
            "the kernel has no RDMA support loaded; try `modprobe ib_uverbs`"
        }
        ("ibv_open_device", libc::EACCES | libc::EPERM) => {
            "no permission on the device node below /dev/infiniband; add the user to the group that \
             owns it (often `rdma`), or give the container the device"
        }
        ("ibv_open_device", libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
            // libibverbs says that a node is not there as well when it may not be opened and udev made no second one.
            "the device node below /dev/infiniband is missing or may not be opened; try `modprobe ib_uverbs`, look \
             which group owns it (often `rdma`), and give a container `--device /dev/infiniband`"
        }
        ("ibv_reg_mr" | "ibv_reg_mr_iova2", libc::ENOMEM | libc::EAGAIN | libc::EPERM) => {
            return Some(locked_memory_remedy());
        }
        ("ibv_reg_mr" | "ibv_reg_mr_iova2", libc::EFAULT) => {
            "the memory is not mapped, or not writable although write access was asked for"
        }
        ("ibv_create_qp" | "ibv_create_qp_ex", libc::ENOMEM | libc::EINVAL) => {
            "the queue sizes, segments or inline bytes asked for are over what the device gives, \
             or the locked-memory limit (ulimit -l) is too low for its queues"
        }
        ("ibv_create_qp" | "ibv_create_qp_ex" | "ibv_create_flow", libc::EPERM) => {
            "raw packet queue pairs and their flows need the capability CAP_NET_RAW: run as root, with \
             `setcap cap_net_raw+ep PROGRAM`, systemd's AmbientCapabilities=CAP_NET_RAW, or docker's \
             --cap-add NET_RAW"
        }
        ("ibv_create_flow", libc::EINVAL | libc::EOPNOTSUPP) => {
            "the device does not match one of these headers or fields or a part of a field, does not have \
             one of the actions, or the port is not one of its own"
        }
        ("ibv_create_flow", libc::ENXIO) => {
            "flow steering is switched off in the driver (ConnectX-3: `options mlx4_core \
             log_num_mgm_entry_size=-1`)"
        }
        ("ibv_create_cq" | "ibv_create_cq_ex", libc::EINVAL | libc::ENOMEM) => {
            "more completions were asked for than the device's limit (max_completion_entries), or \
             the locked-memory limit (ulimit -l) is too low"
        }
        ("ibv_post_send" | "ibv_wr_complete", libc::ENOMEM) => {
            "the queue is full; poll completions of signaled requests before posting more, or create \
             the queue pair with more requests"
        }
        ("ibv_post_recv" | "ibv_post_srq_recv" | "ibv_post_wq_recv", libc::ENOMEM) => {
            "the queue is full; poll completions of receives before posting more, or create the queue \
             with more requests"
        }
        ("ibv_post_send" | "ibv_wr_complete" | "ibv_post_recv", libc::EINVAL) => {
            "the queue pair is not in a state that takes this request, or the request has more \
             segments or inline bytes than it was created for"
        }
        ("rdma_create_event_channel", libc::ENODEV | libc::ENOENT | libc::EPERM) => {
            "there is no RDMA device, or the kernel's connection manager is missing: try `modprobe \
             rdma_ucm`, and give a container `--device /dev/infiniband`"
        }
        ("rdma_create_event_channel", libc::EACCES) => "no permission on /dev/infiniband/rdma_cm",
        ("rdma_bind_addr" | "rdma_listen", libc::EADDRINUSE) => {
            "another program, or a connection of an earlier one, has this port; choose another, or set \
             `reuse_address`"
        }
        ("rdma_bind_addr" | "rdma_resolve_addr", libc::EADDRNOTAVAIL | libc::ENODEV) => {
            "no RDMA device of this machine has this address; see `ip address` and `rdma link`"
        }
        ("rdma_resolve_addr", libc::ENETUNREACH | libc::EHOSTUNREACH) => {
            "no route of this machine leads there; see `ip route get`"
        }
        ("rdma_bind_addr", libc::EACCES) => "ports below 1024 need CAP_NET_BIND_SERVICE",
        ("rdma_connect" | "rdma_accept" | "rdma_reject", libc::EINVAL) => {
            "the private data is longer than the message has room for, or the connection is not in a \
             state for this"
        }
        ("rdma_init_qp_attr", libc::EINVAL) => {
            "the connection is not in a state for this; a peer that asked for it may have given up"
        }
        ("rdma_connect" | "rdma_accept", libc::ECONNRESET | libc::ENOTCONN) => {
            "the peer has given up meanwhile"
        }
        ("rdma_join_multicast_ex", KERNEL_ENOTSUPP) => {
            "over RoCE v2 the kernel joins IPv4 groups only"
        }
        ("mmap", libc::ENOMEM) => {
            "too few huge pages are set aside; `sysctl vm.nr_hugepages` says and sets how many"
        }
        (_, libc::EBUSY) => "other objects still depend on it",
        _ => return None,
    };
    Some(text.into())
}

fn locked_memory_remedy() -> Box<str> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for what getrlimit(2) writes.
    let returned = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    let limit = match limit.rlim_cur {
        _ if returned != 0 => "unknown".to_owned(),
        libc::RLIM_INFINITY => "unlimited".to_owned(),
        bytes => format!("{bytes} bytes"),
    };
    format!(
        "the memory cannot be pinned; the locked-memory limit is {limit} (raise it with `ulimit -l \
         unlimited`, /etc/security/limits.conf, systemd's LimitMEMLOCK=infinity, or docker's --ulimit \
         memlock=-1), or the machine or the device is out of memory"
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERB: Verb = Verb::new("ibv_reg_mr");

    #[test]
    fn a_status_is_zero_or_an_errno_of_either_sign() {
        VERB.status(0).unwrap();
        assert_eq!(VERB.status(libc::EINVAL).unwrap_err().errno(), Some(libc::EINVAL));
        assert_eq!(VERB.status(-libc::EINVAL).unwrap_err().errno(), Some(libc::EINVAL));
    }

    #[test]
    fn a_count_is_never_negative() {
        assert_eq!(VERB.count(3).unwrap(), 3);
        assert_eq!(VERB.count(-libc::EIO).unwrap_err().errno(), Some(libc::EIO));
    }

    #[test]
    fn a_registration_that_is_refused_names_the_locked_memory_limit() {
        let text = VERB.status(libc::ENOMEM).unwrap_err().to_string();
        assert!(text.starts_with("ibv_reg_mr failed: "), "{text}");
        assert!(text.contains("ulimit -l"), "{text}");
    }

    #[test]
    fn a_missing_verb_names_the_release_that_brought_it() {
        let error = Verb::new("ibv_reg_dmabuf_mr").find(None::<fn()>).unwrap_err();
        assert!(error.to_string().contains("rdma-core 34"), "{error}");
    }

    #[test]
    fn no_permission_and_no_device_node_have_remedies() {
        let open = Verb::new("ibv_open_device");
        assert!(open.status(libc::EACCES).unwrap_err().to_string().contains("group"));
        assert!(open.status(libc::ENOENT).unwrap_err().to_string().contains("modprobe"));
    }
}
