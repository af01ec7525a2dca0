//! What a device, its ports, its GIDs and its partition keys are.
#![expect(unsafe_code, reason = "the query verbs, called from C")]

use std::{ffi::c_int, ptr, time::Duration};

use rdma_sys as c;

use crate::{
    clock,
    device::{Description, GidEntry, LinkLayer, Port},
    errno::{Outcome, minus_one, set_errno, status},
    ethernet::{LONGEST_STRETCH, hash::FIELDS},
    fabric::{Fabric, fabric},
    handle::ContextRef,
    verb::Verb,
    work_queue::LARGEST_TABLE,
};

impl Fabric {
    fn described(&mut self, context: ContextRef, verb: Verb) -> Outcome<&Description> {
        self.enter(context.device, verb)?;
        Ok(&self.device(context.device).ok_or(libc::ENODEV)?.description)
    }
}

/// See `ibv_query_device(3)`.
pub(crate) unsafe extern "C" fn ibv_query_device(
    context: *mut c::ibv_context,
    attr: *mut c::ibv_device_attr,
) -> c_int {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    let answer = fabric().described(context, Verb::ibv_query_device).map(device_attr);
    status(answer.map(|answer| {
        // SAFETY: the caller gives a place for the answer.
        unsafe { attr.write(answer) };
    }))
}

/// What EFA devices have there.
const VENDOR_OF_EFA: u32 = 0x1d0f;

/// What a device with Ethernet ports can do besides.
const OF_FRAMES: u32 = c::IBV_DEVICE_MANAGED_FLOW_STEERING | c::IBV_DEVICE_RAW_IP_CSUM;

fn device_attr(device: &Description) -> c::ibv_device_attr {
    let limits = &device.limits;
    let count = |value: u32| c_int::try_from(value).unwrap_or(c_int::MAX);
    let guid = device.guid.to_be();
    let ethernet = device.link_layer == LinkLayer::Ethernet;
    let mut attr = c::ibv_device_attr {
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: limits.max_mr_size,
        page_size_cap: 0xffff_f000,
        vendor_id: if device.efa.is_some() { VENDOR_OF_EFA } else { 0x02_0000 },
        vendor_part_id: 1,
        hw_ver: 1,
        max_qp: count(limits.max_qp),
        max_qp_wr: count(limits.max_qp_wr),
        device_cap_flags: c::IBV_DEVICE_CURR_QP_STATE_MOD
            | c::IBV_DEVICE_RC_RNR_NAK_GEN
            | c::IBV_DEVICE_SYS_IMAGE_GUID
            | c::IBV_DEVICE_PORT_ACTIVE_EVENT
            | c::IBV_DEVICE_MEM_WINDOW
            | c::IBV_DEVICE_MEM_WINDOW_TYPE_2B
            | c::IBV_DEVICE_MEM_MGT_EXTENSIONS
            | c::IBV_DEVICE_XRC
            | if ethernet { OF_FRAMES } else { 0 },
        max_sge: count(limits.max_sge),
        max_sge_rd: count(limits.max_sge),
        max_cq: count(limits.max_cq),
        max_cqe: count(limits.max_cqe),
        max_mr: count(limits.max_mr),
        max_pd: count(limits.max_pd),
        max_qp_rd_atom: limits.max_qp_rd_atom.into(),
        max_qp_init_rd_atom: limits.max_qp_init_rd_atom.into(),
        max_res_rd_atom: count(limits.max_qp).saturating_mul(limits.max_qp_rd_atom.into()),
        atomic_cap: c::IBV_ATOMIC_HCA,
        max_mw: count(limits.max_mw),
        max_raw_ethy_qp: if ethernet { count(limits.max_qp) } else { 0 },
        max_mcast_grp: count(limits.max_mcast_grp),
        max_mcast_qp_attach: count(limits.max_qp),
        max_total_mcast_qp_attach: count(limits.max_qp),
        max_ah: count(limits.max_ah),
        max_srq: count(limits.max_srq),
        max_srq_wr: count(limits.max_srq_wr),
        max_srq_sge: count(limits.max_srq_sge),
        max_pkeys: limits.max_pkeys,
        local_ca_ack_delay: 15,
        phys_port_cnt: u8::try_from(device.ports.len()).unwrap_or(u8::MAX),
        ..c::ibv_device_attr::default()
    };
    for (place, byte) in attr.fw_ver.iter_mut().zip(b"1.0.0") {
        *place = byte.cast_signed();
    }
    attr
}

