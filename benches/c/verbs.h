/* What the C twins of our programs have in common: flags, a device, and queue pairs made ready.
 *
 * Flags: [--dev NAME] [--gid N] [--iters N] [--warmup N] [--mode single|batch] [--depth N] [--basic]
 */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FAIL(what) do { fprintf(stderr, "%s failed\n", what); exit(1); } while (0)
enum { QUEUE_KEY = 0x1234 };

static const char *name;
static int gid_index = -1, batch, basic;
static unsigned depth = 64;
static long iterations = 100000, warmup = 64;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_port_attr port;
static union ibv_gid gid;

/* Takes a flag that all programs have; returns the number of words taken, none if it is another one. */
static int common_flag(char **words, int left)
{
	char *word = words[0], *value = left > 1 ? words[1] : "";

	if (!strcmp(word, "--basic")) return basic = 1;
	else if (!strcmp(word, "--dev")) name = value;
	else if (!strcmp(word, "--gid")) gid_index = atoi(value);
	else if (!strcmp(word, "--iters")) iterations = atol(value);
	else if (!strcmp(word, "--warmup")) warmup = atol(value);
	else if (!strcmp(word, "--depth")) depth = atoi(value);
	else if (!strcmp(word, "--mode")) batch = !strcmp(value, "batch");
	else return 0;
	return 2;
}

static unsigned room(void)
{
	return depth > 16 ? depth : 16;
}

static long rounds(long count)
{
	return (count + depth - 1) / depth;
}

/* The device that was named, or the first one. */
static void open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL), *device = NULL;

	if (!name)
		name = getenv("RDMA_DEVICE");
	for (int i = 0; list && list[i]; i++)
		if (!device && (!name || !strcmp(name, ibv_get_device_name(list[i]))))
			device = list[i];
	if (!device)
		FAIL("finding a device");
	if (gid_index < 0)
		gid_index = getenv("RDMA_GID_INDEX") ? atoi(getenv("RDMA_GID_INDEX")) : 0;
	context = ibv_open_device(device);
	pd = ibv_alloc_pd(context);
	if (!pd || ibv_query_port(context, 1, &port) || ibv_query_gid(context, 1, gid_index, &gid))
		FAIL("opening the device");
}

/* Takes a queue pair from RESET to RTS; `peer` is of no use to one of datagrams. */
static void make_ready(struct ibv_qp *qp, uint32_t peer, unsigned access)
{
	int ud = qp->qp_type == IBV_QPT_UD;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QUEUE_KEY, .qp_access_flags = access };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;

	if (ibv_modify_qp(qp, &attr, mask | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)))
		FAIL("to initialized");
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_RTR;
	mask = IBV_QP_STATE;
	if (!ud) {
		attr.path_mtu = port.active_mtu;
		attr.dest_qp_num = peer;
		attr.max_dest_rd_atomic = 1;
		attr.min_rnr_timer = 12;
		attr.ah_attr = (struct ibv_ah_attr){ .dlid = port.lid, .port_num = 1, .is_global = 1,
			.grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 } };
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

/* Polls until `depth` completions were found. */
static inline void drain(struct ibv_cq *cq)
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
