/* What one message costs in C: the twin of examples/message_cost.rs, with the same flags.
 *
 *   gcc -O2 message_cost.c -o message-cost-c -libverbs
 *   message-cost-c [flags of verbs.h] [--ud] [--srq]
 */
#include "verbs.h"

enum { HEADER = 40, SIZE = 8 };

static int ud, srq;
static struct ibv_qp *sender, *receiver;
static struct ibv_cq *sent, *received;
static struct ibv_srq *shared;
static struct ibv_ah *address;
static struct ibv_mr *source, *target;
static uint8_t from[SIZE], to[HEADER + SIZE];

static struct ibv_qp *make(struct ibv_cq *sends, struct ibv_cq *receives)
{
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = ud ? IBV_QPT_UD : IBV_QPT_RC, .send_cq = sends, .recv_cq = receives, .srq = shared, .pd = pd,
		.cap = { .max_send_wr = room(), .max_recv_wr = shared ? 0 : room(), .max_send_sge = 1, .max_recv_sge = 1 },
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

static void run(long count)
{
	while (count--) {
		post_receives();
		post_sends();
		drain(sent);
		drain(received);
	}
}

int main(int count, char **words)
{
	for (int i = 1; i < count;) {
		int taken = common_flag(words + i, count - i);

		if (taken) i += taken;
		else if (!strcmp(words[i], "--ud")) ud = 1, i++;
		else if (!strcmp(words[i], "--srq")) srq = 1, i++;
		else FAIL("reading the arguments");
	}
	if (!batch)
		depth = 1;
	open_device();
	memset(from, 0xa5, sizeof from);
	source = ibv_reg_mr(pd, from, sizeof from, IBV_ACCESS_LOCAL_WRITE);
	target = ibv_reg_mr(pd, to, sizeof to, IBV_ACCESS_LOCAL_WRITE);
	sent = ibv_create_cq(context, 2 * room(), NULL, NULL, 0);
	received = ibv_create_cq(context, 2 * room(), NULL, NULL, 0);
	sender = make(sent, ibv_create_cq(context, 2 * room(), NULL, NULL, 0));
	if (srq) {
		struct ibv_srq_init_attr attr = { .attr = { .max_wr = room(), .max_sge = 1 } };

		shared = ibv_create_srq(pd, &attr);
		if (!shared)
			FAIL("ibv_create_srq");
	}
	receiver = make(ibv_create_cq(context, 2 * room(), NULL, NULL, 0), received);
	make_ready(receiver, sender->qp_num, 0);
	make_ready(sender, receiver->qp_num, 0);
	if (ud) {
		struct ibv_ah_attr attr = { .dlid = port.lid, .port_num = 1, .is_global = 1,
			.grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 } };

		address = ibv_create_ah(pd, &attr);
		if (!address)
			FAIL("ibv_create_ah");
	}
	run(rounds(warmup));
	run(rounds(iterations));
	if (to[ud ? HEADER : 0] != 0xa5)
		FAIL("the payload");
	return 0;
}