/// See `ibv_query_device_ex(3)`: writes at most `length` bytes of the answer.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut c::ibv_context,
    input: *const c::ibv_query_device_ex_input,
    attr: *mut c::ibv_device_attr_ex,
    length: usize,
) -> c_int {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    // SAFETY: the caller gives null or a readable struct.
    let asked = unsafe { input.as_ref() }.map_or(0, |input| input.comp_mask);
    if asked != 0 || length < size_of::<c::ibv_device_attr>() {
        return libc::EINVAL;
    }
    let answer = fabric().described(context, Verb::ibv_query_device_ex).map(device_attr_ex);
    status(answer.map(|answer| {
        // SAFETY: the caller gives `length` bytes for the answer.
        unsafe { write_prefix(&answer, attr, length) };
    }))
}

/// The flags of the kernel for global and persistent flush and for atomic writes, which the header of
/// libibverbs does not name.
const FLUSH_AND_ATOMIC_WRITE: u64 = 7 << 38;

/// What the device does with frames, if its ports are of Ethernet.
fn ethernet_attr(device: &Description) -> c::ibv_device_attr_ex {
    if device.link_layer != LinkLayer::Ethernet {
        return c::ibv_device_attr_ex::default();
    }
    c::ibv_device_attr_ex {
        tso_caps: c::ibv_tso_caps {
            max_tso: u32::try_from(LONGEST_STRETCH).unwrap_or(0),
            supported_qpts: 1 << c::IBV_QPT_RAW_PACKET,
        },
        rss_caps: c::ibv_rss_caps {
            supported_qpts: 1 << c::IBV_QPT_RAW_PACKET,
            max_rwq_indirection_tables: device.limits.max_qp,
            max_rwq_indirection_table_size: u32::try_from(LARGEST_TABLE).unwrap_or(0),
            rx_hash_fields_mask: FIELDS.into(),
            rx_hash_function: u8::try_from(c::IBV_RX_HASH_FUNC_TOEPLITZ).unwrap_or(0),
        },
        max_wq_type_rq: device.limits.max_qp,
        raw_packet_caps: c::IBV_RAW_PACKET_CAP_CVLAN_STRIPPING | c::IBV_RAW_PACKET_CAP_IP_CSUM,
        ..c::ibv_device_attr_ex::default()
    }
}

fn device_attr_ex(device: &Description) -> c::ibv_device_attr_ex {
    c::ibv_device_attr_ex {
        orig_attr: device_attr(device),
        completion_timestamp_mask: u64::MAX,
        // In kHz: one tick is a nanosecond.
        hca_core_clock: 1_000_000,
        device_cap_flags_ex: u64::from(device_attr(device).device_cap_flags)
            | FLUSH_AND_ATOMIC_WRITE,
        cq_mod_caps: c::ibv_cq_moderation_caps { max_cq_count: u16::MAX, max_cq_period: u16::MAX },
        max_dm_size: device.limits.max_dm_size,
        phys_port_cnt_ex: u32::try_from(device.ports.len()).unwrap_or(u32::MAX),
        ..ethernet_attr(device)
    }
}

/// See `ibv_query_rt_values_ex(3)`.
pub(crate) unsafe extern "C" fn query_rt_values(
    context: *mut c::ibv_context,
    values: *mut c::ibv_values_ex,
) -> c_int {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    let entered = fabric().enter(context.device, Verb::ibv_query_rt_values_ex);
    status(entered.and_then(|()| {
        // SAFETY: the caller gives a live struct, which this call fills.
        let values = unsafe { &mut *values };
        if values.comp_mask & !c::IBV_VALUES_MASK_RAW_CLOCK != 0 {
            return Err(libc::EINVAL);
        }
        let now = Duration::from_nanos(clock::ticks());
        values.raw_clock.tv_sec = now.as_secs().cast_signed();
        values.raw_clock.tv_nsec = now.subsec_nanos().into();
        Ok(())
    }))
}

