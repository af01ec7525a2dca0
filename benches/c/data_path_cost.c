/* What one write costs in C: the twin of examples/data_path_cost.rs, with the same flags.
 *
 *   gcc -O2 data_path_cost.c -o data-path-cost-c -libverbs
 *   data-path-cost-c [flags of verbs.h] [--size N] [--op write|write-imm] [--inline] [--poller]
 */
#include "verbs.h"

static int immediate, is_inline, poller;
static unsigned size = 8;
static struct ibv_qp *sender, *receiver;
static struct ibv_cq *sent, *received;
static struct ibv_mr *source, *target;
static char *from, *to;

static struct ibv_cq *queue(void)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 2 * room() };

	if (!poller)
		return ibv_create_cq(context, 2 * room(), NULL, NULL, 0);
	return ibv_cq_ex_to_cq(ibv_create_cq_ex(context, &attr));
}

static struct ibv_qp *make(struct ibv_cq *sends, struct ibv_cq *receives)
{
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_RC, .send_cq = sends, .recv_cq = receives, .pd = pd,
		.cap = { .max_send_wr = room(), .max_recv_wr = room(), .max_send_sge = 1, .max_recv_sge = 1,
			.max_inline_data = is_inline ? size : 0 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | (basic ? 0 : IBV_QP_INIT_ATTR_SEND_OPS_FLAGS),
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);

	if (!qp)
		FAIL("ibv_create_qp_ex");
	return qp;
}

static void post_receives(void)
{
	struct ibv_recv_wr wr[depth], *bad;
	struct ibv_sge sge = { (uintptr_t)to, 8, target->lkey };

	for (unsigned i = 0; i < depth; i++)
		wr[i] = (struct ibv_recv_wr){ i, i + 1 < depth ? &wr[i + 1] : NULL, &sge, 1 };
	if (ibv_post_recv(receiver, wr, &bad))
		FAIL("ibv_post_recv");
}

static void post_list(void)
{
	struct ibv_send_wr wr[depth], *bad;
	struct ibv_sge sge = { (uintptr_t)from, size, source->lkey };

	for (unsigned i = 0; i < depth; i++)
		wr[i] = (struct ibv_send_wr){ .wr_id = i, .next = i + 1 < depth ? &wr[i + 1] : NULL,
			.sg_list = &sge, .num_sge = 1, .imm_data = i,
			.opcode = immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_SIGNALED | (is_inline ? IBV_SEND_INLINE : 0),
			.wr.rdma = { (uintptr_t)to, target->rkey } };
	if (ibv_post_send(sender, wr, &bad))
		FAIL("ibv_post_send");
}

static void post_each(void)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(sender);

	ibv_wr_start(qp);
	for (unsigned i = 0; i < depth; i++) {
		qp->wr_id = i;
		qp->wr_flags = IBV_SEND_SIGNALED | (is_inline ? IBV_SEND_INLINE : 0);
		if (immediate)
			ibv_wr_rdma_write_imm(qp, target->rkey, (uintptr_t)to, i);
		else
			ibv_wr_rdma_write(qp, target->rkey, (uintptr_t)to);
		if (is_inline)
			ibv_wr_set_inline_data(qp, from, size);
		else
			ibv_wr_set_sge(qp, source->lkey, (uintptr_t)from, size);
	}
	if (ibv_wr_complete(qp))
		FAIL("ibv_wr_complete");
}

/* The same as drain(), through the extended queue. */
static void drain_extended(struct ibv_cq *cq)
{
	struct ibv_cq_ex *extended = (struct ibv_cq_ex *)cq;
	struct ibv_poll_cq_attr attr = { 0 };
	unsigned left = depth;

	while (left) {
		if (ibv_start_poll(extended, &attr))
			continue;
		do {
			if (extended->status)
				FAIL(ibv_wc_status_str(extended->status));
			left--;
		} while (!ibv_next_poll(extended));
		ibv_end_poll(extended);
	}
}

static void run(long count)
{
	while (count--) {
		if (immediate)
			post_receives();
		if (basic)
			post_list();
		else
			post_each();
		if (poller)
			drain_extended(sent);
		else
			drain(sent);
		if (immediate && poller)
			drain_extended(received);
		else if (immediate)
			drain(received);
	}
}

int main(int count, char **words)
{
	iterations = 1000000;
	warmup = 10000;
	for (int i = 1; i < count;) {
		char *value = i + 1 < count ? words[i + 1] : "";
		int taken = common_flag(words + i, count - i);

		if (taken) i += taken;
		else if (!strcmp(words[i], "--inline")) is_inline = 1, i++;
		else if (!strcmp(words[i], "--poller")) poller = 1, i++;
		else if (!strcmp(words[i], "--size")) size = atoi(value), i += 2;
		else if (!strcmp(words[i], "--op")) immediate = !strcmp(value, "write-imm"), i += 2;
		else FAIL("reading the arguments");
	}
	if (!batch)
		depth = 1;
	open_device();
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

	from = malloc(size);
	to = calloc(1, size > 8 ? size : 8);
	memset(from, 0xa5, size);
	source = ibv_reg_mr(pd, from, size, access);
	target = ibv_reg_mr(pd, to, size > 8 ? size : 8, access);
	sent = queue();
	received = queue();
	sender = make(sent, queue());
	receiver = make(queue(), received);
	make_ready(receiver, sender->qp_num, IBV_ACCESS_REMOTE_WRITE);
	make_ready(sender, receiver->qp_num, IBV_ACCESS_REMOTE_WRITE);
	run(rounds(warmup));

	struct timespec start, end;

	clock_gettime(CLOCK_MONOTONIC, &start);
	run(rounds(iterations));
	clock_gettime(CLOCK_MONOTONIC, &end);
	double elapsed = (end.tv_sec - start.tv_sec) * 1e9 + (end.tv_nsec - start.tv_nsec);

	printf("C dev=%s ns_per_op=%.1f\n", ibv_get_device_name(context->device),
		elapsed / (rounds(iterations) * (double)depth));
	for (unsigned i = 0; i < size; i++)
		if (to[i] != (char)0xa5)
			FAIL("the payload");
	return 0;
}
