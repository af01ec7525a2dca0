//! The bindings against the C compiler: size, offset and value of everything the safe crates rely on.
//!
//! `RDMA4RS_HEADERS` names the include folders of one or more rdma-core releases, oldest first, with colons
//! between them; else the headers installed on the machine are used. A field or constant that a release does
//! not have yet is passed over there, and must be in the last one.

use std::{
    collections::BTreeMap,
    env, fs,
    mem::offset_of,
    path::{Path, PathBuf},
    process::Command,
};

use rdma_sys::*;

/// What the bindings say: a name, a C expression for it, the struct it is about and the word that must
/// stand in there for the expression to make sense, and our number.
struct Fact {
    name: String,
    expression: String,
    within: Option<&'static str>,
    word: &'static str,
    ours: i128,
    /// Whether the number grows from release to release: an older one may be smaller.
    grows: bool,
}

macro_rules! structs {
    ($facts:ident; $($kind:literal $name:ident { $($field:ident),* $(,)? })*) => {
        $(
            $facts.push(Fact {
                name: concat!("sizeof ", stringify!($name)).to_owned(),
                expression: concat!("sizeof(", $kind, " ", stringify!($name), ")").to_owned(),
                within: None,
                word: stringify!($name),
                ours: size_of::<$name>() as i128,
                grows: true,
            });
            $(
                $facts.push(Fact {
                    name: concat!(stringify!($name), ".", stringify!($field)).to_owned(),
                    expression: concat!(
                        "offsetof(", $kind, " ", stringify!($name), ", ", stringify!($field), ")"
                    ).to_owned(),
                    within: Some(concat!($kind, " ", stringify!($name))),
                    word: stringify!($field),
                    ours: offset_of!($name, $field) as i128,
                    grows: false,
                });
            )*
        )*
    };
}

/// Entries of `verbs_context`, which grows at its front: their distance to the end is what counts.
macro_rules! from_the_end {
    ($facts:ident; $($field:ident)*) => {
        $(
            $facts.push(Fact {
                name: concat!("end of verbs_context to ", stringify!($field)).to_owned(),
                expression: concat!(
                    "sizeof(struct verbs_context) - offsetof(struct verbs_context, ",
                    stringify!($field), ")"
                ).to_owned(),
                within: Some("struct verbs_context"),
                word: stringify!($field),
                ours: (size_of::<verbs_context>() - offset_of!(verbs_context, $field)) as i128,
                grows: false,
            });
        )*
    };
}

macro_rules! values {
    ($facts:ident; $($name:ident)*) => {
        $(
            $facts.push(Fact {
                name: stringify!($name).to_owned(),
                expression: concat!("(long long)", stringify!($name)).to_owned(),
                within: None,
                word: stringify!($name),
                ours: i128::from($name),
                grows: false,
            });
        )*
    };
}

