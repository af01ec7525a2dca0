//! The list of devices, and open devices.
#![expect(unsafe_code, reason = "the verbs of contexts, called from C")]

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    ptr,
};

use rdma_sys as c;

use crate::{
    async_event::AsyncQueue,
    completion_queue, device_memory, domain,
    errno::{Outcome, errno, object, set_errno, status},
    fabric::{Fabric, fabric},
    handle::{ContextHandle, ContextRef},
    import::command_descriptor,
    pair, query, shared_receive, special_region, steering,
    verb::Verb,
    window, work_queue, xrc,
};

/// An open device.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: u32,
    /// The connection manager has it open, with this domain; neither counts as left over.
    internal: Option<u32>,
    /// What `cmd_fd` is. It is closed with the context.
    pub(crate) command: OwnedFd,
    /// Of an imported context: the one whose objects it shares.
    pub(crate) shares: Option<u32>,
    pub(crate) events: AsyncQueue,
}

/// See `ibv_get_device_list(3)`.
pub(crate) unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut c::ibv_device {
    let list = devices();
    // SAFETY: the caller gives null or a place for the number.
    if let Some(count) = unsafe { count.as_mut() } {
        *count = list.as_ref().map_or(0, |list| c_int::try_from(list.len() - 1).unwrap_or(0));
    }
    match list {
        Ok(list) => Box::into_raw(list).cast(),
        Err(code) => {
            set_errno(code);
            ptr::null_mut()
        }
    }
}

/// The devices that are listed, and a null pointer after them.
fn devices() -> Outcome<Box<[*mut c::ibv_device]>> {
    let mut fabric = fabric();
    for device in &mut fabric.devices {
        if device.listed {
            device.control.enter(Verb::ibv_get_device_list)?;
        }
    }
    let listed = fabric.devices.iter().filter(|device| device.listed);
    let raw = listed.map(|device| ptr::with_exposed_provenance_mut(device.description.raw));
    Ok(raw.chain([ptr::null_mut()]).collect())
}

/// See `ibv_get_device_list(3)`.
pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut c::ibv_device) {
    if list.is_null() {
        return;
    }
    let mut length = 1;
    // SAFETY: a list ends with the first null pointer, and the caller gives a whole one.
    while !unsafe { *list.wrapping_add(length - 1) }.is_null() {
        length += 1;
    }
    // SAFETY: lists come from boxes of just this length.
    drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(list, length)) });
}

/// See `ibv_get_device_name(3)`.
pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut c::ibv_device) -> *const c_char {
    // SAFETY: the caller gives a device of a list, and devices are never freed.
    unsafe { &raw const (*device).name }.cast()
}

/// See `ibv_get_device_guid(3)`: in network order.
pub(crate) unsafe extern "C" fn ibv_get_device_guid(device: *mut c::ibv_device) -> c::__be64 {
    fabric().number_of(device).map_or(0, |(_, guid)| guid.to_be())
}

/// See `ibv_get_device_index(3)`.
pub(crate) unsafe extern "C" fn ibv_get_device_index(device: *mut c::ibv_device) -> c_int {
    fabric().number_of(device).map_or(-1, |(number, _)| number.cast_signed())
}

/// See `ibv_open_device(3)`.
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut c::ibv_device) -> *mut c::ibv_context {
    object(open(device))
}

fn open(raw: *mut c::ibv_device) -> Outcome<*mut c::ibv_context> {
    let device = {
        let mut fabric = fabric();
        let (device, _) = fabric.number_of(raw).ok_or(libc::ENODEV)?;
        fabric.enter(device, Verb::ibv_open_device)?;
        device
    };
    make(device, command_descriptor()?, None)
}

