"""The other side of kernel_efa_python.rs, with the Python package `efa`.

Talks over standard input and output, a line a step; says what went wrong and ends where something does.
"""

import ctypes
import struct
import sys

import efa
from talk import check, completion, hear, pattern, say

QKEY = 0x1234
LENGTH = 50_000
MESSAGE = 4_000


def main():
    context = next(d for d in efa.get_efa_device_list() if d.name == sys.argv[1]).open()
    pd = context.alloc_pd()
    cq = context.create_cq(64)
    qp = pd.create_qp(
        efa.QPInitAttr(send_cq=cq, recv_cq=cq, max_send_wr=16, max_recv_wr=16)
    ).prepare(qkey=QKEY)
    memory = ctypes.create_string_buffer(2 * LENGTH)
    access = (
        efa.AccessFlags.LOCAL_WRITE
        | efa.AccessFlags.REMOTE_WRITE
        | efa.AccessFlags.REMOTE_READ
    )
    mr = pd.reg_mr(ctypes.addressof(memory), 2 * LENGTH, access)

    def sge(offset, length):
        return efa.SGE(mr, length, offset=offset)

    def contents(offset, length):
        return memory.raw[offset : offset + length]

    def post(opcode, segment, **rest):
        flags = efa.SendFlags.SIGNALED
        qp.post_send(
            efa.SendWR(sg_list=[segment], opcode=opcode, send_flags=flags, dest=peer, **rest)
        )
        completion(cq)

    for number in range(2):
        qp.post_recv(efa.RecvWR(wr_id=number, sg_list=[sge(LENGTH, MESSAGE)]))
    place = struct.pack("!QQI", ctypes.addressof(memory), 2 * LENGTH, mr.rkey)
    say((efa.local_endpoint_info(qp, qkey=QKEY).to_bytes() + place).hex())
    told = bytes.fromhex(hear())
    peer = efa.EndpointInfo.from_bytes(told[:24]).peer(pd)
    address, _, rkey = struct.unpack("!QQI", told[24:])
    say("ready")

    # What comes from the other side: a send, and a write with immediate.
    found = completion(cq)
    check("send", found.imm_data == 0x51 and found.byte_len == MESSAGE)
    check("sent bytes", contents(LENGTH, MESSAGE) == pattern(1, MESSAGE))
    say("send")
    found = completion(cq)
    check("write", found.opcode == efa.WCOpcode.RECV_RDMA_WITH_IMM and found.imm_data == 0x52)
    check("written bytes", contents(0, LENGTH) == pattern(2, LENGTH))
    say("write")

    # And the other way round.
    check("go", hear() == "go")
    memory[:MESSAGE] = pattern(3, MESSAGE)
    post(efa.WROpcode.SEND_WITH_IMM, sge(0, MESSAGE), imm_data=0x53)
    memory[:LENGTH] = pattern(4, LENGTH)
    post(
        efa.WROpcode.RDMA_WRITE_WITH_IMM,
        sge(0, LENGTH),
        imm_data=0x54,
        remote_addr=address,
        rkey=rkey,
    )
    say("wrote")

    # Each reads the other's memory.
    check("read", hear() == "read")
    post(efa.WROpcode.RDMA_READ, sge(LENGTH, LENGTH), remote_addr=address, rkey=rkey)
    check("bytes read", contents(LENGTH, LENGTH) == pattern(5, LENGTH))
    memory[:LENGTH] = pattern(6, LENGTH)
    say("read")
    check("done", hear() == "done")
    for thing in (peer, qp, cq, mr, pd, context):
        thing.close()


main()