fn facts() -> Vec<Fact> {
    let mut facts = Vec::new();
    structs! { facts;
        "union" ibv_gid { raw }
        "struct" ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        "struct" ibv_device { node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        "struct" ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, abi_compat }
        "struct" ibv_context_ops { alloc_mw, bind_mw, dealloc_mw, poll_cq, req_notify_cq,
            post_srq_recv, post_send, post_recv }
        "struct" ibv_pd { context, handle }
        "struct" ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        "struct" ibv_mw { context, pd, rkey, handle, type_ }
        "struct" ibv_ah { context, pd, handle }
        "struct" ibv_cq { context, channel, cq_context, handle, cqe, comp_events_completed }
        "struct" ibv_cq_ex { context, channel, cqe, status, wr_id, start_poll, next_poll, end_poll,
            read_opcode, read_vendor_err, read_byte_len, read_imm_data, read_qp_num, read_src_qp,
            read_wc_flags, read_slid, read_sl, read_dlid_path_bits, read_completion_ts, read_cvlan,
            read_flow_tag, read_tm_info, read_completion_wallclock_ns }
        "struct" ibv_srq { context, srq_context, pd, handle }
        "struct" ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type }
        "struct" ibv_qp_ex { qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp,
            wr_atomic_fetch_add, wr_bind_mw, wr_local_inv, wr_rdma_read, wr_rdma_write,
            wr_rdma_write_imm, wr_send, wr_send_imm, wr_send_inv, wr_send_tso, wr_set_ud_addr,
            wr_set_xrc_srqn, wr_set_inline_data, wr_set_inline_data_list, wr_set_sge,
            wr_set_sge_list, wr_start, wr_complete, wr_abort, wr_atomic_write, wr_flush }
        "struct" ibv_comp_channel { context, fd, refcnt }
        "struct" ibv_sge { addr, length, lkey }
        "struct" ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, wr, qp_type }
        "struct" ibv_recv_wr { wr_id, next, sg_list, num_sge }
        "struct" ibv_wc { wr_id, status, opcode, vendor_err, byte_len, qp_num, src_qp, wc_flags,
            pkey_index, slid, sl, dlid_path_bits }
        "struct" ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        "struct" ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        "struct" ibv_qp_init_attr_ex { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all,
            comp_mask, pd, xrcd, create_flags, max_tso_header, rwq_ind_tbl, rx_hash_conf,
            source_qpn, send_ops_flags }
        "struct" ibv_qp_attr { qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn,
            sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index,
            alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic,
            min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout,
            rate_limit }
        "struct" ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        "struct" ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        "struct" ibv_grh { version_tclass_flow, paylen, next_hdr, hop_limit, sgid, dgid }
        "struct" ibv_cq_init_attr_ex { cqe, cq_context, channel, comp_vector, wc_flags, comp_mask,
            flags, parent_domain }
        "struct" ibv_srq_init_attr { srq_context, attr }
        "struct" ibv_srq_init_attr_ex { srq_context, attr, comp_mask, srq_type, pd, xrcd, cq }
        "struct" ibv_device_attr { fw_ver, node_guid, max_mr_size, page_size_cap, vendor_id, max_qp,
            max_qp_wr, max_sge, max_cqe, max_qp_rd_atom, max_qp_init_rd_atom, atomic_cap, max_mw,
            max_srq, max_pkeys, phys_port_cnt }
        "struct" ibv_device_attr_ex { orig_attr, comp_mask, completion_timestamp_mask,
            hca_core_clock, device_cap_flags_ex, tso_caps, rss_caps, max_wq_type_rq,
            raw_packet_caps, max_dm_size, phys_port_cnt_ex }
        "struct" ibv_port_attr { state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags,
            max_msg_sz, pkey_tbl_len, lid, sm_lid, active_width, active_speed, phys_state,
            link_layer, port_cap_flags2, active_speed_ex }
        "struct" ibv_async_event { element, event_type }
        "struct" ibv_alloc_dm_attr { length, log_align_req, comp_mask }
        "struct" ibv_dm { context, memcpy_to_dm, memcpy_from_dm, comp_mask, handle }
        "struct" ibv_mw_bind_info { mr, addr, length, mw_access_flags }
        "struct" ibv_parent_domain_init_attr { pd, td, comp_mask }
        "struct" ibv_xrcd_init_attr { comp_mask, fd, oflags }
        "struct" ibv_moderate_cq { cq_count, cq_period }
        "struct" ibv_values_ex { comp_mask, raw_clock }
        "struct" ibv_flow_attr { comp_mask, type_, size, priority, num_of_specs, port, flags }
        "struct" ibv_flow_eth_filter { dst_mac, src_mac, ether_type, vlan_tag }
        "struct" ibv_flow_spec_eth { type_, size, val, mask }
        "struct" ibv_flow_ipv4_filter { src_ip, dst_ip }
        "struct" ibv_flow_spec_ipv4 { type_, size, val, mask }
        "struct" ibv_flow_ipv4_ext_filter { src_ip, dst_ip, proto, tos, ttl, flags }
        "struct" ibv_flow_spec_ipv4_ext { type_, size, val, mask }
        "struct" ibv_flow_ipv6_filter { src_ip, dst_ip, flow_label, next_hdr, traffic_class,
            hop_limit }
        "struct" ibv_flow_spec_ipv6 { type_, size, val, mask }
        "struct" ibv_flow_tcp_udp_filter { dst_port, src_port }
        "struct" ibv_flow_spec_tcp_udp { type_, size, val, mask }
        "struct" ibv_flow_tunnel_filter { tunnel_id }
        "struct" ibv_flow_spec_tunnel { type_, size, val, mask }
        "struct" ibv_flow_spec_action_tag { type_, size, tag_id }
        "struct" ibv_flow_spec_action_drop { type_, size }
        "struct" ibv_flow_spec_counter_action { type_, size, counters }
        "struct" ibv_flow { comp_mask, context, handle }
        "struct" ibv_counters { context }
        "struct" ibv_counters_init_attr { comp_mask }
        "struct" ibv_counter_attach_attr { counter_desc, index, comp_mask }
        "struct" ibv_wq { context, wq_context, pd, cq, wq_num, handle, state, wq_type, post_recv }
        "struct" ibv_wq_init_attr { wq_context, wq_type, max_wr, max_sge, pd, cq, comp_mask,
            create_flags }
        "struct" ibv_wq_attr { attr_mask, wq_state, curr_wq_state, flags, flags_mask }
        "struct" ibv_rwq_ind_table { context, ind_tbl_handle, ind_tbl_num, comp_mask }
        "struct" ibv_rwq_ind_table_init_attr { log_ind_tbl_size, ind_tbl, comp_mask }
        "struct" ibv_rx_hash_conf { rx_hash_function, rx_hash_key_len, rx_hash_key,
            rx_hash_fields_mask }
        "struct" ibv_rss_caps { supported_qpts, max_rwq_indirection_tables,
            max_rwq_indirection_table_size, rx_hash_fields_mask, rx_hash_function }
        "struct" ibv_ece { vendor_id, options, comp_mask }
        "struct" efadv_device_attr { comp_mask, max_sq_wr, max_rq_wr, max_sq_sge, max_rq_sge,
            inline_buf_size, device_caps, max_rdma_size }
        "struct" efadv_ah_attr { comp_mask, ahn }
        "struct" efadv_qp_init_attr { comp_mask, driver_qp_type, flags, sl }
        "struct" efadv_cq_init_attr { comp_mask, wc_flags, flags, ext_mem_dmabuf }
        "struct" efadv_cq { comp_mask, wc_read_sgid, wc_is_unsolicited }
        "struct" efadv_mr_attr { comp_mask, ic_id_validity, recv_ic_id, rdma_read_ic_id,
            rdma_recv_ic_id }
        "struct" rdma_cm_id { verbs, channel, context, qp, route, ps, port_num, event, send_cq,
            recv_cq, srq, pd, qp_type }
        "struct" rdma_cm_event { id, listen_id, event, status, param }
        "struct" rdma_conn_param { private_data, private_data_len, responder_resources,
            initiator_depth, flow_control, retry_count, rnr_retry_count, srq, qp_num }
        "struct" rdma_ud_param { private_data, private_data_len, ah_attr, qp_num, qkey }
        "struct" rdma_event_channel { fd }
    }
    from_the_end! { facts;
        query_port advise_mr alloc_null_mr read_counters attach_counters_point_flow create_counters
        destroy_counters reg_dm_mr alloc_dm free_dm modify_qp_rate_limit alloc_parent_domain
        dealloc_td alloc_td modify_cq post_srq_ops destroy_rwq_ind_table create_rwq_ind_table
        destroy_wq modify_wq create_wq query_rt_values create_cq_ex query_device_ex
        ibv_destroy_flow ibv_create_flow open_qp create_qp_ex get_srq_num create_srq_ex open_xrcd
        close_xrcd sz context
    }
    values! { facts;
        IBV_ACCESS_LOCAL_WRITE IBV_ACCESS_REMOTE_WRITE IBV_ACCESS_REMOTE_READ
        IBV_ACCESS_REMOTE_ATOMIC IBV_ACCESS_MW_BIND IBV_ACCESS_ZERO_BASED IBV_ACCESS_ON_DEMAND
        IBV_ACCESS_HUGETLB IBV_ACCESS_FLUSH_GLOBAL IBV_ACCESS_FLUSH_PERSISTENT
        IBV_ACCESS_RELAXED_ORDERING IBV_QPT_RC IBV_QPT_UC IBV_QPT_UD IBV_QPT_XRC_SEND
        IBV_QPT_XRC_RECV IBV_QPT_DRIVER IBV_QPS_RESET IBV_QPS_INIT IBV_QPS_RTR IBV_QPS_RTS
        IBV_QPS_SQD IBV_QPS_SQE IBV_QPS_ERR IBV_QP_STATE IBV_QP_ACCESS_FLAGS IBV_QP_PKEY_INDEX
        IBV_QP_PORT IBV_QP_QKEY IBV_QP_AV IBV_QP_PATH_MTU IBV_QP_TIMEOUT IBV_QP_RETRY_CNT
        IBV_QP_RNR_RETRY IBV_QP_RQ_PSN IBV_QP_MAX_QP_RD_ATOMIC IBV_QP_MIN_RNR_TIMER IBV_QP_SQ_PSN
        IBV_QP_MAX_DEST_RD_ATOMIC IBV_QP_DEST_QPN IBV_WR_RDMA_WRITE IBV_WR_RDMA_WRITE_WITH_IMM
        IBV_WR_SEND IBV_WR_SEND_WITH_IMM IBV_WR_RDMA_READ IBV_WR_ATOMIC_CMP_AND_SWP
        IBV_WR_ATOMIC_FETCH_AND_ADD IBV_WR_LOCAL_INV IBV_WR_BIND_MW IBV_WR_SEND_WITH_INV
        IBV_WR_FLUSH IBV_WR_ATOMIC_WRITE IBV_SEND_FENCE IBV_SEND_SIGNALED IBV_SEND_SOLICITED
        IBV_SEND_INLINE IBV_QP_EX_WITH_RDMA_WRITE IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        IBV_QP_EX_WITH_SEND IBV_QP_EX_WITH_SEND_WITH_IMM IBV_QP_EX_WITH_RDMA_READ
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD IBV_WC_SUCCESS
        IBV_WC_LOC_LEN_ERR IBV_WC_LOC_PROT_ERR IBV_WC_WR_FLUSH_ERR IBV_WC_REM_ACCESS_ERR
        IBV_WC_REM_INV_REQ_ERR IBV_WC_REM_OP_ERR IBV_WC_RETRY_EXC_ERR IBV_WC_RNR_RETRY_EXC_ERR
        IBV_WC_GENERAL_ERR IBV_WC_TM_RNDV_INCOMPLETE IBV_WC_SEND IBV_WC_RDMA_WRITE
        IBV_WC_RDMA_READ IBV_WC_COMP_SWAP IBV_WC_FETCH_ADD IBV_WC_BIND_MW IBV_WC_LOCAL_INV
        IBV_WC_FLUSH IBV_WC_ATOMIC_WRITE IBV_WC_RECV IBV_WC_RECV_RDMA_WITH_IMM IBV_WC_GRH
        IBV_WC_WITH_IMM IBV_WC_WITH_INV IBV_PORT_DOWN IBV_PORT_ACTIVE IBV_GID_TYPE_IB
        IBV_GID_TYPE_ROCE_V1 IBV_GID_TYPE_ROCE_V2 IBV_MTU_256 IBV_MTU_4096 IBV_NODE_CA
        IBV_NODE_RNIC IBV_QP_INIT_ATTR_PD IBV_QP_INIT_ATTR_SEND_OPS_FLAGS IBV_EVENT_DEVICE_FATAL
        IBV_EVENT_WQ_FATAL RDMA_CM_EVENT_ADDR_RESOLVED RDMA_CM_EVENT_TIMEWAIT_EXIT RDMA_PS_TCP
        RDMA_PS_UDP EFADV_DEVICE_ATTR_CAPS_RDMA_READ EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV
        IBV_QPT_RAW_PACKET IBV_QP_INIT_ATTR_CREATE_FLAGS IBV_QP_INIT_ATTR_IND_TABLE
        IBV_QP_INIT_ATTR_RX_HASH IBV_QP_CREATE_CVLAN_STRIPPING IBV_QP_RATE_LIMIT
        IBV_FLOW_ATTR_NORMAL IBV_FLOW_ATTR_ALL_DEFAULT IBV_FLOW_ATTR_MC_DEFAULT
        IBV_FLOW_ATTR_SNIFFER IBV_FLOW_ATTR_FLAGS_DONT_TRAP IBV_FLOW_SPEC_ETH IBV_FLOW_SPEC_IPV4
        IBV_FLOW_SPEC_IPV6 IBV_FLOW_SPEC_IPV4_EXT IBV_FLOW_SPEC_TCP IBV_FLOW_SPEC_UDP
        IBV_FLOW_SPEC_VXLAN_TUNNEL IBV_FLOW_SPEC_INNER IBV_FLOW_SPEC_ACTION_TAG
        IBV_FLOW_SPEC_ACTION_DROP IBV_FLOW_SPEC_ACTION_COUNT IBV_COUNTER_PACKETS
        IBV_COUNTER_BYTES IBV_READ_COUNTERS_ATTR_PREFER_CACHED IBV_WQT_RQ IBV_WQS_RESET
        IBV_WQS_RDY IBV_WQS_ERR IBV_WQ_ATTR_STATE IBV_WQ_INIT_ATTR_FLAGS
        IBV_WQ_FLAGS_CVLAN_STRIPPING IBV_RX_HASH_FUNC_TOEPLITZ IBV_RX_HASH_SRC_IPV4
        IBV_RX_HASH_DST_IPV4 IBV_RX_HASH_SRC_IPV6 IBV_RX_HASH_DST_IPV6 IBV_RX_HASH_SRC_PORT_TCP
        IBV_RX_HASH_DST_PORT_TCP IBV_RX_HASH_SRC_PORT_UDP IBV_RX_HASH_DST_PORT_UDP
        IBV_RX_HASH_IPSEC_SPI IBV_RX_HASH_INNER IBV_WC_EX_WITH_CVLAN IBV_WC_EX_WITH_FLOW_TAG
        EFADV_QP_DRIVER_TYPE_SRD EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV EFADV_WC_EX_WITH_SGID
    }
    facts
}