/// A new descriptor of a file of its own.
pub(crate) fn descriptor(name: &CStr) -> Outcome<OwnedFd> {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(errno());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes a context, which shares the objects of another if it is imported.
pub(crate) fn make(
    device: u32,
    command: OwnedFd,
    shares: Option<u32>,
) -> Outcome<*mut c::ibv_context> {
    let mut fabric = fabric();
    let events = AsyncQueue::new()?;
    let (async_fd, cmd_fd) = (events.fd(), command.as_raw_fd());
    let description = &fabric.device(device).ok_or(libc::ENODEV)?.description;
    let raw = ptr::with_exposed_provenance_mut(description.raw);
    let (posting, completion) = (description.extended_posting, description.extended_completion);
    let number = fabric.contexts.insert_with(|_| Context {
        device,
        internal: None,
        command,
        shares,
        events,
    });
    let verbs = c::verbs_context {
        sz: size_of::<c::verbs_context>(),
        query_port: Some(query::query_port_ex),
        query_device_ex: Some(query::query_device_ex),
        query_rt_values: Some(query::query_rt_values),
        create_cq_ex: completion.then_some(completion_queue::create_cq_ex),
        create_qp_ex: posting.then_some(pair::create_qp_ex),
        open_qp: Some(pair::open_qp),
        create_srq_ex: Some(shared_receive::create_srq_ex),
        get_srq_num: Some(shared_receive::get_srq_num),
        open_xrcd: Some(xrc::open_xrcd),
        close_xrcd: Some(xrc::close_xrcd),
        modify_cq: Some(completion_queue::modify_cq),
        modify_qp_rate_limit: Some(pair::modify_qp_rate_limit),
        alloc_td: Some(domain::alloc_td),
        dealloc_td: Some(domain::dealloc_td),
        alloc_parent_domain: Some(domain::alloc_parent_domain),
        alloc_dm: Some(device_memory::alloc_dm),
        free_dm: Some(device_memory::free_dm),
        reg_dm_mr: Some(device_memory::reg_dm_mr),
        dm_export_dmabuf_fd: Some(device_memory::ibv_dm_export_dmabuf_fd),
        alloc_null_mr: Some(special_region::alloc_null_mr),
        advise_mr: Some(special_region::advise_mr),
        reg_mr_ex: Some(special_region::ibv_reg_mr_ex),
        ibv_create_flow: Some(steering::create_flow),
        ibv_destroy_flow: Some(steering::destroy_flow),
        create_counters: Some(steering::create_counters),
        destroy_counters: Some(steering::destroy_counters),
        attach_counters_point_flow: Some(steering::attach_counters_point_flow),
        read_counters: Some(steering::read_counters),
        create_wq: Some(work_queue::create_wq),
        modify_wq: Some(work_queue::modify_wq),
        destroy_wq: Some(work_queue::destroy_wq),
        create_rwq_ind_table: Some(work_queue::create_rwq_ind_table),
        destroy_rwq_ind_table: Some(work_queue::destroy_rwq_ind_table),
        context: c::ibv_context {
            device: raw,
            cmd_fd,
            async_fd,
            num_comp_vectors: 4,
            abi_compat: ptr::without_provenance_mut::<c_void>(c::VERBS_ABI_IS_EXTENDED),
            ops: c::ibv_context_ops {
                poll_cq: Some(completion_queue::poll_cq),
                req_notify_cq: Some(completion_queue::req_notify_cq),
                post_send: Some(pair::post_send),
                post_recv: Some(pair::post_recv),
                post_srq_recv: Some(shared_receive::post_srq_recv),
                alloc_mw: Some(window::alloc_mw),
                bind_mw: Some(window::bind_mw),
                dealloc_mw: Some(window::dealloc_mw),
                ..c::ibv_context_ops::default()
            },
            ..c::ibv_context::default()
        },
        ..c::verbs_context::default()
    };
    Ok(ContextHandle::make(verbs, number, device))
}

/// See `ibv_close_device(3)`. It does not ask whether objects are alive, and neither does this: the
/// kernel frees them with the file, so they are gone from the device, and count as leaked.
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut c::ibv_context) -> c_int {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    let outcome = close(context);
    if outcome == Ok(true) {
        // SAFETY: the context is closed and has no objects that could refer to it.
        unsafe { ContextHandle::free(context.raw) };
    }
    status(outcome.map(drop))
}

