/* What one message costs in C: the twin of examples/message_cost.rs, with the same flags.
 *
 *   gcc -O2 message_cost.c -o message-cost-c -libverbs
 *   message-cost-c [--dev NAME] [--gid N] [--iters N] [--warmup N] [--mode single|batch] [--depth N]
 *                  [--ud] [--srq] [--basic]
 */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAIL(what) do { fprintf(stderr, "message-cost-c: %s failed\n", what); exit(1); } while (0)
enum { HEADER = 40, SIZE = 8, QUEUE_KEY = 0x1234 };

static const char *name;
static int gid_index = 1, ud, srq, basic;
static unsigned depth = 64;
static long iterations = 100000, warmup = 64;
static struct ibv_qp *sender, *receiver;
static struct ibv_cq *sent, *received;
static struct ibv_srq *shared;
static struct ibv_ah *address;
static struct ibv_mr *source, *target;
static uint8_t from[SIZE], to[HEADER + SIZE];

static void change(struct ibv_qp *qp, struct ibv_port_attr *port, union ibv_gid *gid, uint32_t peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;

	attr.qkey = QUEUE_KEY;
	if (ibv_modify_qp(qp, &attr, mask | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)))
		FAIL("to initialized");
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_RTR;
	mask = IBV_QP_STATE;
	if (!ud) {
		attr.path_mtu = port->active_mtu;
		attr.dest_qp_num = peer;
		attr.max_dest_rd_atomic = 1;
		attr.min_rnr_timer = 12;
		attr.ah_attr = (struct ibv_ah_attr){ .dlid = port->lid, .port_num = 1, .is_global = 1,
			.grh = { .dgid = *gid, .sgid_index = gid_index, .hop_limit = 64 } };
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	}
	if (ibv_modify_qp(qp, &attr, mask))
		FAIL("to ready to receive");
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_RTS;
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (!ud) {
		attr.timeout = 14;
		attr.retry_cnt = 7;
		attr.rnr_retry = 7;
		attr.max_rd_atomic = 1;
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	}
	if (ibv_modify_qp(qp, &attr, mask))
		FAIL("to ready to send");
}

static struct ibv_qp *make(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *sends, struct ibv_cq *receives)
{
	unsigned room = depth > 16 ? depth : 16;
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = ud ? IBV_QPT_UD : IBV_QPT_RC, .send_cq = sends, .recv_cq = receives, .srq = shared, .pd = pd,
		.cap = { .max_send_wr = room, .max_recv_wr = shared ? 0 : room, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | (basic ? 0 : IBV_QP_INIT_ATTR_SEND_OPS_FLAGS),
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);

	if (!qp)
		FAIL("ibv_create_qp_ex");
	return qp;
}

static void post_receives(void)
{
	struct ibv_recv_wr wr[depth], *bad;
	struct ibv_sge sge = { (uintptr_t)to, sizeof to, target->lkey };

	for (unsigned i = 0; i < depth; i++)
		wr[i] = (struct ibv_recv_wr){ i, i + 1 < depth ? &wr[i + 1] : NULL, &sge, 1 };
	if (shared ? ibv_post_srq_recv(shared, wr, &bad) : ibv_post_recv(receiver, wr, &bad))
		FAIL("posting receives");
}

