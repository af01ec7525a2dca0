//! The verbs by name, for counting and refusing their calls.

/// Makes the list of verbs that a test can count and refuse.
macro_rules! verbs {
    ($($name:ident)*) => {
        /// A verb, under its C name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[expect(non_camel_case_types, reason = "C's names, unchanged")]
        pub(crate) enum Verb { $($name,)* }

        impl Verb {
            const NAMES: &'static [&'static str] = &[$(stringify!($name),)*];
        }
    };
}

verbs! {
    ibv_get_device_list ibv_open_device ibv_close_device
    ibv_query_device ibv_query_device_ex ibv_query_port ibv_query_gid ibv_query_gid_ex
    ibv_query_gid_table ibv_query_pkey ibv_get_pkey_index ibv_query_rt_values_ex
    ibv_alloc_pd ibv_dealloc_pd
    ibv_reg_mr ibv_reg_mr_iova ibv_reg_dmabuf_mr ibv_reg_mr_ex ibv_dereg_mr
    ibv_create_comp_channel ibv_destroy_comp_channel ibv_get_cq_event
    ibv_create_cq ibv_create_cq_ex ibv_destroy_cq
    ibv_poll_cq ibv_req_notify_cq ibv_start_poll ibv_next_poll
    ibv_create_qp ibv_create_qp_ex ibv_modify_qp ibv_query_qp ibv_destroy_qp
    ibv_post_send ibv_post_recv ibv_wr_complete
    ibv_get_async_event
    ibv_alloc_mw ibv_dealloc_mw ibv_bind_mw ibv_rereg_mr ibv_advise_mr ibv_alloc_null_mr
    ibv_alloc_dm ibv_free_dm ibv_reg_dm_mr ibv_memcpy_to_dm ibv_memcpy_from_dm
    ibv_dm_export_dmabuf_fd
    ibv_alloc_td ibv_dealloc_td ibv_alloc_parent_domain
    ibv_resize_cq ibv_modify_cq
    ibv_resolve_eth_l2_from_gid
    ibv_create_ah ibv_create_ah_from_wc ibv_destroy_ah ibv_attach_mcast ibv_detach_mcast
    ibv_create_srq ibv_create_srq_ex ibv_modify_srq ibv_query_srq ibv_destroy_srq
    ibv_post_srq_recv ibv_get_srq_num
    ibv_open_xrcd ibv_close_xrcd ibv_open_qp
    ibv_set_ece ibv_query_ece ibv_modify_qp_rate_limit ibv_query_qp_data_in_order
    efadv_query_device efadv_query_ah efadv_query_mr efadv_get_max_sq_depth efadv_get_max_rq_depth
    efadv_create_qp_ex efadv_create_cq
    ibv_import_device ibv_import_pd ibv_import_mr ibv_import_dm ibv_query_port_speed
    ibv_query_comp_cntr_caps ibv_create_comp_cntr ibv_destroy_comp_cntr ibv_read_comp_cntr
    ibv_read_err_comp_cntr ibv_set_comp_cntr ibv_set_err_comp_cntr ibv_inc_comp_cntr
    ibv_inc_err_comp_cntr
    ibv_qp_attach_comp_cntr
    ibv_create_flow ibv_destroy_flow ibv_create_counters ibv_destroy_counters
    ibv_attach_counters_point_flow ibv_read_counters
    ibv_create_wq ibv_modify_wq ibv_destroy_wq ibv_post_wq_recv
    ibv_create_rwq_ind_table ibv_destroy_rwq_ind_table
    rdma_bind_addr rdma_resolve_addr rdma_resolve_route rdma_connect rdma_accept rdma_disconnect
    rdma_destroy_id rdma_join_multicast rdma_create_qp rdma_listen rdma_establish rdma_notify
    rdma_reject rdma_init_qp_attr rdma_migrate_id rdma_set_option
}

impl Verb {
    /// How many there are.
    pub(crate) const COUNT: usize = Self::NAMES.len();

    /// The place of a C name in the list.
    pub(crate) fn place_of(name: &str) -> Option<usize> {
        Self::NAMES.iter().position(|&known| known == name)
    }

    /// Its place in the list.
    pub(crate) const fn place(self) -> usize {
        self as usize
    }
}