/// Closes a context; whether nothing refers to it any more.
fn close(context: ContextRef) -> Outcome<bool> {
    let mut fabric = fabric();
    fabric.enter(context.device, Verb::ibv_close_device)?;
    let left = fabric.objects_of(context.number);
    if left.is_empty() {
        fabric.contexts.remove(context.number);
    } else {
        fabric.violation(
            context.device,
            format!("ibv_close_device: {} still alive", left.join(", ")),
        );
        fabric.cut_off(context.number);
    }
    Ok(left.is_empty())
}

/// Marks a context and its domain as those of the connection manager.
///
/// # Safety
///
/// Both are addresses of live objects of this library.
pub(crate) unsafe fn open_internally(fabric: &mut Fabric, context: usize, domain: usize) {
    // SAFETY: the context is open, by the contract above.
    let context = unsafe { ContextRef::of(ptr::with_exposed_provenance_mut(context)) };
    // SAFETY: the domain is live, by the contract above.
    let domain = unsafe { domain::DomainRef::of(ptr::with_exposed_provenance_mut(domain)) };
    if let Some(context) = fabric.contexts.get_mut(context.number) {
        context.internal = Some(domain.number);
    }
}

impl Fabric {
    /// A device by its C struct: its number and its GUID.
    fn number_of(&self, raw: *mut c::ibv_device) -> Option<(u32, u64)> {
        (0u32..)
            .zip(&self.devices)
            .find(|(_, device)| device.description.raw == raw.addr())
            .map(|(number, device)| (number, device.description.guid))
    }

    /// Every object of a device that is alive, in words.
    pub(crate) fn alive(&self, device: u32) -> Vec<String> {
        let mut all = Vec::new();
        for (number, context) in self.contexts.iter().filter(|(_, each)| each.device == device) {
            all.extend(self.objects_of(number));
            if let Some(domain) = context.internal {
                let ours = format!("protection domain {domain}");
                all.retain(|each| *each != ours);
                continue;
            }
            all.push(if context.events.is_cut_off() {
                format!("context {number}, closed with objects alive")
            } else {
                format!("context {number}")
            });
        }
        all.extend(self.cm.alive(device));
        all
    }

    /// Every object of a context that is alive, in words.
    fn objects_of(&self, context: u32) -> Vec<String> {
        let mut all = Vec::new();
        macro_rules! add {
            ($($objects:ident: $name:expr;)*) => {
                $(for (number, each) in self.$objects.iter() {
                    if each.context == context {
                        let name: fn(&_) -> &'static str = $name;
                        all.push(format!("{} {number}", name(each)));
                    }
                })*
            };
        }
        add! {
            pairs: |_| "queue pair";
            shared: |_| "shared receive queue";
            queues: |_| "completion queue";
            channels: |_| "completion channel";
            addresses: |_| "address handle";
            memories: |_| "device memory";
            xrc_domains: |_| "XRC domain";
            counters: |_| "completion counter";
            flows: |_| "flow";
            flow_counters: |_| "flow counters";
            tables: |_| "indirection table";
            work_queues: |_| "work queue";
        }
        all.extend(self.keys.of_context(context));
        add! {
            threads: |_| "thread domain";
            domains: domain::kind;
        }
        all
    }

    /// Whether objects of one context can be imported into another.
    pub(crate) fn shares(&self, into: u32, owner: u32) -> bool {
        let origin =
            |number: u32| self.contexts.get(number).map(|context| context.shares.unwrap_or(number));
        origin(into).is_some() && origin(into) == origin(owner)
    }

    /// Ends everything that a closed context had on the device. The C structs stay allocated, for
    /// their owner may still look at them.
    fn cut_off(&mut self, context: u32) {
        let pairs: Vec<u32> = self
            .pairs
            .iter()
            .filter(|(_, each)| each.context == context)
            .map(|(number, _)| number)
            .collect();
        for number in pairs {
            self.silence(number);
        }
        self.silence_work_queues(context);
        self.end_rules(context);
        self.keys.cut_off(context);
        if let Some(context) = self.contexts.get_mut(context) {
            context.events.cut_off();
        }
    }
}