static void post_sends(void)
{
	if (basic) {
		struct ibv_send_wr wr[depth], *bad;
		struct ibv_sge sge = { (uintptr_t)from, SIZE, source->lkey };

		for (unsigned i = 0; i < depth; i++) {
			wr[i] = (struct ibv_send_wr){ .wr_id = i, .next = i + 1 < depth ? &wr[i + 1] : NULL,
				.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
			if (ud) {
				wr[i].wr.ud.ah = address;
				wr[i].wr.ud.remote_qpn = receiver->qp_num;
				wr[i].wr.ud.remote_qkey = QUEUE_KEY;
			}
		}
		if (ibv_post_send(sender, wr, &bad))
			FAIL("ibv_post_send");
		return;
	}
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(sender);

	ibv_wr_start(qp);
	for (unsigned i = 0; i < depth; i++) {
		qp->wr_id = i;
		qp->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_send(qp);
		if (ud)
			ibv_wr_set_ud_addr(qp, address, receiver->qp_num, QUEUE_KEY);
		ibv_wr_set_sge(qp, source->lkey, (uintptr_t)from, SIZE);
	}
	if (ibv_wr_complete(qp))
		FAIL("ibv_wr_complete");
}

static void drain(struct ibv_cq *cq)
{
	struct ibv_wc wc[64];
	unsigned left = depth;

	while (left) {
		int found = ibv_poll_cq(cq, 64, wc);

		if (found < 0)
			FAIL("ibv_poll_cq");
		for (int i = 0; i < found; i++)
			if (wc[i].status)
				FAIL(ibv_wc_status_str(wc[i].status));
		left -= found;
	}
}

static void run(long rounds)
{
	while (rounds--) {
		post_receives();
		post_sends();
		drain(sent);
		drain(received);
	}
}

int main(int count, char **words)
{
	int batch = 0;

	for (int i = 1; i < count; i++) {
		char *word = words[i], *value = i + 1 < count ? words[i + 1] : "";

		if (!strcmp(word, "--ud")) ud = 1;
		else if (!strcmp(word, "--srq")) srq = 1;
		else if (!strcmp(word, "--basic")) basic = 1;
		else if (!strcmp(word, "--dev")) name = value, i++;
		else if (!strcmp(word, "--gid")) gid_index = atoi(value), i++;
		else if (!strcmp(word, "--iters")) iterations = atol(value), i++;
		else if (!strcmp(word, "--warmup")) warmup = atol(value), i++;
		else if (!strcmp(word, "--depth")) depth = atoi(value), i++;
		else if (!strcmp(word, "--mode")) batch = !strcmp(value, "batch"), i++;
		else FAIL("reading the arguments");
	}
	if (!batch)
		depth = 1;
	struct ibv_device **list = ibv_get_device_list(NULL), *device = NULL;

	for (int i = 0; list && list[i]; i++)
		if (!device && (!name || !strcmp(name, ibv_get_device_name(list[i]))))
			device = list[i];
	if (!device)
		FAIL("finding a device");
	struct ibv_context *context = ibv_open_device(device);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_port_attr port;
	union ibv_gid gid;
	unsigned room = depth > 16 ? depth : 16;

	if (ibv_query_port(context, 1, &port) || ibv_query_gid(context, 1, gid_index, &gid))
		FAIL("a query");
	memset(from, 0xa5, sizeof from);
	source = ibv_reg_mr(pd, from, sizeof from, IBV_ACCESS_LOCAL_WRITE);
	target = ibv_reg_mr(pd, to, sizeof to, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_cq *unused[2] = { ibv_create_cq(context, 2 * room, NULL, NULL, 0), ibv_create_cq(context, 2 * room, NULL, NULL, 0) };

	sent = ibv_create_cq(context, 2 * room, NULL, NULL, 0);
	received = ibv_create_cq(context, 2 * room, NULL, NULL, 0);
	sender = make(context, pd, sent, unused[0]);
	if (srq) {
		struct ibv_srq_init_attr attr = { .attr = { .max_wr = room, .max_sge = 1 } };

		shared = ibv_create_srq(pd, &attr);
		if (!shared)
			FAIL("ibv_create_srq");
	}
	receiver = make(context, pd, unused[1], received);
	change(receiver, &port, &gid, sender->qp_num);
	change(sender, &port, &gid, receiver->qp_num);
	if (ud) {
		struct ibv_ah_attr attr = { .dlid = port.lid, .port_num = 1, .is_global = 1,
			.grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 } };

		address = ibv_create_ah(pd, &attr);
		if (!address)
			FAIL("ibv_create_ah");
	}
	run((warmup + depth - 1) / depth);
	run((iterations + depth - 1) / depth);
	if (to[ud ? HEADER : 0] != 0xa5)
		FAIL("the payload");
	return 0;
}
