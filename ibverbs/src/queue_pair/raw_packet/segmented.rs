//! Segmentation by the device: one request for many packets of TCP.

use std::{ffi::c_int, ptr};

use super::RawPacket;
use crate::{
    DeviceAttributes, Error, PostError, QueuePair, QueuePairBuilder, Segment, Verb,
    queue_pair::post::{MORE_SEGMENTS, refused},
};

/// A stretch of a TCP stream that the device cuts into packets: each gets the same headers with its own lengths, numbers
/// and checksums.
#[derive(Debug, Clone, Copy)]
#[must_use = "nothing is sent before `QueuePair::post_segmented`"]
pub struct SegmentedFrames<'a> {
    header: &'a [u8],
    payload: &'a [Segment<'a>],
    segment_size: u16,
    id: u64,
    signaled: bool,
}

impl<'a> SegmentedFrames<'a> {
    /// Packets of at most `segment_size` bytes of `payload` each, behind `header`: everything from the Ethernet header to the
    /// end of that of TCP, as it is to stand in the first packet.
    pub const fn new(header: &'a [u8], payload: &'a [Segment<'a>], segment_size: u16) -> Self {
        Self { header, payload, segment_size, id: 0, signaled: false }
    }

    /// The number that its one completion carries.
    pub const fn id(self, id: u64) -> Self {
        Self { id, ..self }
    }

    /// Reports its success too.
    pub const fn signaled(self) -> Self {
        Self { signaled: true, ..self }
    }
}

impl QueuePairBuilder<'_, RawPacket> {
    /// How long the headers of [`SegmentedFrames`] can be, in bytes; 0, so that none can be sent, if not set.
    ///
    /// Creating fails with [`Error::Unsupported`], or `EOPNOTSUPP` or `EINVAL`, where the device cannot.
    #[doc(alias = "max_tso_header")]
    pub fn max_segmented_header(self, bytes: u16) -> Self {
        self.segmented_header(bytes)
    }
}

impl QueuePair<'_, RawPacket> {
    /// Posts one request for many packets of TCP. Costs as [`post_send`](Self::post_send), and completes as
    /// [`Operation::SEGMENTED_SEND`](crate::Operation::SEGMENTED_SEND). The headers are copied in this call.
    ///
    /// # Errors
    ///
    /// [`PostError`], always about request 0: [`Error::Invalid`] if the queue pair was made without
    /// [`max_segmented_header`](QueuePairBuilder::max_segmented_header); [`Error::OutOfRange`] for headers or segments over what the queue pair was made
    /// for, or packets of no bytes; `ENOMEM` means that the queue is full. See `ibv_post_send(3)`.
    #[doc(alias = "IBV_WR_TSO")]
    pub fn post_segmented(&self, frames: &SegmentedFrames<'_>) -> Result<(), PostError> {
        let &SegmentedFrames { header, payload, segment_size, id, signaled } = frames;
        let capabilities = self.capabilities();
        let check = |what, asked: usize, most: u64, remedy| {
            Error::check_or(what, asked as u64, 1..=most, remedy).map_err(PostError::alone)
        };
        if capabilities.segmented_header == 0 {
            return Err(PostError::alone(Error::Invalid {
                what: "the queue pair was not made for segmentation".into(),
                remedy: "set `QueuePairBuilder::max_segmented_header`",
            }));
        }
        let most = capabilities.segmented_header.into();
        let remedy = "make the queue pair with a larger `QueuePairBuilder::max_segmented_header`";
        check("the length of the headers in bytes", header.len(), most, Some(remedy))?;
        check("the size of a packet in bytes", segment_size.into(), u16::MAX.into(), None)?;
        let most = capabilities.send_segments.into();
        check("the number of segments", payload.len(), most, Some(MORE_SEGMENTS))?;
        let signal = if signaled { rdma_sys::IBV_SEND_SIGNALED } else { 0 };
        let mut request = rdma_sys::ibv_send_wr {
            wr_id: id,
            opcode: rdma_sys::IBV_WR_TSO,
            // Each packet needs checksums of its own.
            send_flags: rdma_sys::IBV_SEND_IP_CSUM | signal,
            sg_list: payload.as_ptr().cast::<rdma_sys::ibv_sge>().cast_mut(),
            num_sge: c_int::try_from(payload.len()).unwrap_or(c_int::MAX),
            ..Default::default()
        };
        request.__bindgen_anon_2.tso = rdma_sys::ibv_send_wr__bindgen_ty_4__bindgen_ty_2 {
            hdr: header.as_ptr().cast_mut().cast(),
            hdr_sz: u16::try_from(header.len()).unwrap_or(u16::MAX),
            mss: segment_size,
        };
        let mut bad = ptr::null_mut();
        let first = &raw mut request;
        // SAFETY: the queue pair is live. The one request names registered memory, which its region deregisters before
        // freeing, in a list that is borrowed, and headers that are copied in this call, as inline bytes are.
        let returned = unsafe { rdma_sys::ibv_post_send(self.as_raw(), first, &raw mut bad) };
        if returned == 0 {
            return Ok(());
        }
        let stride = size_of::<rdma_sys::ibv_send_wr>();
        Err(refused(Verb::new("ibv_post_send"), returned, bad.addr(), first.addr(), stride))
    }
}

impl DeviceAttributes {
    /// Most bytes that [`SegmentedFrames`] can have; 0 if the device does not cut streams into packets.
    #[must_use]
    #[doc(alias = "max_tso")]
    pub fn max_segmented_length(&self) -> u32 {
        let caps = self.as_raw().tso_caps;
        if caps.supported_qpts & (1 << rdma_sys::IBV_QPT_RAW_PACKET) == 0 {
            0
        } else {
            caps.max_tso
        }
    }
}
