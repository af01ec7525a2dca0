/* Two queue pairs of one process over the verbs of <infiniband/verbs.h>, inline functions included.
 * Prints "loopback ok" when every byte and every completion was right. */
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) do { if (!(condition)) { fprintf(stderr, "line %d: %s\n", __LINE__, #condition); exit(1); } } while (0)
enum { ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, LENGTH = 64 };

static void connect_to(struct ibv_qp *qp, struct ibv_port_attr *port, union ibv_gid *gid, uint32_t peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ACCESS };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr) { .qp_state = IBV_QPS_RTR, .path_mtu = port->active_mtu, .dest_qp_num = peer,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12, .ah_attr = { .port_num = 1, .is_global = 1,
		.grh = { .dgid = *gid, .sgid_index = 1, .hop_limit = 64 } } };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr) { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_MAX_QP_RD_ATOMIC));
	CHECK(qp->state == IBV_QPS_RTS);
}

int main(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list && count == 1 && !list[1]);
	CHECK(!strcmp(ibv_get_device_name(list[0]), "soft0"));
	struct ibv_context *context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);

	struct ibv_device_attr_ex device = {};
	CHECK(!ibv_query_device_ex(context, NULL, &device) && device.orig_attr.phys_port_cnt == 1);
	struct ibv_port_attr port;
	CHECK(!ibv_query_port(context, 1, &port) && port.state == IBV_PORT_ACTIVE && port.link_layer == IBV_LINK_LAYER_ETHERNET);
	struct ibv_gid_entry entry;
	CHECK(!ibv_query_gid_ex(context, 1, 1, &entry, 0) && entry.gid_type == IBV_GID_TYPE_ROCE_V2);

	struct ibv_pd *pd = ibv_alloc_pd(context);
	static char from[LENGTH], to[LENGTH];
	struct ibv_mr *source = ibv_reg_mr(pd, from, LENGTH, 0), *target = ibv_reg_mr(pd, to, LENGTH, ACCESS);
	CHECK(source && target);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq_init_attr_ex queue = { .cqe = 8, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_cq_ex *sends = ibv_create_cq_ex(context, &queue);
	struct ibv_cq *receives = ibv_create_cq(context, 8, "receives", channel, 0);
	CHECK(channel && sends && receives);
	struct ibv_qp_init_attr_ex extended = { .qp_type = IBV_QPT_RC, .send_cq = ibv_cq_ex_to_cq(sends), .recv_cq = receives,
		.cap = { 4, 4, 1, 1, 16 }, .pd = pd, .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM };
	struct ibv_qp_init_attr classic = { .qp_type = IBV_QPT_RC, .send_cq = receives, .recv_cq = receives, .cap = { 4, 4, 1, 1, 16 } };
	struct ibv_qp *a = ibv_create_qp_ex(context, &extended), *b = ibv_create_qp(pd, &classic);
	CHECK(a && b && !ibv_qp_to_qp_ex(b));
	connect_to(a, &port, &entry.gid, b->qp_num);
	connect_to(b, &port, &entry.gid, a->qp_num);

	struct ibv_recv_wr receive = { .wr_id = 7 }, *bad_receive;
	CHECK(!ibv_post_recv(b, &receive, &bad_receive) && !ibv_req_notify_cq(receives, 0));
	memset(from, 0x5a, LENGTH);
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(a);
	ibv_wr_start(x);
	x->wr_id = 1;
	x->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write_imm(x, target->rkey, (uintptr_t)to, htobe32(0xc0de));
	ibv_wr_set_sge(x, source->lkey, (uintptr_t)from, LENGTH);
	CHECK(!ibv_wr_complete(x));

	struct ibv_poll_cq_attr poll_attr = {};
	CHECK(!ibv_start_poll(sends, &poll_attr) && sends->wr_id == 1 && sends->status == IBV_WC_SUCCESS);
	CHECK(ibv_wc_read_opcode(sends) == IBV_WC_RDMA_WRITE && ibv_next_poll(sends) == ENOENT);
	ibv_end_poll(sends);
	struct pollfd readable = { .fd = channel->fd, .events = POLLIN };
	CHECK(poll(&readable, 1, 0) == 1);
	struct ibv_cq *found;
	void *cookie;
	CHECK(!ibv_get_cq_event(channel, &found, &cookie) && found == receives && !strcmp(cookie, "receives"));
	ibv_ack_cq_events(found, 1);
	struct ibv_wc done;
	CHECK(ibv_poll_cq(receives, 1, &done) == 1 && done.wr_id == 7 && done.opcode == IBV_WC_RECV_RDMA_WITH_IMM);
	CHECK(be32toh(done.imm_data) == 0xc0de && done.byte_len == LENGTH && !memcmp(from, to, LENGTH));

	struct ibv_sge piece = { (uintptr_t)to, LENGTH, target->rkey };
	struct ibv_send_wr send = { .wr_id = 2, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad_send;
	CHECK(!ibv_post_send(b, &send, &bad_send));
	CHECK(ibv_poll_cq(receives, 1, &done) == 1 && done.wr_id == 2 && done.status == IBV_WC_LOC_PROT_ERR);
	CHECK(!strcmp(ibv_wc_status_str(done.status), "local protection error"));

	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_cq(ibv_cq_ex_to_cq(sends)) && !ibv_destroy_cq(receives));
	CHECK(!ibv_destroy_comp_channel(channel) && !ibv_dereg_mr(source) && !ibv_dereg_mr(target) && !ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
	puts("loopback ok");
	return 0;
}
