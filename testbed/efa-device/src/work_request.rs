//! Work requests as the provider lays them out: 64- or 128-byte send requests in the send queue
//! BAR, 16-byte receive descriptors in guest memory.

use crate::bytes::Fields;

/// Bytes of a receive descriptor.
pub(crate) const RECEIVE_DESCRIPTOR_BYTES: u64 = 16;
/// Buffers of one send.
pub(crate) const MAX_SEND_BUFFERS: usize = 2;
/// Buffers of one RDMA read or write.
pub(crate) const MAX_RDMA_BUFFERS: usize = 1;
/// Buffers of one receive.
pub(crate) const MAX_RECEIVE_BUFFERS: usize = 2;

const META_BYTES: usize = 32;
const REMOTE_BYTES: usize = 16;
const BUFFER_BYTES: usize = 16;

/// What a work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Send,
    Read,
    Write,
    /// Any other code: memory registration through the send queue, or nonsense.
    Unsupported(u8),
}

impl Operation {
    const fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Send,
            1 => Self::Read,
            2 => Self::Write,
            other => Self::Unsupported(other),
        }
    }

    /// The three bits that completions carry.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Send => 0,
            Self::Read => 1,
            Self::Write => 2,
            Self::Unsupported(code) => code & 7,
        }
    }
}

/// The identifier of a send request; its completion must echo it bit by bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestId {
    pub(crate) low: u16,
    /// Bits 63:16, used with 64-bit identifiers.
    pub(crate) extension: [u8; 6],
}

/// Registered memory on the side that owns the work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalBuffer {
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) key: u32,
}

/// Registered memory at the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RemoteBuffer {
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) key: u32,
}

/// Where the bytes of a send request are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    Inline(Vec<u8>),
    Buffers(Vec<LocalBuffer>),
    /// The request claims more inline bytes or buffers than a request holds.
    Overlong,
}

/// A send, RDMA read or RDMA write as posted.
#[derive(Clone, Debug)]
pub(crate) struct SendRequest {
    pub(crate) id: RequestId,
    pub(crate) operation: Operation,
    pub(crate) immediate: Option<u32>,
    pub(crate) address_handle: u16,
    pub(crate) queue_pair: u16,
    pub(crate) queue_key: u32,
    /// Meaningful for reads and writes.
    pub(crate) remote: RemoteBuffer,
    pub(crate) data: Data,
}

impl SendRequest {
    /// Parses the 64 or 128 bytes of a request.
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let fields = Fields(bytes);
        let control = fields.u8(2);
        let operation = Operation::from_code(control & 0xf);
        let inline = control & 1 << 5 != 0;
        let one_sided = matches!(operation, Operation::Read | Operation::Write);
        let remote = if one_sided {
            remote_buffer(fields.from(META_BYTES))
        } else {
            RemoteBuffer::default()
        };
        let (start, most) = if one_sided {
            (META_BYTES + REMOTE_BYTES, MAX_RDMA_BUFFERS)
        } else {
            (META_BYTES, MAX_SEND_BUFFERS)
        };
        Self {
            id: RequestId { low: fields.u16(0), extension: fields.array(26) },
            operation,
            immediate: (control & 1 << 4 != 0).then(|| fields.u32(8)),
            address_handle: fields.u16(12),
            queue_pair: fields.u16(4),
            queue_key: fields.u32(16),
            remote,
            data: data(fields.from(start), inline, fields.u16(6).into(), most),
        }
    }
}

fn remote_buffer(fields: Fields<'_>) -> RemoteBuffer {
    RemoteBuffer { address: fields.u64(8), length: fields.u32(0), key: fields.u32(4) }
}

fn data(fields: Fields<'_>, inline: bool, count: usize, most: usize) -> Data {
    if inline {
        return fields
            .bytes()
            .get(..count)
            .map_or(Data::Overlong, |bytes| Data::Inline(bytes.to_vec()));
    }
    if count > most {
        return Data::Overlong;
    }
    let buffers = (0..count).map(|number| {
        let fields = fields.from(number * BUFFER_BYTES);
        LocalBuffer {
            address: fields.u64(8),
            length: fields.u32(0),
            key: fields.u32(4) & 0xff_ffff,
        }
    });
    Data::Buffers(buffers.collect())
}

/// One descriptor of a receive; a receive with several buffers has several.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveDescriptor {
    pub(crate) request: u16,
    pub(crate) buffer: LocalBuffer,
    pub(crate) last: bool,
}

impl ReceiveDescriptor {
    pub(crate) fn parse(bytes: [u8; 16]) -> Self {
        let fields = Fields(&bytes);
        let control = fields.u32(12);
        Self {
            request: fields.u16(8),
            buffer: LocalBuffer {
                address: fields.u64(0),
                length: fields.u16(10).into(),
                key: control & 0xff_ffff,
            },
            last: control & 1 << 31 != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::PutFields;

    #[test]
    fn a_wide_request_holds_80_inline_bytes_after_a_remote_address() {
        let mut bytes = [0x11_u8; 128];
        bytes.put_u8(2, 2 | 1 << 5 | 1 << 7);
        bytes.put_u16(6, 80);
        let request = SendRequest::parse(&bytes);
        assert_eq!(request.operation, Operation::Write);
        assert_eq!(request.data, Data::Inline(vec![0x11; 80]));
        bytes.put_u16(6, 81);
        assert_eq!(SendRequest::parse(&bytes).data, Data::Overlong);
    }

    #[test]
    fn keys_are_24_bits_and_counts_are_checked() {
        let mut bytes = [0_u8; 64];
        bytes.put_u16(6, 1);
        bytes.put_u32(32, 100);
        bytes.put_u32(36, 0xff12_3456);
        bytes.put_u64(40, 0x1000);
        let buffer = LocalBuffer { address: 0x1000, length: 100, key: 0x12_3456 };
        assert_eq!(SendRequest::parse(&bytes).data, Data::Buffers(vec![buffer]));
        bytes.put_u16(6, 3);
        assert_eq!(SendRequest::parse(&bytes).data, Data::Overlong);
    }

    #[test]
    fn any_bytes_parse() {
        for length in [0, 1, 31, 32, 47, 48, 63, 64] {
            for byte in 0..=255 {
                drop(SendRequest::parse(&vec![byte; length]));
            }
        }
    }
}
