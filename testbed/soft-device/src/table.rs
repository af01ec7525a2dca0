//! The table of symbols.
#![expect(unsafe_code, reason = "vouches for the functions of this crate")]

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    sync::LazyLock,
};

use rdma_sys as c;

use crate::{
    address, async_event, channel, cm, completion_counter, completion_queue, context,
    device_memory, domain, efa, ethernet, import, pair, query, rates, region, shared_receive,
    special_region, strings,
};

/// The exported C functions, with the module that has each.
///
/// One list for two uses: the table of [`library`], and the symbols of the drop-in library.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_symbol {
    ($use:ident) => {
        $use! {
            context::ibv_get_device_list(count: *mut c_int) -> *mut *mut c::ibv_device;
            context::ibv_free_device_list(list: *mut *mut c::ibv_device) -> ();
            context::ibv_get_device_name(device: *mut c::ibv_device) -> *const c_char;
            context::ibv_get_device_guid(device: *mut c::ibv_device) -> c::__be64;
            context::ibv_get_device_index(device: *mut c::ibv_device) -> c_int;
            context::ibv_open_device(device: *mut c::ibv_device) -> *mut c::ibv_context;
            context::ibv_close_device(context: *mut c::ibv_context) -> c_int;
            async_event::ibv_get_async_event(context: *mut c::ibv_context, event: *mut c::ibv_async_event) -> c_int;
            async_event::ibv_ack_async_event(event: *mut c::ibv_async_event) -> ();
            query::ibv_query_device(context: *mut c::ibv_context, attr: *mut c::ibv_device_attr) -> c_int;
            query::ibv_query_port(context: *mut c::ibv_context, port: u8, attr: *mut c::_compat_ibv_port_attr) -> c_int;
            query::ibv_query_gid(context: *mut c::ibv_context, port: u8, index: c_int, gid: *mut c::ibv_gid) -> c_int;
            query::_ibv_query_gid_ex(context: *mut c::ibv_context, port: u32, index: u32, entry: *mut c::ibv_gid_entry, flags: u32, size: usize) -> c_int;
            query::_ibv_query_gid_table(context: *mut c::ibv_context, entries: *mut c::ibv_gid_entry, room: usize, flags: u32, size: usize) -> isize;
            query::ibv_query_pkey(context: *mut c::ibv_context, port: u8, index: c_int, key: *mut c::__be16) -> c_int;
            query::ibv_get_pkey_index(context: *mut c::ibv_context, port: u8, key: c::__be16) -> c_int;
            domain::ibv_alloc_pd(context: *mut c::ibv_context) -> *mut c::ibv_pd;
            domain::ibv_dealloc_pd(pd: *mut c::ibv_pd) -> c_int;
            region::ibv_reg_mr(pd: *mut c::ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut c::ibv_mr;
            region::ibv_reg_mr_iova(pd: *mut c::ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_int) -> *mut c::ibv_mr;
            region::ibv_reg_mr_iova2(pd: *mut c::ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint) -> *mut c::ibv_mr;
            region::ibv_reg_dmabuf_mr(pd: *mut c::ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int) -> *mut c::ibv_mr;
            region::ibv_dereg_mr(mr: *mut c::ibv_mr) -> c_int;
            channel::ibv_create_comp_channel(context: *mut c::ibv_context) -> *mut c::ibv_comp_channel;
            channel::ibv_destroy_comp_channel(channel: *mut c::ibv_comp_channel) -> c_int;
            channel::ibv_get_cq_event(channel: *mut c::ibv_comp_channel, cq: *mut *mut c::ibv_cq, cq_context: *mut *mut c_void) -> c_int;
            channel::ibv_ack_cq_events(cq: *mut c::ibv_cq, count: c_uint) -> ();
            completion_queue::ibv_create_cq(context: *mut c::ibv_context, capacity: c_int, cq_context: *mut c_void, channel: *mut c::ibv_comp_channel, vector: c_int) -> *mut c::ibv_cq;
            completion_queue::ibv_destroy_cq(cq: *mut c::ibv_cq) -> c_int;
            pair::ibv_create_qp(pd: *mut c::ibv_pd, attr: *mut c::ibv_qp_init_attr) -> *mut c::ibv_qp;
            pair::ibv_qp_to_qp_ex(qp: *mut c::ibv_qp) -> *mut c::ibv_qp_ex;
            pair::ibv_modify_qp(qp: *mut c::ibv_qp, attr: *mut c::ibv_qp_attr, mask: c_int) -> c_int;
            pair::ibv_query_qp(qp: *mut c::ibv_qp, attr: *mut c::ibv_qp_attr, mask: c_int, init: *mut c::ibv_qp_init_attr) -> c_int;
            pair::ibv_destroy_qp(qp: *mut c::ibv_qp) -> c_int;
            pair::ibv_attach_mcast(qp: *mut c::ibv_qp, gid: *const c::ibv_gid, lid: u16) -> c_int;
            pair::ibv_detach_mcast(qp: *mut c::ibv_qp, gid: *const c::ibv_gid, lid: u16) -> c_int;
            pair::ibv_set_ece(qp: *mut c::ibv_qp, ece: *mut c::ibv_ece) -> c_int;
            pair::ibv_query_ece(qp: *mut c::ibv_qp, ece: *mut c::ibv_ece) -> c_int;
            pair::ibv_query_qp_data_in_order(qp: *mut c::ibv_qp, operation: c::ibv_wr_opcode, flags: u32) -> c_int;
            address::ibv_create_ah(pd: *mut c::ibv_pd, attr: *mut c::ibv_ah_attr) -> *mut c::ibv_ah;
            address::ibv_create_ah_from_wc(pd: *mut c::ibv_pd, wc: *mut c::ibv_wc, grh: *mut c::ibv_grh, port: u8) -> *mut c::ibv_ah;
            address::ibv_init_ah_from_wc(context: *mut c::ibv_context, port: u8, wc: *mut c::ibv_wc, grh: *mut c::ibv_grh, attr: *mut c::ibv_ah_attr) -> c_int;
            address::ibv_destroy_ah(ah: *mut c::ibv_ah) -> c_int;
            ethernet::ibv_resolve_eth_l2_from_gid(context: *mut c::ibv_context, attr: *mut c::ibv_ah_attr, mac: *mut u8, vlan: *mut u16) -> c_int;
            shared_receive::ibv_create_srq(pd: *mut c::ibv_pd, init: *mut c::ibv_srq_init_attr) -> *mut c::ibv_srq;
            shared_receive::ibv_modify_srq(srq: *mut c::ibv_srq, attr: *mut c::ibv_srq_attr, mask: c_int) -> c_int;
            shared_receive::ibv_query_srq(srq: *mut c::ibv_srq, attr: *mut c::ibv_srq_attr) -> c_int;
            shared_receive::ibv_destroy_srq(srq: *mut c::ibv_srq) -> c_int;
            special_region::ibv_reg_mr_ex(pd: *mut c::ibv_pd, init: *mut c::ibv_mr_init_attr) -> *mut c::ibv_mr;
            special_region::ibv_rereg_mr(mr: *mut c::ibv_mr, flags: c_int, pd: *mut c::ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> c_int;
            device_memory::ibv_dm_export_dmabuf_fd(dm: *mut c::ibv_dm) -> c_int;
            import::ibv_import_device(fd: c_int) -> *mut c::ibv_context;
            import::ibv_import_pd(context: *mut c::ibv_context, handle: u32) -> *mut c::ibv_pd;
            import::ibv_unimport_pd(pd: *mut c::ibv_pd) -> ();
            import::ibv_import_mr(pd: *mut c::ibv_pd, handle: u32) -> *mut c::ibv_mr;
            import::ibv_unimport_mr(mr: *mut c::ibv_mr) -> ();
            import::ibv_import_dm(context: *mut c::ibv_context, handle: u32) -> *mut c::ibv_dm;
            import::ibv_unimport_dm(dm: *mut c::ibv_dm) -> ();
            rates::ibv_query_port_speed(context: *mut c::ibv_context, port: u32, speed: *mut u64) -> c_int;
            rates::ibv_rate_to_mbps(rate: c::ibv_rate) -> c_int;
            rates::ibv_rate_to_mult(rate: c::ibv_rate) -> c_int;
            completion_counter::_ibv_query_comp_cntr_caps(context: *mut c::ibv_context, caps: *mut c::ibv_comp_cntr_caps, size: usize) -> c_int;
            completion_counter::ibv_create_comp_cntr(context: *mut c::ibv_context, attr: *mut c::ibv_comp_cntr_init_attr) -> *mut c::ibv_comp_cntr;
            completion_counter::ibv_destroy_comp_cntr(counter: *mut c::ibv_comp_cntr) -> c_int;
            completion_counter::ibv_set_comp_cntr(counter: *mut c::ibv_comp_cntr, value: u64) -> c_int;
            completion_counter::ibv_set_err_comp_cntr(counter: *mut c::ibv_comp_cntr, value: u64) -> c_int;
            completion_counter::ibv_inc_comp_cntr(counter: *mut c::ibv_comp_cntr, amount: u64) -> c_int;
            completion_counter::ibv_inc_err_comp_cntr(counter: *mut c::ibv_comp_cntr, amount: u64) -> c_int;
            completion_counter::ibv_read_comp_cntr(counter: *mut c::ibv_comp_cntr, value: *mut u64) -> c_int;
            completion_counter::ibv_read_err_comp_cntr(counter: *mut c::ibv_comp_cntr, value: *mut u64) -> c_int;
            completion_counter::ibv_qp_attach_comp_cntr(qp: *mut c::ibv_qp, counter: *mut c::ibv_comp_cntr, attr: *mut c::ibv_qp_attach_comp_cntr_attr) -> c_int;
            completion_queue::ibv_resize_cq(cq: *mut c::ibv_cq, capacity: c_int) -> c_int;
            strings::ibv_wc_status_str(status: c::ibv_wc_status) -> *const c_char;
            strings::ibv_event_type_str(event: c::ibv_event_type) -> *const c_char;
            strings::ibv_node_type_str(kind: c::ibv_node_type) -> *const c_char;
            strings::ibv_port_state_str(state: c::ibv_port_state) -> *const c_char;
            strings::ibv_wr_opcode_str(opcode: c::ibv_wr_opcode) -> *const c_char;
            strings::ibv_fork_init() -> c_int;
            strings::ibv_is_fork_initialized() -> c::ibv_fork_status;
        }
    };
}

/// The functions of libefa, in the same way. Those that show the queues of the hardware have nothing to show.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_efa_symbol {
    ($callback:ident) => {
        $callback! {
            efa::efadv_query_device(context: *mut c::ibv_context, attr: *mut c::efadv_device_attr, length: u32) -> c_int;
            efa::efadv_query_ah(ah: *mut c::ibv_ah, attr: *mut c::efadv_ah_attr, length: u32) -> c_int;
            efa::efadv_query_mr(mr: *mut c::ibv_mr, attr: *mut c::efadv_mr_attr, length: u32) -> c_int;
            efa::efadv_get_max_sq_depth(context: *mut c::ibv_context, attr: *mut c::efadv_sq_depth_attr, length: u32) -> c_int;
            efa::efadv_get_max_rq_depth(context: *mut c::ibv_context, attr: *mut c::efadv_rq_depth_attr, length: u32) -> c_int;
            efa::efadv_create_qp_ex(context: *mut c::ibv_context, attr: *mut c::ibv_qp_init_attr_ex, efa: *mut c::efadv_qp_init_attr, length: u32) -> *mut c::ibv_qp;
            efa::efadv_create_driver_qp(pd: *mut c::ibv_pd, attr: *mut c::ibv_qp_init_attr, driver_qp_type: u32) -> *mut c::ibv_qp;
            pair::efadv_qp_from_ibv_qp_ex(qp: *mut c::ibv_qp_ex) -> *mut c::efadv_qp;
            completion_queue::efadv_create_cq(context: *mut c::ibv_context, attr: *mut c::ibv_cq_init_attr_ex, efa: *mut c::efadv_cq_init_attr, length: u32) -> *mut c::ibv_cq_ex;
            completion_queue::efadv_cq_from_ibv_cq_ex(cq: *mut c::ibv_cq_ex) -> *mut c::efadv_cq;
        }
    };
}