/// See `ibv_query_port(3)`: the exported symbol, which knows the struct of the first release only.
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut c::ibv_context,
    port: u8,
    attr: *mut c::_compat_ibv_port_attr,
) -> c_int {
    const FIRST_RELEASE: usize = std::mem::offset_of!(c::ibv_port_attr, port_cap_flags2);
    // SAFETY: the contract of the two is the same, with the length of the old struct.
    unsafe { query_port_ex(context, port, attr.cast(), FIRST_RELEASE) }
}

/// See `ibv_query_port(3)`: the entry of the extended context.
pub(crate) unsafe extern "C" fn query_port_ex(
    context: *mut c::ibv_context,
    port: u8,
    attr: *mut c::ibv_port_attr,
    length: usize,
) -> c_int {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    let answer = fabric().described(context, Verb::ibv_query_port).and_then(|device| {
        let port = device.port(port).ok_or(libc::EINVAL)?;
        Ok(port_attr(device, port))
    });
    status(answer.map(|answer| {
        // SAFETY: the caller gives `length` bytes for the answer.
        unsafe { write_prefix(&answer, attr, length) };
    }))
}

fn port_attr(device: &Description, port: &Port) -> c::ibv_port_attr {
    let ethernet = device.link_layer == LinkLayer::Ethernet;
    let link_layer = match device.link_layer {
        LinkLayer::Ethernet => c::IBV_LINK_LAYER_ETHERNET,
        LinkLayer::InfiniBand => c::IBV_LINK_LAYER_INFINIBAND,
        LinkLayer::Unspecified => c::IBV_LINK_LAYER_UNSPECIFIED,
    };
    c::ibv_port_attr {
        state: port.state,
        max_mtu: c::IBV_MTU_4096,
        active_mtu: device.mtu,
        gid_tbl_len: c_int::try_from(port.gids.len()).unwrap_or(c_int::MAX),
        port_cap_flags: c::IBV_PORT_CM_SUP | if ethernet { c::IBV_PORT_IP_BASED_GIDS } else { 0 },
        max_msg_sz: device.efa.as_ref().map_or(device.limits.max_msg_sz, |efa| efa.mtu),
        pkey_tbl_len: u16::try_from(port.partition_keys.len()).unwrap_or(u16::MAX),
        lid: port.lid,
        sm_lid: u16::from(device.link_layer == LinkLayer::InfiniBand),
        max_vl_num: 1,
        // 4 lanes of 25 Gbit/s.
        active_width: 2,
        active_speed: 32,
        // The physical states are LinkUp and Disabled.
        phys_state: if port.state == c::IBV_PORT_ACTIVE { 5 } else { 3 },
        link_layer: u8::try_from(link_layer).unwrap_or(0),
        flags: if ethernet { c::IB_UVERBS_QPF_GRH_REQUIRED.try_into().unwrap_or(0) } else { 0 },
        ..c::ibv_port_attr::default()
    }
}

/// Writes the first `length` bytes of an answer, and zeros after them if the place is longer.
///
/// # Safety
///
/// `length` bytes can be written at `place`.
unsafe fn write_prefix<T>(answer: &T, place: *mut T, length: usize) {
    let known = length.min(size_of::<T>());
    let place: *mut u8 = place.cast();
    // SAFETY: `known` bytes are in `answer`, and the caller has room for `length`.
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(answer).cast::<u8>(), place, known) };
    // SAFETY: the caller has room for `length` bytes, of which `known` are written.
    unsafe { place.wrapping_add(known).write_bytes(0, length - known) };
}

fn gid_entry(device: &Description, port: u8, index: u32) -> Outcome<GidEntry> {
    let port = device.port(port).ok_or(libc::EINVAL)?;
    let index = usize::try_from(index).map_err(|_| libc::EINVAL)?;
    port.gids.get(index).copied().ok_or(libc::EINVAL)
}

/// See `ibv_query_gid(3)`: -1 with `errno` set on failure.
pub(crate) unsafe extern "C" fn ibv_query_gid(
    context: *mut c::ibv_context,
    port: u8,
    index: c_int,
    gid: *mut c::ibv_gid,
) -> c_int {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    let answer = fabric().described(context, Verb::ibv_query_gid).and_then(|device| {
        gid_entry(device, port, u32::try_from(index).map_err(|_| libc::EINVAL)?)
    });
    minus_one(answer.map(|entry| {
        // SAFETY: the caller gives a place for the answer.
        unsafe { gid.write(c::ibv_gid { raw: entry.gid }) };
    }))
}

