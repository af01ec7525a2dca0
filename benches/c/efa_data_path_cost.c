/* What one SRD write and one receive cost in C: the twin of examples/efa_data_path_cost.rs, with the same flags.
 *
 *   gcc -O2 efa_data_path_cost.c -o efa-data-path-cost-c -libverbs -lefa
 *   efa-data-path-cost-c [--op write|receive] [--rounds N] [--depth N]
 */
#include <infiniband/efadv.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAIL(what) do { fprintf(stderr, "efa-data-path-cost-c: %s failed\n", what); exit(1); } while (0)
enum { LENGTH = 64, QUEUE_KEY = 1 };

static unsigned depth = 16, rounds = 1000;
static struct ibv_qp *near_qp, *far_qp;
static struct ibv_cq *sent, *received;
static struct ibv_ah *peer;
static struct ibv_mr *region;
static uint8_t memory[2 * LENGTH];

static struct ibv_qp *make(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr_ex common = {
		.qp_type = IBV_QPT_DRIVER, .send_cq = cq, .recv_cq = cq, .pd = pd, .sq_sig_all = 1,
		.cap = { .max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
			IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
	};
	struct efadv_qp_init_attr own = { .driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD };
	struct ibv_qp *qp = efadv_create_qp_ex(context, &common, &own, sizeof own);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QUEUE_KEY };

	if (!qp)
		FAIL("efadv_create_qp_ex");
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY))
		FAIL("to initialized");
	attr.qp_state = IBV_QPS_RTR;
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE))
		FAIL("to ready to receive");
	attr.qp_state = IBV_QPS_RTS;
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN))
		FAIL("to ready to send");
	return qp;
}

static void drain(struct ibv_cq *cq)
{
	struct ibv_wc wc[16];
	unsigned left = depth;

	while (left) {
		int found = ibv_poll_cq(cq, 16, wc);

		if (found < 0)
			FAIL("ibv_poll_cq");
		for (int i = 0; i < found; i++)
			if (wc[i].status)
				FAIL(ibv_wc_status_str(wc[i].status));
		left -= found;
	}
}

static void write_memory(void)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(near_qp);

	ibv_wr_start(qp);
	for (unsigned i = 0; i < depth; i++) {
		qp->wr_id = i;
		qp->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_rdma_write(qp, region->rkey, (uintptr_t)memory + LENGTH);
		ibv_wr_set_ud_addr(qp, peer, far_qp->qp_num, QUEUE_KEY);
		ibv_wr_set_sge(qp, region->lkey, (uintptr_t)memory, LENGTH);
	}
	if (ibv_wr_complete(qp))
		FAIL("ibv_wr_complete");
	drain(sent);
}

static void send_messages(void)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(near_qp);

	ibv_wr_start(qp);
	for (unsigned i = 0; i < depth; i++) {
		qp->wr_id = i;
		qp->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_send_imm(qp, htobe32(i));
		ibv_wr_set_ud_addr(qp, peer, far_qp->qp_num, QUEUE_KEY);
		ibv_wr_set_sge(qp, region->lkey, (uintptr_t)memory + LENGTH, LENGTH);
	}
	if (ibv_wr_complete(qp))
		FAIL("ibv_wr_complete");
	drain(sent);
}

static void receive(void)
{
	struct ibv_recv_wr wr[depth], *bad;
	struct ibv_sge sge = { (uintptr_t)memory, LENGTH, region->lkey };

	for (unsigned i = 0; i < depth; i++)
		wr[i] = (struct ibv_recv_wr){ i, i + 1 < depth ? &wr[i + 1] : NULL, &sge, 1 };
	if (ibv_post_recv(far_qp, wr, &bad))
		FAIL("ibv_post_recv");
	send_messages();
	drain(received);
}

int main(int count, char **words)
{
	int receives = 0;

	for (int i = 1; i + 1 < count; i += 2) {
		if (!strcmp(words[i], "--op")) receives = !strcmp(words[i + 1], "receive");
		else if (!strcmp(words[i], "--rounds")) rounds = atoi(words[i + 1]);
		else if (!strcmp(words[i], "--depth")) depth = atoi(words[i + 1]);
		else FAIL("reading the arguments");
	}
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && *list ? ibv_open_device(*list) : NULL;

	if (!context)
		FAIL("opening a device");
	struct ibv_pd *pd = ibv_alloc_pd(context);
	union ibv_gid gid;

	if (ibv_query_gid(context, 1, 0, &gid))
		FAIL("ibv_query_gid");
	region = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	sent = ibv_create_cq(context, 2 * depth, NULL, NULL, 0);
	received = ibv_create_cq(context, 2 * depth, NULL, NULL, 0);
	near_qp = make(context, pd, sent);
	far_qp = make(context, pd, received);
	/* Both queue pairs are of one device and one domain: this is the way in both directions. */
	struct ibv_ah_attr attr = { .port_num = 1, .is_global = 1, .grh = { .dgid = gid } };

	peer = ibv_create_ah(pd, &attr);
	if (!region || !peer)
		FAIL("ibv_reg_mr or ibv_create_ah");
	for (unsigned i = 0; i < rounds; i++)
		receives ? receive() : write_memory();
	return 0;
}
