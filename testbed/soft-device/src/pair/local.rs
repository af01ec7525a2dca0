//! Requests that stay on their side: binding a memory window, invalidating a key.
#![expect(unsafe_code, reason = "reads the structs of memory windows, given from C")]

use rdma_sys as c;

use super::{
    PairRef,
    execute::Step,
    work::{Payload, Request},
};
use crate::{errno::Outcome, fabric::Fabric, handle::Handle, memory::Asker, verb::Verb};

/// What a window is to be bound to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Binding {
    pub(crate) window: u32,
    /// The key that it gets.
    pub(crate) rkey: u32,
    /// 0 for none.
    pub(crate) region: u32,
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) access: u32,
}

impl Binding {
    /// Reads the structs of C.
    ///
    /// # Safety
    ///
    /// The window is live, and the region is live or null.
    pub(crate) unsafe fn new(mw: *mut c::ibv_mw, rkey: u32, info: &c::ibv_mw_bind_info) -> Self {
        Self {
            // SAFETY: the window is live, by the contract above.
            window: unsafe { Handle::number(mw) },
            rkey,
            region: if info.mr.is_null() {
                0
            } else {
                // SAFETY: a region that is not null is live, by the contract above.
                unsafe { Handle::number(info.mr) }
            },
            address: info.addr,
            length: info.length,
            access: info.mw_access_flags,
        }
    }
}

impl Fabric {
    /// Posts a binding by `ibv_bind_mw`.
    pub(crate) fn post_bind(
        &mut self,
        named: PairRef,
        wr_id: u64,
        flags: u32,
        binding: Binding,
    ) -> Outcome {
        self.enter(named.device, Verb::ibv_bind_mw)?;
        let opcode = c::IBV_WR_BIND_MW;
        let request =
            Request { wr_id, opcode, flags, binding: Some(binding), ..Request::default() };
        // SAFETY: there is no inline data.
        unsafe { self.queue_send(named.number, request, &[], Payload::Registered) }?;
        self.progress(named.number);
        Ok(())
    }

    /// One request that stays on its side.
    pub(super) fn local(&mut self, number: u32, request: Request) -> Step {
        let Some(domain) = self.pairs.get(number).map(|pair| pair.domain) else {
            return Step::Done(c::IBV_WC_SUCCESS, 0);
        };
        let done = match request.binding {
            Some(binding) => self.bind(number, domain, binding).map_err(|_| c::IBV_WC_MW_BIND_ERR),
            None => {
                let asker = Asker { pair: number, domain };
                let invalidated = self.invalidate(asker, request.immediate);
                invalidated.map_err(|_| c::IBV_WC_LOC_QP_OP_ERR)
            }
        };
        Step::Done(done.err().unwrap_or(c::IBV_WC_SUCCESS), 0)
    }
}
