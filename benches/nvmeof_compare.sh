#!/bin/bash
# Our NVMe/RDMA initiator, the kernel's, and rdma4py's side by side: one machine, one target, in turns.
#
#     cargo build --release --example nvmeof_bench
#     cargo testbed run -- "$PWD/benches/nvmeof_compare.sh" "$PWD/target/release/examples/nvmeof_bench"
#
# A second argument is a folder with rdma4py (pip install --target FOLDER nvmeof). SECONDS_EACH and ROUNDS
# change how long it takes. In an emulated machine only ratios within one run mean something.
set -euo pipefail

ours=$1
rdma4py=${2:-}
seconds=${SECONDS_EACH:-4}
rounds=${ROUNDS:-3}
address=10.99.0.1
name=nqn.2024-01.org.example:bench
target=/sys/kernel/config/nvmet

for module in nvmet nvmet-rdma nvme-rdma; do
    modprobe "$module"
done
modprobe brd rd_nr=1 rd_size=131072
mkdir -p "$target/subsystems/$name/namespaces/1" "$target/ports/1"
echo 1 > "$target/subsystems/$name/attr_allow_any_host"
echo /dev/ram0 > "$target/subsystems/$name/namespaces/1/device_path"
echo 1 > "$target/subsystems/$name/namespaces/1/enable"
echo rdma > "$target/ports/1/addr_trtype"
echo ipv4 > "$target/ports/1/addr_adrfam"
echo "$address" > "$target/ports/1/addr_traddr"
echo 4420 > "$target/ports/1/addr_trsvcid"
ln -s "$target/subsystems/$name" "$target/ports/1/subsystems/$name"

# pattern, bytes, depth, and what to add
ours() {
    "$ours" "$address" "$name" --rw "$1" --bs "$2" --iodepth "$3" --runtime "$seconds" "${@:4}" |
        sed -n "s/^ *read:/ours     $1 $2 depth $3${4:+ asleep}:/p"
}

kernel() {
    nvme connect -t rdma -a "$address" -s 4420 -n "$name" --nr-io-queues=1 > /dev/null
    sleep 1
    local device
    device=$(find /dev -name 'nvme*n1' | head -1)
    fio --name=x --filename="$device" --direct=1 --ioengine=io_uring --time_based --ramp_time=1 \
        --runtime="$seconds" --rw="$1" --bs="$2" --iodepth="$3" --output-format=json |
        python3 -c '
import json, sys
read = json.load(sys.stdin)["jobs"][0]["read"]
latency = read["clat_ns"]
percentile = latency["percentile"]
print("kernel   %s %s depth %s: %.0f IOPS, %.1f MiB/s, latency in us: average %.1f, 50%% %.1f, 99%% %.1f" % (
    *sys.argv[1:], read["iops"], read["bw_bytes"] / (1 << 20), latency["mean"] / 1e3,
    percentile["50.000000"] / 1e3, percentile["99.000000"] / 1e3))' "$1" "$2" "$3"
    nvme disconnect -n "$name" > /dev/null
}

rdma4py() {
    PYTHONPATH=$rdma4py python3 - "$address" "$name" "$1" "$2" "$3" "$seconds" << 'PROGRAM'
import random, sys, time
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
PROGRAM
}

for _ in $(seq "$rounds"); do
    for workload in "randread 4096 1" "randread 4096 32" "read 131072 8"; do
        # shellcheck disable=SC2086 # three words
        ours $workload
        # shellcheck disable=SC2086
        ours $workload --interrupts
        # shellcheck disable=SC2086
        kernel $workload
        if [ -n "$rdma4py" ]; then
            # shellcheck disable=SC2086
            rdma4py $workload
        fi
    done
done
