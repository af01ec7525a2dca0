//! Names of statuses, events and kinds.
#![expect(unsafe_code, reason = "verbs, called from C")]

use std::ffi::{CStr, c_char};

use rdma_sys as c;

/// Makes a function that names the values of one C enum.
macro_rules! names {
    ($($function:ident($type:ty) { $($value:ident = $text:literal,)* })*) => {
        $(
            /// See the manual page of this name.
            pub(crate) unsafe extern "C" fn $function(value: $type) -> *const c_char {
                let name: &CStr = match value {
                    $(c::$value => $text,)*
                    _ => c"unknown",
                };
                name.as_ptr()
            }
        )*
    };
}

names! {
    ibv_wc_status_str(c::ibv_wc_status) {
        IBV_WC_SUCCESS = c"success",
        IBV_WC_LOC_LEN_ERR = c"local length error",
        IBV_WC_LOC_QP_OP_ERR = c"local QP operation error",
        IBV_WC_LOC_EEC_OP_ERR = c"local EE context operation error",
        IBV_WC_LOC_PROT_ERR = c"local protection error",
        IBV_WC_WR_FLUSH_ERR = c"Work Request Flushed Error",
        IBV_WC_MW_BIND_ERR = c"memory window bind error",
        IBV_WC_BAD_RESP_ERR = c"bad response error",
        IBV_WC_LOC_ACCESS_ERR = c"local access error",
        IBV_WC_REM_INV_REQ_ERR = c"remote invalid request error",
        IBV_WC_REM_ACCESS_ERR = c"remote access error",
        IBV_WC_REM_OP_ERR = c"remote operation error",
        IBV_WC_RETRY_EXC_ERR = c"transport retry counter exceeded",
        IBV_WC_RNR_RETRY_EXC_ERR = c"RNR retry counter exceeded",
        IBV_WC_REM_ABORT_ERR = c"remote aborted error",
        IBV_WC_FATAL_ERR = c"fatal error",
        IBV_WC_RESP_TIMEOUT_ERR = c"response timeout error",
        IBV_WC_GENERAL_ERR = c"general error",
        IBV_WC_TM_ERR = c"tag matching error",
    }
    ibv_event_type_str(c::ibv_event_type) {
        IBV_EVENT_CQ_ERR = c"CQ error",
        IBV_EVENT_QP_FATAL = c"local work queue catastrophic error",
        IBV_EVENT_QP_REQ_ERR = c"invalid request local work queue error",
        IBV_EVENT_QP_ACCESS_ERR = c"local access violation work queue error",
        IBV_EVENT_COMM_EST = c"communication established",
        IBV_EVENT_SQ_DRAINED = c"send queue drained",
        IBV_EVENT_PATH_MIG = c"path migrated",
        IBV_EVENT_PATH_MIG_ERR = c"path migration request error",
        IBV_EVENT_DEVICE_FATAL = c"local catastrophic error",
        IBV_EVENT_PORT_ACTIVE = c"port active",
        IBV_EVENT_PORT_ERR = c"port error",
        IBV_EVENT_LID_CHANGE = c"LID change",
        IBV_EVENT_PKEY_CHANGE = c"P_Key change",
        IBV_EVENT_SM_CHANGE = c"SM change",
        IBV_EVENT_SRQ_ERR = c"SRQ catastrophic error",
        IBV_EVENT_SRQ_LIMIT_REACHED = c"SRQ limit reached",
        IBV_EVENT_QP_LAST_WQE_REACHED = c"last WQE reached",
        IBV_EVENT_CLIENT_REREGISTER = c"client reregistration",
        IBV_EVENT_GID_CHANGE = c"GID table change",
        IBV_EVENT_WQ_FATAL = c"WQ fatal",
        IBV_EVENT_DEVICE_SPEED_CHANGE = c"device speed change",
    }
    ibv_node_type_str(c::ibv_node_type) {
        IBV_NODE_CA = c"InfiniBand channel adapter",
        IBV_NODE_SWITCH = c"InfiniBand switch",
        IBV_NODE_ROUTER = c"InfiniBand router",
        IBV_NODE_RNIC = c"iWARP NIC",
        IBV_NODE_USNIC = c"usNIC",
        IBV_NODE_USNIC_UDP = c"usNIC UDP",
        IBV_NODE_UNSPECIFIED = c"unspecified",
    }
    ibv_port_state_str(c::ibv_port_state) {
        IBV_PORT_NOP = c"no state change (NOP)",
        IBV_PORT_DOWN = c"down",
        IBV_PORT_INIT = c"init",
        IBV_PORT_ARMED = c"armed",
        IBV_PORT_ACTIVE = c"active",
        IBV_PORT_ACTIVE_DEFER = c"active defer",
    }
    ibv_wr_opcode_str(c::ibv_wr_opcode) {
        IBV_WR_RDMA_WRITE = c"rdma write",
        IBV_WR_RDMA_WRITE_WITH_IMM = c"rdma write with immediate",
        IBV_WR_SEND = c"send",
        IBV_WR_SEND_WITH_IMM = c"send with immediate",
        IBV_WR_RDMA_READ = c"rdma read",
        IBV_WR_ATOMIC_CMP_AND_SWP = c"atomic compare and swap",
        IBV_WR_ATOMIC_FETCH_AND_ADD = c"atomic fetch and add",
        IBV_WR_LOCAL_INV = c"local invalidate",
        IBV_WR_BIND_MW = c"bind memory window",
        IBV_WR_SEND_WITH_INV = c"send with invalidate",
        IBV_WR_TSO = c"tso",
        IBV_WR_FLUSH = c"flush",
        IBV_WR_ATOMIC_WRITE = c"atomic write",
    }
}

/// See `ibv_fork_init(3)`: the device reads memory where the process has it, so a fork harms nothing.
pub(crate) unsafe extern "C" fn ibv_fork_init() -> std::ffi::c_int {
    0
}

/// See `ibv_is_fork_initialized(3)`.
pub(crate) unsafe extern "C" fn ibv_is_fork_initialized() -> c::ibv_fork_status {
    c::IBV_FORK_UNNEEDED
}