/// See `ibv_query_gid_ex(3)`: the errno as a value on failure.
pub(crate) unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut c::ibv_context,
    port: u32,
    index: u32,
    entry: *mut c::ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    if flags != 0 {
        return libc::EOPNOTSUPP;
    }
    let answer = fabric().described(context, Verb::ibv_query_gid_ex).and_then(|device| {
        let number = u8::try_from(port).map_err(|_| libc::EINVAL)?;
        let entry = gid_entry(device, number, index)?;
        // An empty entry is no entry.
        if entry.gid == [0; 16] { Err(libc::ENODATA) } else { Ok(entry_of(entry, port, index)) }
    });
    status(answer.map(|answer| {
        // SAFETY: the caller gives `size` bytes for the answer.
        unsafe { write_prefix(&answer, entry, size) };
    }))
}

fn entry_of(entry: GidEntry, port_num: u32, gid_index: u32) -> c::ibv_gid_entry {
    c::ibv_gid_entry {
        gid: c::ibv_gid { raw: entry.gid },
        gid_index,
        port_num,
        gid_type: entry.kind,
        // The loopback interface is the only one that a process surely has.
        ndev_ifindex: if entry.kind == c::IBV_GID_TYPE_IB { 0 } else { 1 },
    }
}

/// See `ibv_query_gid_table(3)`: how many entries were written, or the negative errno.
pub(crate) unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut c::ibv_context,
    entries: *mut c::ibv_gid_entry,
    room: usize,
    flags: u32,
    size: usize,
) -> isize {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    let table = if flags == 0 { gid_table(context) } else { Err(libc::EOPNOTSUPP) };
    match table {
        Err(code) => isize::try_from(-code).unwrap_or(-1),
        Ok(table) if table.len() > room => isize::try_from(-libc::EINVAL).unwrap_or(-1),
        Ok(table) => {
            for (index, entry) in table.iter().enumerate() {
                let place = entries.wrapping_byte_add(index * size);
                // SAFETY: the caller gives `room` entries of `size` bytes each, and there are fewer.
                unsafe { write_prefix(entry, place, size) };
            }
            isize::try_from(table.len()).unwrap_or(isize::MAX)
        }
    }
}

fn gid_table(context: ContextRef) -> Outcome<Vec<c::ibv_gid_entry>> {
    let mut fabric = fabric();
    let device = fabric.described(context, Verb::ibv_query_gid_table)?;
    let entries = (1u32..).zip(&device.ports).flat_map(|(number, port)| {
        (0u32..)
            .zip(&port.gids)
            .filter(|(_, entry)| entry.gid != [0; 16])
            .map(move |(index, &entry)| entry_of(entry, number, index))
    });
    Ok(entries.collect())
}

/// See `ibv_query_pkey(3)`: in network order; -1 on failure.
pub(crate) unsafe extern "C" fn ibv_query_pkey(
    context: *mut c::ibv_context,
    port: u8,
    index: c_int,
    key: *mut c::__be16,
) -> c_int {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    let answer = fabric().described(context, Verb::ibv_query_pkey).and_then(|device| {
        let port = device.port(port).ok_or(libc::EINVAL)?;
        let index = usize::try_from(index).map_err(|_| libc::EINVAL)?;
        port.partition_keys.get(index).copied().ok_or(libc::EINVAL)
    });
    minus_one(answer.map(|answer| {
        // SAFETY: the caller gives a place for the answer.
        unsafe { key.write(answer.to_be()) };
    }))
}

/// See `ibv_get_pkey_index(3)`: the index of a key given in network order; -1 if there is none.
pub(crate) unsafe extern "C" fn ibv_get_pkey_index(
    context: *mut c::ibv_context,
    port: u8,
    key: c::__be16,
) -> c_int {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    let found = fabric().described(context, Verb::ibv_get_pkey_index).and_then(|device| {
        let port = device.port(port).ok_or(libc::EINVAL)?;
        let wanted = u16::from_be(key);
        port.partition_keys.iter().position(|&each| each == wanted).ok_or(libc::ENOENT)
    });
    match found {
        Ok(index) => c_int::try_from(index).unwrap_or(-1),
        Err(code) => {
            set_errno(code);
            -1
        }
    }
}
