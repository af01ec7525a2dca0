"""The writes of examples/data_path_cost.rs through rdma4py's `ibverbs`: two reliable connections in one process.

    writes.py [--iters N] [--warmup N] [--mode single|batch] [--depth N] [--size N]

The device and its GID come from RDMA_DEVICE and RDMA_GID_INDEX.
"""

import argparse
import ctypes
import os
import time

import ibverbs as ib


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--iters", type=int, default=10_000)
    parser.add_argument("--warmup", type=int, default=64)
    parser.add_argument("--mode", choices=["single", "batch"], default="single")
    parser.add_argument("--depth", type=int, default=64)
    parser.add_argument("--size", type=int, default=8)
    options = parser.parse_args()
    depth = options.depth if options.mode == "batch" else 1
    name, gid_index = os.environ["RDMA_DEVICE"], int(os.environ.get("RDMA_GID_INDEX", "0"))

    context = next(d for d in ib.get_device_list() if d.name == name).open()
    domain = context.alloc_pd()
    sent, unused = context.create_cq(2 * max(depth, 16)), context.create_cq(16)
    sender, receiver = (
        domain.create_qp(
            ib.QPInitAttr(
                send_cq=queue,
                recv_cq=unused,
                qp_type=ib.QPType.RC,
                max_send_wr=max(depth, 16),
                max_recv_wr=16,
            )
        )
        for queue in (sent, unused)
    )
    access = ib.AccessFlags.LOCAL_WRITE | ib.AccessFlags.REMOTE_WRITE
    source = ctypes.create_string_buffer(b"\xa5" * options.size, options.size)
    target = ctypes.create_string_buffer(options.size)
    from_region = domain.reg_mr(ctypes.addressof(source), options.size, access)
    to_region = domain.reg_mr(ctypes.addressof(target), options.size, access)
    port, gid = context.query_port(1), context.query_gid(1, gid_index)
    ends = [ib.local_qp_info(pair, port, gid, port=1, psn=0) for pair in (sender, receiver)]
    for pair, peer in ((receiver, ends[0]), (sender, ends[1])):
        ib.connect_rc(pair, peer, port=1, sgid_index=gid_index, access=access, local_psn=0)

    # Made once and used again, as the fastest program would.
    requests = [
        ib.SendWR(
            wr_id=number,
            sg_list=[ib.SGE(from_region, options.size)],
            opcode=ib.WROpcode.RDMA_WRITE,
            send_flags=ib.SendFlags.SIGNALED,
            remote_addr=ctypes.addressof(target),
            rkey=to_region.rkey,
        )
        for number in range(depth)
    ]

    def run(rounds):
        for _ in range(rounds):
            sender.post_send(requests if depth > 1 else requests[0])
            left = depth
            while left:
                found = sent.poll(left)
                for completion in found:
                    completion.raise_for_status()
                left -= len(found)

    run(-(-options.warmup // depth))
    rounds = -(-options.iters // depth)
    start = time.perf_counter_ns()
    run(rounds)
    elapsed = time.perf_counter_ns() - start
    if target.raw != source.raw:
        raise AssertionError("the payload did not arrive")
    print(f"rdma4py ns_per_op={elapsed / (rounds * depth):.1f}")


main()
