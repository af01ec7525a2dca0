//! Address handles: the way to a port, as the device knows it.
#![expect(unsafe_code, reason = "owns an ibv_ah")]

use std::ptr::NonNull;

use crate::{
    Address, Error, FinishedWork, Parent, PortNumber, ProtectionDomain, Result, RoutingHeader,
    context::ContextTag, error::verb,
};

/// An address in the device, which datagrams name. Making one may resolve the peer's Ethernet address, so that
/// one per peer is made and kept.
///
/// # How long it must live
///
/// A request borrows it until it is posted. Posting copies: the whole address (mlx5, mlx4, hns, `rxe`, `rvt`), or the number
/// by which the device knows it (efa, irdma, `bnxt_re`). In neither case does anything point to the handle
/// afterwards, so that dropping it is safe at any time. Where the number is copied, though, a datagram that has
/// not left yet may be dropped, or end as failed, or even go where the next handle of the same number points:
/// keep a handle until the requests that named it have completed.
///
/// # Examples
///
/// A request cannot outlive its handle:
///
/// ```compile_fail,E0505
/// # use ibverbs::{AddressHandle, DatagramInfo, Segment, SendWr, Ud};
/// # fn f(bytes: Segment<'_>, handle: AddressHandle<'_>, peer: DatagramInfo) {
/// let datagram = SendWr::<Ud>::send_to(bytes, peer.destination(&handle));
/// drop(handle);
/// let batch = [datagram];
/// # }
/// ```
///
/// ```
/// # use ibverbs::{AddressHandle, DatagramInfo, Segment, SendWr, Ud};
/// # fn f(bytes: Segment<'_>, handle: AddressHandle<'_>, peer: DatagramInfo) {
/// let datagram = SendWr::<Ud>::send_to(bytes, peer.destination(&handle));
/// let batch = [datagram];
/// drop(handle);
/// # }
/// ```
#[derive(Debug)]
pub struct AddressHandle<'a> {
    /// From `ibv_create_ah` on `domain`; freed only by drop.
    raw: NonNull<rdma_sys::ibv_ah>,
    /// Of the context of `domain`.
    context: ContextTag,
    domain: Parent<'a, ProtectionDomain<'a>>,
}

impl ProtectionDomain<'_> {
    /// Makes an address handle that borrows this domain. May enter the kernel, allocates.
    ///
    /// Use [`AddressHandle::create`] with an `Arc` for one that can be stored beside its domain.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for a service level or flow label that cannot be; [`Error::Verb`] if there is no way to the
    /// peer. See `ibv_create_ah(3)`.
    #[doc(alias = "ibv_create_ah")]
    pub fn create_address_handle(&self, address: &Address) -> Result<AddressHandle<'_>> {
        AddressHandle::create(self, address)
    }
}

impl<'a> AddressHandle<'a> {
    /// Makes an address handle in a domain, borrowed (`&domain`) or shared (`&Arc<ProtectionDomain>`).
    ///
    /// # Errors
    ///
    /// As for [`ProtectionDomain::create_address_handle`].
    #[doc(alias = "ibv_create_ah")]
    pub fn create(
        domain: impl Into<Parent<'a, ProtectionDomain<'a>>>,
        address: &Address,
    ) -> Result<Self> {
        let domain = domain.into();
        let (verb, create) = verb!(domain.context().library(), ibv_create_ah)?;
        let mut attributes = address.to_raw()?;
        // SAFETY: the domain is held, and the struct is read in this call only.
        let raw = unsafe { create(domain.as_raw(), &raw mut attributes) };
        Ok(Self { raw: verb.object(raw)?, context: domain.context().tag(), domain })
    }