#[test]
fn the_bindings_agree_with_the_c_compiler() {
    let folders = header_folders();
    if folders.is_empty() {
        println!("skipped: no rdma-core headers (RDMA4RS_HEADERS is not set, none are installed)");
        return;
    }
    if Command::new("cc").arg("--version").output().is_err() {
        println!("skipped: no C compiler");
        return;
    }
    for (index, folder) in folders.iter().enumerate() {
        let newest = index + 1 == folders.len() && env::var_os("RDMA4RS_HEADERS").is_some();
        compare(folder, newest);
    }
}

/// The folders to compare with, oldest release first.
fn header_folders() -> Vec<PathBuf> {
    match env::var_os("RDMA4RS_HEADERS") {
        Some(folders) => env::split_paths(&folders).collect(),
        None => {
            let installed = PathBuf::from("/usr/include");
            let has = |file: &str| installed.join(file).exists();
            let whole = has("infiniband/efadv.h") && has("rdma/rdma_cma.h");
            if whole { vec![installed] } else { Vec::new() }
        }
    }
}

fn compare(folder: &Path, newest: bool) {
    let text: String = ["verbs.h", "verbs_api.h", "efadv.h", "ib_user_ioctl_verbs.h"]
        .iter()
        .map(|file| folder.join("infiniband").join(file))
        .chain([folder.join("rdma/rdma_cma.h")])
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let (known, unknown): (Vec<_>, Vec<_>) =
        facts().into_iter().partition(|fact| is_known(&text, fact));
    if newest {
        let missing: Vec<_> = unknown.iter().map(|fact| &fact.name).collect();
        assert!(missing.is_empty(), "not in the newest headers: {missing:?}");
    }
    let theirs = ask_c(folder, &known);
    let mut wrong = Vec::new();
    for fact in &known {
        let theirs = theirs[&fact.name];
        let fits = if fact.grows && !newest { theirs <= fact.ours } else { theirs == fact.ours };
        if !fits {
            wrong.push(format!("{}: C says {theirs}, the bindings {}", fact.name, fact.ours));
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", folder.display(), wrong.join("\n"));
    println!("{}: {} facts agree, {} are newer", folder.display(), known.len(), unknown.len());
}

/// Whether the word of a fact stands in the headers, and if it is a field, in its struct.
fn is_known(text: &str, fact: &Fact) -> bool {
    let place = match fact.within {
        None => text,
        Some(name) => {
            let Some(start) = text.find(&format!("\n{name} {{")) else { return false };
            let body = &text[start..];
            // The struct ends with the first brace at the start of a line.
            &body[..body.find("\n}").unwrap_or(body.len())]
        }
    };
    let word = fact.word.trim_end_matches('_');
    place.split(|c: char| !c.is_alphanumeric() && c != '_').any(|found| found == word)
}

/// Compiles and runs a program that prints each fact.
fn ask_c(folder: &Path, facts: &[Fact]) -> BTreeMap<String, i128> {
    let scratch = env::temp_dir().join(format!(
        "rdma4rs-layout-{}-{}",
        std::process::id(),
        folder.display().to_string().len()
    ));
    fs::create_dir_all(&scratch).unwrap();
    let mut program = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n\
         #include <infiniband/efadv.h>\n#include <rdma/rdma_cma.h>\nint main(void) {\n",
    );
    for fact in facts {
        // A field that is a keyword in Rust has an underscore there.
        let expression = fact.expression.replace("type_)", "type)");
        program +=
            &format!("printf(\"%lld\\t%s\\n\", (long long)({expression}), \"{}\");\n", fact.name);
    }
    program += "return 0; }\n";
    let (source, binary) = (scratch.join("layout.c"), scratch.join("layout"));
    fs::write(&source, program).unwrap();
    let compiled = Command::new("cc")
        .arg("-I")
        .arg(folder)
        .args(["-w", "-o"])
        .args([&binary, &source])
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(&binary).output().unwrap();
    fs::remove_dir_all(&scratch).unwrap();
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| {
            let (number, name) = line.split_once('\t').unwrap();
            (name.to_owned(), number.parse().unwrap())
        })
        .collect()
}