/// Makes a table out of a list.
macro_rules! table_of {
    ($table:ident $($module:ident::$name:ident($($parameter:ident: $type:ty),*) -> $result:ty;)*) => {{
        // The types in the list are those of the functions, which the drop-in relies on.
        $(const _: unsafe extern "C" fn($($type),*) -> $result = $module::$name;)*
        c::$table { $($name: Some($module::$name),)* ..c::$table::EMPTY }
    }};
}

macro_rules! table {
    ($($list:tt)*) => { table_of! { Verbs $($list)* } };
}

macro_rules! efa_table {
    ($($list:tt)*) => { table_of! { Efa $($list)* } };
}

/// The library whose devices are the soft devices of this process.
///
/// It lists each [`SoftDevice`](crate::SoftDevice) that has not been dropped.
#[must_use]
pub fn library() -> &'static c::Library {
    static LIBRARY: LazyLock<c::Library> = LazyLock::new(|| {
        let verbs = for_each_symbol!(table);
        // SAFETY: each function was written after the manual page of its name, keeps working for as
        // long as the process runs, and returns the structs of rdma_sys.
        let library = unsafe { c::Library::new("soft-device", verbs) };
        // SAFETY: as above.
        let library = unsafe { library.with_efa(for_each_efa_symbol!(efa_table)) };
        // SAFETY: as above.
        unsafe { library.with_connection_manager(connection_manager_table()) }
    });
    &LIBRARY
}

/// The functions of librdmacm.
fn connection_manager_table() -> c::ConnectionManager {
    macro_rules! table {
        ($($name:ident)*) => { c::ConnectionManager { $($name: Some(cm::$name),)* ..c::ConnectionManager::EMPTY } };
    }
    table! {
        rdma_create_event_channel rdma_destroy_event_channel rdma_get_cm_event rdma_ack_cm_event
        rdma_event_str rdma_create_id rdma_destroy_id rdma_bind_addr rdma_resolve_addr
        rdma_resolve_route rdma_create_qp rdma_create_qp_ex rdma_destroy_qp rdma_init_qp_attr
        rdma_listen rdma_connect rdma_accept rdma_reject rdma_reject_ece rdma_establish rdma_notify
        rdma_disconnect rdma_get_request rdma_join_multicast rdma_join_multicast_ex
        rdma_leave_multicast rdma_migrate_id rdma_set_option rdma_get_src_port rdma_get_dst_port
        rdma_set_local_ece rdma_get_remote_ece rdma_get_devices rdma_free_devices rdma_getaddrinfo
        rdma_freeaddrinfo rdma_create_ep rdma_destroy_ep
    }
}
