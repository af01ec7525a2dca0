"""Reads of examples/nvmeof_bench.rs through rdma4py's `nvmeof`.

    nvmeof_reads.py ADDRESS NQN randread|read BYTES DEPTH SECONDS
"""

import random
import sys
import time

import nvmeof
from nvmeof import protocol

address, name, pattern, size, depth, seconds = sys.argv[1:]
size, depth = int(size), int(depth)
controller = nvmeof.Controller.connect(address, name, queue_depth=depth + 1)
namespace = controller.identify_namespace(1)
blocks = size // namespace.lba_size
places = namespace.info.size_lbas // blocks
free = [controller.allocate(size) for _ in range(depth)]
owner, latencies, place = {}, [], 0
start = time.monotonic() + 1
end = start + float(seconds)
while time.monotonic() < end:
    while free:
        buffer = free.pop()
        place = random.randrange(places) if pattern == "randread" else (place + 1) % places
        command = protocol.rw_command(protocol.OPC_READ, 1, place * blocks, blocks, buffer,
                                      lba_size=namespace.lba_size, buffer_offset=0)
        submitted = time.monotonic()
        request = controller.io.submit(command, data_owner=buffer)
        owner[id(request)] = (buffer, submitted, request)
    for request in controller.io.poll():
        buffer, submitted, _ = owner.pop(id(request))
        free.append(buffer)
        request.response.raise_for_status()
        if submitted >= start:
            latencies.append((time.monotonic() - submitted) * 1e6)
latencies.sort()
count = len(latencies)
print("rdma4py  %s %d depth %d: %.0f IOPS, %.1f MiB/s, latency in us: average %.1f, 50%% %.1f, 99%% %.1f" % (
    pattern, size, depth, count / float(seconds), count * size / float(seconds) / (1 << 20),
    sum(latencies) / max(count, 1), latencies[count // 2], latencies[count * 99 // 100]))
