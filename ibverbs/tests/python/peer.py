"""The other side of kernel_python.rs, with the Python package `ibverbs`.

Talks over standard input and output, a line a step; says what went wrong and ends where something does.
"""

import ctypes
import struct
import sys

import ibverbs as ib
from talk import check, completion, hear, pattern, say

LENGTH = 50_000
PSN = 0xABCDEF


def main():
    told = bytes.fromhex(hear())
    remote = ib.QPInfo.from_bytes(told[:28])
    check("the bytes of QPInfo", remote.to_bytes() == told[:28])
    address, length, rkey = struct.unpack("!QQI", told[28:])
    check("the length", length == 2 * LENGTH)

    context = next(d for d in ib.get_device_list() if d.name == sys.argv[1]).open()
    pd = context.alloc_pd()
    cq = context.create_cq(64)
    qp = pd.create_qp(
        ib.QPInitAttr(
            send_cq=cq, recv_cq=cq, qp_type=ib.QPType.RC, max_send_wr=16, max_recv_wr=16
        )
    )
    # Both sides are on one device, and use one of its GIDs.
    index = next(i for i in range(16) if bytes(context.query_gid(1, i).raw) == remote.gid)
    memory = ctypes.create_string_buffer(2 * LENGTH)
    access = (
        ib.AccessFlags.LOCAL_WRITE | ib.AccessFlags.REMOTE_WRITE | ib.AccessFlags.REMOTE_READ
    )
    mr = pd.reg_mr(ctypes.addressof(memory), 2 * LENGTH, access)

    def contents(offset):
        return memory.raw[offset : offset + LENGTH]

    def post(opcode, offset, **rest):
        segment = ib.SGE(mr, LENGTH, offset=offset)
        flags = ib.SendFlags.SIGNALED
        qp.post_send(ib.SendWR(sg_list=[segment], opcode=opcode, send_flags=flags, **rest))
        completion(cq)

    mine = ib.local_qp_info(
        qp, context.query_port(1), context.query_gid(1, index), port=1, psn=PSN
    )
    place = struct.pack("!QQI", ctypes.addressof(memory), 2 * LENGTH, mr.rkey)
    say((mine.to_bytes() + place).hex())
    ib.connect_rc(qp, remote, port=1, sgid_index=index, access=access, local_psn=PSN)
    for number in range(2):
        segment = ib.SGE(mr, LENGTH, offset=LENGTH)
        qp.post_recv(ib.RecvWR(wr_id=number, sg_list=[segment]))
    check("ready", hear() == "ready")
    say("ready")

    # What comes from the other side: a send, and a write with immediate.
    found = completion(cq)
    check("send", found.opcode == ib.WCOpcode.RECV and found.byte_len == LENGTH)
    check("sent bytes", contents(LENGTH) == pattern(1, LENGTH))
    say("send")
    found = completion(cq)
    check("write", found.opcode == ib.WCOpcode.RECV_RDMA_WITH_IMM and found.imm_data == 0xC0DE)
    check("written bytes", contents(0) == pattern(2, LENGTH))
    say("write")

    # And the other way round.
    check("go", hear() == "go")
    memory[:LENGTH] = pattern(3, LENGTH)
    post(ib.WROpcode.SEND, 0)
    memory[:LENGTH] = pattern(4, LENGTH)
    post(ib.WROpcode.RDMA_WRITE_WITH_IMM, 0, imm_data=0xBEEF, remote_addr=address, rkey=rkey)
    say("wrote")

    # Each reads the other's memory.
    check("read", hear() == "read")
    post(ib.WROpcode.RDMA_READ, LENGTH, remote_addr=address, rkey=rkey)
    check("bytes read", contents(LENGTH) == pattern(5, LENGTH))
    memory[:LENGTH] = pattern(6, LENGTH)
    say("read")
    check("done", hear() == "done")
    for thing in (qp, mr, cq, pd, context):
        thing.close()


main()