    /// The way back to the sender of a datagram that arrived on `port`. `header` is the one that stood before
    /// the payload, if [there was one](FinishedWork::has_routing_header).
    ///
    /// # Errors
    ///
    /// [`Error::Verb`], `EINVAL` if the port's table does not have the GID that the datagram went to. See
    /// `ibv_create_ah_from_wc(3)`.
    #[doc(alias = "ibv_create_ah_from_wc")]
    pub fn reply(
        domain: impl Into<Parent<'a, ProtectionDomain<'a>>>,
        work: &FinishedWork<'_>,
        header: Option<&RoutingHeader>,
        port: PortNumber,
    ) -> Result<Self> {
        let domain = domain.into();
        let (verb, create) = verb!(domain.context().library(), ibv_create_ah_from_wc)?;
        let (mut completion, mut header) = header_for(work, header)?;
        // SAFETY: the domain is held; both structs are valid and read in this call only.
        let raw = unsafe {
            create(domain.as_raw(), &raw mut completion, (&raw mut header).cast(), port.get())
        };
        Ok(Self { raw: verb.object(raw)?, context: domain.context().tag(), domain })
    }

    pub(crate) fn context_tag(&self) -> ContextTag {
        self.context
    }

    /// The domain it belongs to.
    #[must_use]
    pub fn protection_domain(&self) -> &ProtectionDomain<'a> {
        &self.domain
    }

    /// The C object, valid as long as this is.
    #[must_use]
    #[inline]
    pub const fn as_raw(&self) -> *mut rdma_sys::ibv_ah {
        self.raw.as_ptr()
    }
}

impl Address {
    /// The way back to the sender of a datagram that arrived on `port`; as [`AddressHandle::reply`], but it makes no
    /// handle yet, so that it can be changed or compared.
    ///
    /// # Errors
    ///
    /// As for [`AddressHandle::reply`]. See `ibv_init_ah_from_wc(3)`.
    #[doc(alias = "ibv_init_ah_from_wc")]
    pub fn reply(
        domain: &ProtectionDomain<'_>,
        work: &FinishedWork<'_>,
        header: Option<&RoutingHeader>,
        port: PortNumber,
    ) -> Result<Self> {
        let (verb, initialize) = verb!(domain.context().library(), ibv_init_ah_from_wc)?;
        let context = domain.context().as_raw();
        let (mut completion, mut header) = header_for(work, header)?;
        let mut raw = rdma_sys::ibv_ah_attr::default();
        let (wc, grh) = (&raw mut completion, (&raw mut header).cast());
        // SAFETY: the context is open; all three structs are valid, and used in this call only.
        let returned = unsafe { initialize(context, port.get(), wc, grh, &raw mut raw) };
        verb.status(returned)?;
        Ok(Self::from_raw(raw))
    }
}

/// The bytes of a header, placed as C reads them.
#[repr(C, align(8))]
struct AlignedHeader([u8; RoutingHeader::LENGTH]);

const _: () = assert!(size_of::<AlignedHeader>() == size_of::<rdma_sys::ibv_grh>());
const _: () = assert!(align_of::<AlignedHeader>() >= align_of::<rdma_sys::ibv_grh>());

/// What C takes; it reads the header if the completion says that there is one.
fn header_for(
    work: &FinishedWork<'_>,
    header: Option<&RoutingHeader>,
) -> Result<(rdma_sys::ibv_wc, AlignedHeader)> {
    if work.has_routing_header() && header.is_none() {
        return Err(Error::Invalid {
            what: "the datagram came with a routing header, which was not given".into(),
            remedy: "read it with `FinishedWork::datagram` and pass it on",
        });
    }
    let bytes = header.map_or([0; RoutingHeader::LENGTH], |header| *header.as_bytes());
    Ok((*work.as_raw(), AlignedHeader(bytes)))
}

impl Drop for AddressHandle<'_> {
    fn drop(&mut self) {
        if let Ok((verb, destroy)) = verb!(self.domain.context().library(), ibv_destroy_ah) {
            // SAFETY: `raw` is live, and nothing reads it after this: requests that named it were dropped
            // before, and posting them copied what the device needs.
            verb.log_refusal(unsafe { destroy(self.raw.as_ptr()) });
        }
    }
}

// SAFETY: verbs objects are by default safe to use from many threads, ibv_alloc_td(3).
unsafe impl Send for AddressHandle<'_> {}
// SAFETY: as for `Send`; nothing is changed through `&self`.
unsafe impl Sync for AddressHandle<'_> {}
